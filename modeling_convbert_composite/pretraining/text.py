# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Reading text: files and datasets become a stream of texts, each a list of lines."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from modeling_convbert_composite.named_datasets import load_named, repository_of, split_of
from modeling_convbert_composite.pretraining.settings import PretrainingSettings


Text = list[str]


def read_texts(settings: PretrainingSettings) -> Iterator[Text]:
    """The texts that `settings` name; see `file_texts` and `dataset_texts`."""
    if settings.dataset:
        texts = dataset_texts(settings)
    else:
        texts = file_texts(settings.data, settings.errors, settings.text_column)
    return islice(texts, settings.limit)


def file_texts(paths: Iterable[Path], errors: str = "strict", column: str = "text") -> Iterator[Text]:
    """
    Texts of files, in order. In .txt files a line is a sentence and blank lines stand between texts; .jsonl and
    .parquet files have a text a row, whose lines are its sentences. Blank lines and empty texts vanish.

    Raises:
        ValueError: an unknown ending, no text at all, bytes that are not UTF-8 (with their offset), no such column.
        OSError: no such file.
    """
    for path in paths:
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            raise ValueError(f"{path} must end in one of {', '.join(READERS)}.")
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}.")
        is_empty = True
        for text in reader(path, errors, column):
            is_empty = False
            yield text
        if is_empty:
            raise ValueError(f"{path} holds no text.")


def decoded_lines(path: Path, errors: str) -> Iterator[str]:
    """Lines without their ends, `\\n` or `\\r\\n`."""
    offset = 0
    with path.open("rb") as file:
        for raw in file:
            try:
                line = raw.decode("utf-8", errors)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} is not UTF-8: byte {offset + error.start} cannot be read; --errors replace goes on."
                ) from error
            yield line.rstrip("\r\n").removeprefix("\ufeff")
            offset += len(raw)


def plain_texts(path: Path, errors: str, column: str) -> Iterator[Text]:
    text: Text = []
    for line in decoded_lines(path, errors):
        if line.strip():
            text.append(line.strip())
        elif text:
            yield text
            text = []
    if text:
        yield text


def lines_of(value: Any, where: str) -> Text:
    """The lines of a text that are not blank."""
    if not isinstance(value, str):
        raise ValueError(f"{where} must be text, got {type(value).__name__}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} holds half of a pair of UTF-16, {value[error.start]!r}, which is no letter."
        ) from error
    return [line.strip() for line in value.splitlines() if line.strip()]


def json_texts(path: Path, errors: str, column: str) -> Iterator[Text]:
    for number, line in enumerate(decoded_lines(path, errors), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is not JSON: {error}.") from error
        if not isinstance(row, dict) or column not in row:
            raise ValueError(f"{path}, line {number} has no {column!r}; --text-column names another.")
        if text := lines_of(row[column], f"{path}, line {number}, {column!r}"):
            yield text


def parquet_texts(path: Path, errors: str, column: str) -> Iterator[Text]:
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path)
    except ArrowException as error:
        raise ValueError(f"{path} is not Parquet: {error}") from error
    if column not in file.schema_arrow.names:
        raise ValueError(f"{path} has no column {column!r}; it has {', '.join(file.schema_arrow.names)}.")
    for batch in file.iter_batches(columns=[column]):
        for value in batch.column(0).to_pylist():
            if text := lines_of(value, f"{path}, column {column!r}"):
                yield text


READERS: dict[str, Callable[[Path, str, str], Iterator[Text]]] = {
    ".txt": plain_texts,
    ".jsonl": json_texts,
    ".parquet": parquet_texts,
}


def dataset_texts(settings: PretrainingSettings) -> Iterator[Text]:
    """Texts of a `datasets` folder on disk, or of a dataset by name, streamed if asked. Other columns are not read."""
    source, column = str(settings.dataset), settings.text_column
    loaded = load_split(source, settings)
    names = loaded.column_names
    if names is None:
        # Of some streams they are known once the first row is read.
        names = list(next(iter(loaded), {}))
    if column not in names:
        raise ValueError(f"{source} has no column {column!r}; it has {', '.join(names)}.")
    for row in loaded.select_columns(column):
        if text := lines_of(row[column], f"{source}, column {column!r}"):
            yield text


def load_split(source: str, settings: PretrainingSettings) -> Any:
    """The split that `settings` name, as a stream if asked."""
    import datasets

    split = settings.dataset_split
    if repository_of(source) is not None:
        return load_named(source, settings.dataset_config, split=split, streaming=settings.streaming)
    loaded = datasets.load_from_disk(source)
    if isinstance(loaded, datasets.DatasetDict):
        loaded = split_of(loaded, split, source)
    return loaded.to_iterable_dataset() if settings.streaming else loaded
