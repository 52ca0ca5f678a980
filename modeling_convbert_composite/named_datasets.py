# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Datasets by name: what a run is given with `--dataset` where that is no folder. No code of a dataset is run."""

from pathlib import Path
from typing import Any


def repository_of(source: str) -> str | None:
    """The name of a dataset on the Hub, None of a folder on disk."""
    return None if Path(source).is_dir() else source


def load_named(name: str, config: str | None = None, **options: Any) -> Any:
    """
    `datasets.load_dataset`, with errors that say what to do.

    Raises:
        ValueError: no such configuration or split, none chosen of several, data that cannot be read.
        OSError: a path where nothing is; no such dataset, or none that this token may read; no connection.
    """
    import datasets

    if Path(name).is_file():
        raise ValueError(f"{name} is a file; --dataset takes a folder of save_to_disk, or a name such as you/reviews.")
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise FileNotFoundError(f"There is no folder {name}.")
    try:
        return datasets.load_dataset(name, config, **options)
    except datasets.exceptions.DatasetGenerationError as error:
        # It says that something went wrong, its cause what.
        raise ValueError(f"{name} cannot be read: {error.__cause__ or error}") from error
    except ValueError as error:
        if config is None and datasets.get_dataset_default_config_name(name) is None:
            known = ", ".join(datasets.get_dataset_config_names(name))
            raise ValueError(f"{name} has several configurations, {known}: choose one (--dataset-config).") from error
        raise


def split_of(loaded: Any, name: str, source: str) -> Any:
    """One split of several; a ValueError with those that are there if it is not."""
    if name not in loaded:
        raise ValueError(f"{source} has no split {name!r}; it has {', '.join(loaded)}.")
    return loaded[name]
