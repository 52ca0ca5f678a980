# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Settings of long runs: one dataclass is the flags of a verb, the keys of its YAML file and what its results record.

A value on the command line wins over one in the file, which wins over the default of the dataclass.
"""

import dataclasses
import difflib
import inspect
import shlex
import types
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer


Settings = TypeVar("Settings")


def setting(default: Any = MISSING, *, help: str) -> Any:
    """A field with the text that `--help` shows; without a default it must be given."""
    return field(default=default, metadata={"help": help})


def flag(name: str) -> str:
    """The flag of a field: `batch_size` -> `--batch-size`."""
    return "--" + name.replace("_", "-")


def value_type(annotation: Any) -> Any:
    """The type of a field's values, without `| None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def settings_fields(settings_class: type) -> list[Field]:
    return list(dataclasses.fields(settings_class))


def from_mapping(settings_class: type[Settings], values: dict[str, Any], source: str) -> Settings:
    """
    Settings out of names and values, each brought to the type of its field.

    Args:
        source: what messages call the origin of the values.

    Raises:
        ValueError: unknown names (with the nearest known one), values of another type, missing ones.
    """
    fields = {item.name: item for item in settings_fields(settings_class)}
    check_names(fields, values, source)
    given = {name: convert(value, fields[name], source) for name, value in values.items()}
    missing = [name for name, item in fields.items() if item.default is MISSING and name not in given]
    if missing:
        raise ValueError(f"Missing: {', '.join(map(flag, missing))} (as flags, or keys of the file of --config).")
    return settings_class(**given)


def convert(value: Any, item: Field, source: str) -> Any:
    """`value` in the type of a field. YAML reads 1e-4 as text, and a list may be written with commas."""
    wanted = value_type(item.type)
    if value is None and wanted is not item.type:
        return None
    problem = ValueError(f"{source}: {item.name} must be {describe_type(wanted)}, got {value!r}.")
    if get_origin(wanted) is Literal:
        if value not in get_args(wanted):
            raise problem
        return value
    if get_origin(wanted) is tuple:
        parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, (int, float)) else value
        if not isinstance(parts, (list, tuple)):
            raise problem
        kind = get_args(wanted)[0]
        parts = [part.strip() if isinstance(part, str) else part for part in parts]
        try:
            return tuple(kind(part) for part in parts if part != "")
        except (TypeError, ValueError):
            raise problem from None
    if wanted is bool or isinstance(value, bool):
        if wanted is bool and isinstance(value, bool):
            return value
        raise problem
    if wanted is int and isinstance(value, float) and not value.is_integer():
        raise problem
    try:
        return wanted(value)
    except (TypeError, ValueError):
        raise problem from None


def describe_type(wanted: Any) -> str:
    if get_origin(wanted) is Literal:
        return f"one of {', '.join(map(str, get_args(wanted)))}"
    if get_origin(wanted) is tuple:
        return {int: "whole numbers (64,128)"}.get(get_args(wanted)[0], "a list (a,b)")
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return names.get(wanted, "a list")


def read_settings(settings_class: type[Settings], config: Path | None, flags: dict[str, Any]) -> Settings:
    """
    Settings from the YAML file `config`, if there is one, and `flags`, of which None means not given.

    Raises:
        ValueError: a file that is not a YAML mapping, and as `from_mapping`. OSError: an unreadable file.
    """
    import yaml

    values: dict[str, Any] = {}
    if config is not None:
        try:
            loaded = yaml.safe_load(config.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ValueError(f"{config} is not YAML: {error}") from error
        if not isinstance(loaded, dict):
            raise ValueError(f"{config} must hold names and values (batch_size: 32), got {type(loaded).__name__}.")
        values = {str(name).replace("-", "_"): value for name, value in loaded.items()}
    values |= {name: value for name, value in flags.items() if value is not None}
    return from_mapping(settings_class, values, str(config) if config else "Settings")


def check_names(known: Iterable[str], names: Iterable[str], source: str) -> None:
    """Refuses a name that is no setting, with the nearest one that is."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
            raise ValueError(f"{source}: there is no setting {name!r}{hint}.")


def at_least(settings: Any, names: Iterable[str], limit: int) -> None:
    """Refuses values below `limit`; None is none."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < limit:
            raise ValueError(f"{flag(name)} must be at least {limit}, got {value}.")


def plain(settings: Any) -> dict[str, Any]:
    """Settings as JSON writes them."""
    return {item.name: as_json(getattr(settings, item.name)) for item in settings_fields(type(settings))}


def as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [as_json(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def refuse_other_settings(earlier: dict[str, Any], settings: Any, free: frozenset[str], output: Path) -> None:
    """
    Refuses to resume a run with settings that are not its own.

    Args:
        earlier: the recorded settings of the run. free: names that may differ. output: its folder, for the message.
    """
    now = plain(settings)
    changed = [name for name in now if name not in free and earlier.get(name) != now[name]]
    if changed:
        listed = ", ".join(f"{name} was {earlier.get(name)!r}, is {now[name]!r}" for name in changed)
        raise ValueError(f"--resume: {output} was begun with other settings: {listed}.")


def as_command(verb: str, settings: Any) -> str:
    """The command line that gives these settings."""
    parts = ["convbert-composite", verb]
    for item in settings_fields(type(settings)):
        value = getattr(settings, item.name)
        if value == item.default:
            continue
        if isinstance(value, bool):
            parts.append(flag(item.name) if value else f"--no-{flag(item.name)[2:]}")
        else:
            parts += [flag(item.name), ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return shlex.join(parts)


def command_of(settings_class: type[Settings], run: Callable[[Settings], None], help: str) -> Callable[..., None]:
    """A function for typer whose flags are the fields of `settings_class`, and `--config`; it calls `run`."""

    def command(config: Path | None = None, **flags: Any) -> None:
        # A flag that was given several times is one list.
        joined = {name: ",".join(value) or None if isinstance(value, list) else value for name, value in flags.items()}
        run(read_settings(settings_class, config, joined))

    parameters = [option("config", Path, "YAML file with any of these settings; flags win over it.", "")]
    parameters += [
        option(item.name, item.type, item.metadata["help"], shown(item)) for item in settings_fields(settings_class)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = help
    return command


def shown(item: Field) -> str:
    """The default of a field for `--help`."""
    if item.default is MISSING:
        return "required"
    return "" if item.default in (None, (), False) else str(item.default)


def option(name: str, annotation: Any, help: str, default: str) -> inspect.Parameter:
    """One flag. Its own default is None throughout: not given."""
    wanted = value_type(annotation)
    if get_origin(wanted) is Literal:
        wanted, help = str, f"{help} One of {', '.join(map(str, get_args(wanted)))}."
    if get_origin(wanted) is tuple:
        wanted, help = list[str], f"{help} Several: a,b or the flag again."
    declared = typer.Option(flag(name), help=help, show_default=default or False)
    if wanted is bool:
        declared = typer.Option(
            f"{flag(name)}/--no-{name.replace('_', '-')}", help=help, show_default=default or False
        )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[wanted | None, declared]
    )
