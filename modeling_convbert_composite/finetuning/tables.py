# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Reading rows: files and datasets become tables that know where they came from, so that errors can say so."""

import csv
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from modeling_convbert_composite.finetuning.settings import FinetuningSettings
from modeling_convbert_composite.named_datasets import load_named, repository_of, split_of


SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Table:
    """
    Rows of one split.

    `columns`: values by name. `class_names`: names of the labels that a dataset's column of integers stands for.
    `rows`: number of each row in its source, from 1, for messages. `repository`: the dataset on the Hub they are of.
    """

    source: str
    columns: dict[str, list[Any]]
    rows: list[int]
    class_names: dict[str, list[str]] = field(default_factory=dict)
    digest: str = ""
    repository: str | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        if name not in self.columns:
            raise ValueError(f"{self.source} has no column {name!r}; it has {', '.join(self.columns)}.")
        return self.columns[name]

    def refuse(self, row: int, column: str, problem: str) -> NoReturn:
        """Raises for the value at index `row`."""
        raise ValueError(f"{self.source}, row {self.rows[row]}, column {column!r}: {problem}")

    def take(self, indices: list[int]) -> "Table":
        columns = {name: [values[index] for index in indices] for name, values in self.columns.items()}
        return replace(self, columns=columns, rows=[self.rows[index] for index in indices])


def table(source: str, columns: dict[str, list[Any]], **fields: Any) -> Table:
    """A table of all rows of a source, which must have some."""
    length = len(next(iter(columns.values()), []))
    if length == 0:
        raise ValueError(f"{source} has no rows.")
    return Table(source, columns, list(range(1, length + 1)), **fields)


def read_tables(settings: FinetuningSettings) -> dict[str, Table]:
    """The splits that `settings` name, by name; `validation` is taken from `train` if nothing else names it."""
    found = dataset_tables(settings) if settings.dataset else file_tables(settings)
    if "validation" not in found:
        found["train"], found["validation"] = held_out(found["train"], settings.validation_share, settings.seed)
    if settings.limit is not None:
        found = {name: split.take(list(range(min(len(split), settings.limit)))) for name, split in found.items()}
    return {name: found[name] for name in SPLITS if name in found}


def held_out(train: Table, share: float, seed: int) -> tuple[Table, Table]:
    """Two random parts of `train`, the second with `share` of the rows; both keep the order of the rows."""
    validation = round(len(train) * share)
    if not 0 < validation < len(train):
        raise ValueError(
            f"{train.source} has {len(train)} rows: too few to hold {share:.0%} out for validation. "
            "Give --validation, or another --validation-share."
        )
    order = np.random.default_rng(seed).permutation(len(train)).tolist()
    return train.take(sorted(order[validation:])), train.take(sorted(order[:validation]))


def file_tables(settings: FinetuningSettings) -> dict[str, Table]:
    return {name: read_file(path) for name in SPLITS if (path := getattr(settings, name)) is not None}


def read_file(path: Path) -> Table:
    """
    The rows of a file, by its ending. CSV has quotes as usual; TSV has none (a field holds no tab); their values stay
    text. JSON lines and Parquet keep their types.

    Raises:
        ValueError: an unknown ending, an empty file, a broken row. OSError: no such file.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path} must end in one of {', '.join(READERS)}.")
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        return table(str(path), reader(path), digest=digest)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: byte {error.start} cannot be read.") from error


def separated_rows(path: Path, separator: str, quoting: Literal[0, 3]) -> list[list[str]]:
    """All rows that are not blank, the header among them."""
    # Its own limit is below what texts may have; ours, --max-characters, names the row.
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator, quoting=quoting, strict=True)
        try:
            return [row for row in reader if row]
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}.") from error


def read_separated(separator: str, quoting: Literal[0, 3]) -> Callable[[Path], dict[str, list[str]]]:
    def read(path: Path) -> dict[str, list[str]]:
        names, *rows = separated_rows(path, separator, quoting)
        for number, row in enumerate(rows, 1):
            if len(row) != len(names):
                raise ValueError(f"{path}, row {number} has {len(row)} columns, its header has {len(names)}.")
        return {name: [row[index] for row in rows] for index, name in enumerate(names)}

    return read


def read_json_lines(path: Path) -> dict[str, list[Any]]:
    """One object a line; a file that is one list of objects is taken as well. A key that a row lacks is None."""
    objects = list(json_objects(path))
    names = list(dict.fromkeys(name for item in objects for name in item))
    return {name: [item.get(name) for item in objects] for name in names}


def json_objects(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        lines = [("", item) for item in json.loads(text)]
    else:
        # Not splitlines(): texts may hold other line separators.
        lines = [(f", line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for where, line in lines:
        try:
            item = json.loads(line) if isinstance(line, str) else line
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}{where} is not JSON: {error}.") from error
        if not isinstance(item, dict):
            raise ValueError(f"{path}{where} must be an object of column names and values, got {type(item).__name__}.")
        yield item


def read_parquet(path: Path) -> dict[str, list[Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_table(path).to_pydict()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error


READERS: dict[str, Callable[[Path], dict[str, list[Any]]]] = {
    ".csv": read_separated(",", csv.QUOTE_MINIMAL),
    ".tsv": read_separated("\t", csv.QUOTE_NONE),
    ".jsonl": read_json_lines,
    ".json": read_json_lines,
    ".parquet": read_parquet,
}

SPLIT_NAMES = {"validation": ("validation", "dev", "valid"), "test": ("test",)}


def dataset_tables(settings: FinetuningSettings) -> dict[str, Table]:
    """Splits of a `datasets` folder on disk, or of a dataset by name."""
    import datasets

    source = str(settings.dataset)
    repository = repository_of(source)
    if repository is None:
        loaded = datasets.load_from_disk(source)
        if isinstance(loaded, datasets.Dataset):
            loaded = datasets.DatasetDict({settings.train_split: loaded})
    else:
        loaded = load_named(repository, settings.dataset_config)
    names = {"train": settings.train_split}
    for split, usual in SPLIT_NAMES.items():
        chosen = getattr(settings, f"{split}_split")
        there = chosen or next((name for name in usual if name in loaded), None)
        if there is not None:
            names[split] = there
    # All of them, before the first is read.
    found = {split: split_of(loaded, name, source) for split, name in names.items()}
    return {split: dataset_table(f"{source} ({names[split]})", rows, repository) for split, rows in found.items()}


def dataset_table(source: str, dataset: Any, repository: str | None = None) -> Table:
    import datasets

    class_names = {}
    for name, feature in dataset.features.items():
        inner = getattr(feature, "feature", feature)
        if isinstance(inner, datasets.ClassLabel):
            class_names[name] = list(inner.names)
    # Not the name and state of the dataset in memory, but what it holds, as for files.
    rows = dataset[:]
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()
    return table(source, rows, class_names=class_names, digest=digest, repository=repository)
