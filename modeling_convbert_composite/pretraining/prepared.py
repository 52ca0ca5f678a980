# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Examples prepared once: memory-mapped Arrow files, found again by what they were made from."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow
from torch.utils.data import Dataset as TorchDataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from modeling_convbert_composite import records
from modeling_convbert_composite.pretraining.examples import (
    Example,
    Packer,
    id_files,
    line_joint,
    packed,
    pairs,
    text_ids,
)
from modeling_convbert_composite.pretraining.settings import PretrainingSettings
from modeling_convbert_composite.pretraining.text import file_texts, read_texts
from modeling_convbert_composite.run_folders import CHECKPOINTS, DATA, RECORDS, is_of_a_run


KEY = RECORDS[DATA]
SPLITS = ("train", "validation")
# Examples in one file, and in one batch of it.
SHARD, ROWS_AT_ONCE = 500_000, 1000
OF_THE_DATA = (
    *("dataset", "dataset_config", "dataset_split", "text_column", "validation_share"),
    *("errors", "format", "limit"),
)


@dataclass(frozen=True)
class PreparedData:
    """Examples to train and to validate on, memory-mapped; `key` is what they were made from, see `data_key`."""

    train: datasets.Dataset
    validation: datasets.Dataset
    key: dict[str, Any] = field(default_factory=dict)


def prepare(settings: PretrainingSettings, tokenizer: PreTrainedTokenizerBase) -> PreparedData:
    """
    The examples of a run: from `settings.prepared` (or OUTPUT/data) if they were made from the same text, else made
    and kept there. Text, a stream too, is read once.

    Raises:
        ValueError: text that cannot be read, or too little of it; a folder that holds other examples; another text
            than that of the run to be resumed. FileExistsError: OUTPUT/data is none of ours.
    """
    folder = settings.prepared or settings.output / DATA
    key = data_key(settings, tokenizer)
    check_same_text(settings, key)
    if settings.prepared is None:
        make_room(settings, folder, key)
    if folder.exists() and not is_made(folder, key):
        raise ValueError(f"{folder} holds examples of other text or settings; delete it, or take another --prepared.")
    if not folder.exists():
        try:
            make(settings, tokenizer, folder, key)
        except OSError:
            # Another run may have been first.
            if not is_made(folder, key):
                raise
    train, validation = (load(folder / name) for name in SPLITS)
    return PreparedData(train, validation, key)


def make_room(settings: PretrainingSettings, folder: Path, key: dict[str, Any]) -> None:
    """Removes what an earlier run has left in OUTPUT: examples of other text, and what a kill has left of any."""
    if folder.exists() and not is_of_a_run(folder):
        raise FileExistsError(
            f"{folder} is where examples go, and holds something else; move it, or name a folder with --prepared."
        )
    if not is_made(folder, key):
        shutil.rmtree(folder, ignore_errors=True)
    for scratch in filter(is_of_a_run, settings.output.glob(f".{DATA}.*")):
        shutil.rmtree(scratch, ignore_errors=True)


def check_same_text(settings: PretrainingSettings, key: dict[str, Any]) -> None:
    """Refuses to resume on other examples than those that the run began with, which its checkpoints name."""
    record = record_of(settings)
    if settings.resume and record.is_file() and records.read_json(record) != key:
        raise ValueError(
            f"The text, its tokenizer or how it is read has changed since the run in {settings.output} began. Restore "
            "it to --resume the run, or begin anew with --overwrite."
        )


def record_text(settings: PretrainingSettings, data: PreparedData) -> None:
    """Notes beside the checkpoints what the examples of the run were made from. Main process only."""
    if records.is_main_process():
        records.write_json(record_of(settings), data.key)


def record_of(settings: PretrainingSettings) -> Path:
    return settings.output / CHECKPOINTS / "examples.json"


def data_key(settings: PretrainingSettings, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """
    What examples depend on: of files their content and how it is read, not their place.

    Raises:
        OSError: a file that is not there.
    """
    key = {name: str(getattr(settings, name)) for name in OF_THE_DATA}
    digests = {
        split: [[path.suffix, digest_of(path)] for path in paths]
        for split, paths in zip(SPLITS, (settings.data, settings.validation), strict=True)
    }
    if settings.dataset and Path(settings.dataset).is_dir():
        # Each split's fingerprint stands in its state.
        digests["dataset"] = [[path.name, digest_of(path)] for path in sorted(Path(settings.dataset).rglob("*.json"))]
    key |= {"files": json.dumps(digests), "tokenizer": rules_digest(tokenizer)}
    if joint := line_joint(tokenizer):
        key["joint"] = joint
    # Pairs are cut when they are read; blocks are as long as they were packed.
    return key | ({"max_length": str(settings.max_length)} if settings.format == "packed" else {})


def is_made(folder: Path, key: dict[str, Any]) -> bool:
    """Whether a folder holds the examples that `key` describes."""
    return (folder / KEY).is_file() and records.read_json(folder / KEY) == key


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def rules_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Of all that decides how text is cut; whether it was last asked to pad or truncate is none of it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = json.loads(backend.to_str()) if backend is not None else sorted(tokenizer.get_vocab().items())
    if isinstance(rules, dict):
        rules |= {"padding": None, "truncation": None}
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()


def make(settings: PretrainingSettings, tokenizer: PreTrainedTokenizerBase, folder: Path, key: dict[str, Any]) -> None:
    """Writes beside, then renames, so that a killed run leaves nothing that looks whole."""
    with records.folder_beside(folder) as scratch:
        writers = {name: ShardWriter(scratch / name) for name in SPLITS}
        examples = split_examples(settings, tokenizer)
        for name, example in tqdm(examples, desc="Preparing", unit=" examples", disable=not records.is_main_process()):
            writers[name].write(example)
        for name, writer in writers.items():
            writer.close()
            if writer.count == 0:
                verb = {"train": "train", "validation": "validate"}[name]
                raise ValueError(
                    f"There is too little text to {verb} on: blank lines end a text, and --validation-share or "
                    "--validation holds some out."
                )
        records.write_json(scratch / KEY, key)


def split_examples(settings: PretrainingSettings, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, Example]]:
    """
    Every example with its split. Without files for validation the first of every n texts is held out, or of pairs the
    first of every n pairs.
    """
    if settings.validation:
        yield from (("train", example) for example in all_examples(settings, tokenizer, held=False))
        yield from (("validation", example) for example in all_examples(settings, tokenizer, held=True))
        return
    every = max(2, round(1 / settings.validation_share))
    names = ["validation"] + ["train"] * (every - 1)
    if settings.format != "packed":
        for index, example in enumerate(all_examples(settings, tokenizer, held=False)):
            yield names[index % every], example
        return
    packers = {name: Packer(tokenizer, settings.max_length) for name in SPLITS}
    for index, ids in enumerate(text_ids(read_texts(settings), tokenizer)):
        name = names[index % every]
        yield from ((name, block) for block in packers[name].add(ids))
    for name, packer in packers.items():
        yield from ((name, block) for block in packer.rest())


def all_examples(settings: PretrainingSettings, tokenizer: PreTrainedTokenizerBase, held: bool) -> Iterator[Example]:
    """The examples of the data, or of the files `held` out for validation."""
    if settings.format == "ids":
        if held:
            return id_files(settings.validation, tokenizer)
        return islice(id_files(settings.data, tokenizer), settings.limit)
    texts = file_texts(settings.validation, settings.errors, settings.text_column) if held else read_texts(settings)
    if settings.format == "pairs":
        return pairs(texts, tokenizer)
    return packed(texts, tokenizer, settings.max_length)


class ShardWriter:
    """Writes examples to Arrow files of `SHARD` examples each, in a folder."""

    def __init__(self, folder: Path):
        self.folder, self.count = folder, 0
        self.rows: list[Example] = []
        self.stream: pyarrow.RecordBatchStreamWriter | None = None
        folder.mkdir()

    def write(self, example: Example) -> None:
        self.rows.append(example)
        self.count += 1
        if len(self.rows) == ROWS_AT_ONCE:
            self.flush()
        if self.count % SHARD == 0:
            self.close()

    def flush(self) -> None:
        if not self.rows:
            return
        ids = pyarrow.list_(pyarrow.int32())
        batch = pyarrow.RecordBatch.from_pylist(
            self.rows, schema=pyarrow.schema([(name, ids) for name in self.rows[0]])
        )
        if self.stream is None:
            path = self.folder / f"{(self.count - 1) // SHARD:05}.arrow"
            self.stream = pyarrow.ipc.new_stream(str(path), batch.schema)
        self.stream.write_batch(batch)
        self.rows = []

    def close(self) -> None:
        self.flush()
        if self.stream is not None:
            self.stream.close()
        self.stream = None


def load(folder: Path) -> datasets.Dataset:
    """The examples of a folder, memory-mapped."""
    return datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in sorted(folder.iterdir())])


class Visits(TorchDataset):
    """
    Examples by visit: number `epoch * size + index` is example `index`, and tells the collator its number. So masks
    change from epoch to epoch, and depend on nothing else.
    """

    def __init__(self, examples: datasets.Dataset):
        self.examples = examples.with_format("numpy")

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, visit: int) -> dict[str, Any]:
        return {**self.examples[visit % len(self.examples)], "visit": visit}
