# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Reading GLUE: the public TSV files, or `datasets`. Either way columns become text, second and label."""

import contextlib
import csv
import hashlib
from pathlib import Path
from typing import Any

from modeling_convbert_composite.finetuning.glue_protocol import (
    DIAGNOSTIC_FILES,
    FILES,
    HUB_SPLITS,
    MNLI_FILES,
    GlueSettings,
    GlueTask,
)
from modeling_convbert_composite.finetuning.tables import Table, dataset_table, separated_rows
from modeling_convbert_composite.named_datasets import load_named, repository_of, split_of


def read_task(settings: GlueSettings, task: GlueTask) -> dict[str, Table]:
    """
    The splits of a task; MNLI has the mismatched ones and the diagnostic set `ax` as well. Columns are called `text`,
    `second` and `label`; test splits have no label.

    Raises:
        ValueError, OSError: a file or column is missing, or a row is broken, named in the message.
    """
    if settings.data is not None:
        tables = file_splits(settings.data, task)
    else:
        tables = dataset_splits(str(settings.dataset), task)
    if settings.limit is not None:
        tables = {name: table.take(list(range(min(len(table), settings.limit)))) for name, table in tables.items()}
    return tables


def file_splits(data: Path, task: GlueTask) -> dict[str, Table]:
    folder = data / task.name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{data} has no folder {task.name}; --data is the folder of the unpacked GLUE archive."
        )
    files = {split: folder / name for split, name in (MNLI_FILES if task.name == "MNLI" else FILES).items()}
    if task.name == "MNLI":
        diagnostic = next((data / name for name in DIAGNOSTIC_FILES if (data / name).is_file()), None)
        if diagnostic is not None:
            files["ax"] = diagnostic
    return {split: read_split(path, task, split) for split, path in files.items()}


def read_split(path: Path, task: GlueTask, split: str) -> Table:
    has_labels = not is_unlabelled(split)
    # Only the test file of CoLA has a header.
    names, rows = read_rows(path, task.header if has_labels else ())
    wanted = {"text": task.text, "second": task.second, "label": task.label if has_labels else None}
    indices = {}
    for role, name in wanted.items():
        if name is not None:
            if name not in names:
                raise ValueError(f"{path} has no column {name!r}; it has {', '.join(names)}.")
            indices[role] = names.index(name)
    kept = [(number, row) for number, row in enumerate(rows, 1) if len(row) > max(indices.values())]
    # The public training file of QQP has a few torn lines, which everyone leaves out; elsewhere they are an error.
    if len(kept) < len(rows) and split != "train":
        number = next(number for number, row in enumerate(rows, 1) if len(row) <= max(indices.values()))
        raise ValueError(f"{path}, row {number} has {len(rows[number - 1])} columns, too few.")
    if not kept:
        raise ValueError(f"{path} has no rows.")
    columns: dict[str, list[Any]] = {role: [row[index] for _, row in kept] for role, index in indices.items()}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Table(str(path), columns, [number for number, _ in kept], digest=digest)


def is_unlabelled(split: str) -> bool:
    return split.startswith("test") or split == "ax"


def read_rows(path: Path, header: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of a TSV file without quoting."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    rows = separated_rows(path, "\t", csv.QUOTE_NONE)
    if header:
        return list(header), rows
    if not rows:
        raise ValueError(f"{path} is empty.")
    return rows[0], rows[1:]


def dataset_splits(source: str, task: GlueTask) -> dict[str, Table]:
    """The splits of a `datasets` version, each task a configuration such as `mnli`, `sst2`, `stsb`."""
    loaded = load_configuration(source, task.name.lower().replace("-", ""))
    names = {split: HUB_SPLITS.get(split, split) if task.name == "MNLI" else split for split in FILES}
    if task.name == "MNLI":
        names |= {"validation_mismatched": "validation_mismatched", "test_mismatched": "test_mismatched"}
    repository = repository_of(source)
    tables = {}
    for split, name in names.items():
        rows = split_of(loaded, name, f"{source} ({task.name})")
        tables[split] = hub_table(f"{source} ({task.name}, {name})", rows, task, split, repository)
    if task.name == "MNLI":
        # Without the diagnostic set everything else can run; the submission names what is missing.
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            rows = load_configuration(source, "ax")["test"]
            tables["ax"] = hub_table(f"{source} (AX)", rows, task, "ax", repository)
    return tables


def load_configuration(source: str, name: str) -> Any:
    import datasets

    if (Path(source) / name).is_dir():
        return datasets.load_from_disk(str(Path(source) / name))
    return load_named(source, name)


def hub_table(source: str, dataset: Any, task: GlueTask, split: str, repository: str | None) -> Table:
    read = dataset_table(source, dataset, repository)
    columns = {"text": read.column(task.hub_text or task.text)}
    if task.second is not None:
        columns["second"] = read.column(task.hub_second or task.second)
    if not is_unlabelled(split):
        labels = read.column("label")
        names = read.class_names.get("label", [])
        # Where the classes have the protocol's names these count, whatever their order; else they are 0 and 1.
        if task.labels and set(names) == set(task.labels):
            labels = [names[label] for label in labels]
        columns["label"] = [str(label) if task.labels else label for label in labels]
    return Table(source, columns, read.rows, digest=read.digest, repository=repository)
