# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Pre-training: text to examples against plain references, masks, tokenizers, and runs that learn and resume."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from helpers import assert_states_equal
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_pipelines import WORDS, word_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    BertConfig,
    BertModel,
    ConvBertConfig,
    MPNetConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    TrainingArguments,
)

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.cli import main
from modeling_convbert_composite.configuration import load_preset
from modeling_convbert_composite.optimization import CompositeTrainer
from modeling_convbert_composite.pretraining.examples import Packer, id_files, packed, pairs, text_ids
from modeling_convbert_composite.pretraining.masking import IGNORED, MaskedBatch, join_pair, word_starts
from modeling_convbert_composite.pretraining.measures import StepTimes, results_table, texts_of, unigram_floor
from modeling_convbert_composite.pretraining.prepared import PreparedData, Visits, prepare
from modeling_convbert_composite.pretraining.run import build_config, lengths_of, pretrain, states_to_predict
from modeling_convbert_composite.pretraining.settings import PretrainingSettings, TokenizerSettings
from modeling_convbert_composite.pretraining.text import file_texts, read_texts
from modeling_convbert_composite.pretraining.tokenizers import cut, train_tokenizer
from modeling_convbert_composite.records import read_json, read_lines
from modeling_convbert_composite.settings import as_command, read_settings


CLS, SEP, MASK, PAD = 2, 3, 4, 0
# Words that are one token each.
PLAIN = [word for word in WORDS[5:] if not word.startswith("##")]
CORPUS = """the cat sat on the mat
a dog ran under the house

where is this big dog

what about the small cat
who ran
the mat is under the house . the dog sat on a mat and the cat ran about the big house
"""


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def make(tokenizer_folder: Path, tmp_path: Path) -> Callable[..., PretrainingSettings]:
    """Settings of a small run on some lines of words."""

    def settings(**changes: Any) -> PretrainingSettings:
        corpus = tmp_path / "corpus.txt"
        if not corpus.exists():
            corpus.write_text(word_texts(30))
        values: dict[str, Any] = {
            "architecture": "tiny",
            "tokenizer": tokenizer_folder,
            "output": tmp_path / "out",
            "data": (corpus,),
            "validation_share": 0.1,
            "max_length": 24,
            "max_steps": 6,
            "batch_size": 8,
            "warmup": 0.1,
            "eval_steps": 3,
            "save_steps": 2,
            "log_steps": 1,
            "learning_rate": 1e-3,
        }
        return PretrainingSettings(**(values | changes))

    return settings


def word_texts(count: int, seed: int = 0) -> str:
    """Texts of a few lines of known words."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        lines += [" ".join(draw.choice(PLAIN) for _ in range(draw.randint(2, 14))) for _ in range(4)] + [""]
    return "\n".join(lines)


def plain_ids(line: str) -> list[int]:
    return [WORDS.index(word) for word in line.split()]


# Text


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


TEXTS = [
    ["the cat sat on the mat", "a dog ran under the house"],
    ["where is this big dog"],
    CORPUS.strip().split("\n")[5:],
]


def test_lines_and_texts_of_a_file(tmp_path: Path) -> None:
    """Blank lines part texts; line ends of Windows, a byte-order mark and blanks at the ends vanish."""
    unix = write(tmp_path / "unix.txt", CORPUS)
    windows = write(tmp_path / "windows.txt", b"\xef\xbb\xbf" + CORPUS.replace("\n", " \r\n").encode())
    assert list(file_texts([unix])) == list(file_texts([windows])) == TEXTS
    one = write(tmp_path / "one.txt", "only a line")
    long = write(tmp_path / "long.txt", "word " * 300_000 + "\u2028 end")
    assert list(file_texts([one, long])) == [["only a line"], [("word " * 300_000 + "\u2028 end").strip()]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\nalso fine\nbad \xff byte\n", "a.txt is not UTF-8: byte 19 cannot be read; --errors replace"),
        ("a.txt", b"\n \n\r\n", "a.txt holds no text"),
        ("a.txt", b"", "a.txt holds no text"),
        ("a.doc", b"text", "a.doc must end in one of .txt, .jsonl, .parquet"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "b"}\n', "a.jsonl, line 2 has no 'text'; --text-column"),
        ("a.jsonl", b'{"text": 1}\n', "a.jsonl, line 1, 'text' must be text, got int"),
        ("a.jsonl", b"{oops\n", "a.jsonl, line 1 is not JSON"),
    ],
)
def test_text_that_cannot_be_read(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        list(file_texts([write(tmp_path / name, content)]))


def test_bytes_that_are_not_utf8_can_be_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"bad \xff byte\n")
    assert list(file_texts([path], errors="replace")) == [["bad \ufffd byte"]]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "folder", "stream"])
def test_other_columns_are_left_alone(form: str, make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    """R65: rows with more columns, and empty ones."""
    rows = [{"id": index, "text": "\n".join(text), "meta": "x y"} for index, text in enumerate(TEXTS)]
    rows.insert(1, {"id": 9, "text": "", "meta": "z"})
    whole = datasets.Dataset.from_list(rows)
    if form == "jsonl":
        settings = make(data=(write(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, rows)) + "\n"),))
    elif form == "parquet":
        whole.to_parquet(str(tmp_path / "a.parquet"))
        settings = make(data=(tmp_path / "a.parquet",))
    else:
        whole.save_to_disk(str(tmp_path / "data"))
        settings = make(data=(), dataset=str(tmp_path / "data"), streaming=form == "stream")
    assert list(read_texts(settings)) == TEXTS
    if form != "jsonl":
        with pytest.raises(ValueError, match="has no column 'body'; it has id, text, meta"):
            list(read_texts(replace(settings, text_column="body")))


def test_a_split_that_is_not_there(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"text": "a"}])}).save_to_disk(str(tmp_path / "data"))
    with pytest.raises(ValueError, match="has no split 'learn'; it has train"):
        list(read_texts(make(data=(), dataset=str(tmp_path / "data"), dataset_split="learn")))


# Examples


def reference_pairs(lines: list[str]) -> list[tuple[list[int], list[int]]]:
    return [(plain_ids(lines[index]), plain_ids(lines[index + 1])) for index in range(0, len(lines) - 1, 2)]


def reference_blocks(texts: list[list[str]], length: int) -> list[list[int]]:
    """Token by token: a block is closed when no piece of one token fits any more."""
    blocks: list[list[int]] = [[]]
    for text in texts:
        is_open = False
        for token in plain_ids(" ".join(text)):
            needed = 1 if is_open else 3
            if len(blocks[-1]) + needed > length or (is_open and len(blocks[-1]) + 1 > length):
                blocks.append([])
                is_open = False
            if is_open:
                blocks[-1].insert(-1, token)
            else:
                blocks[-1] += [CLS, token, SEP]
                is_open = True
    return [block for block in blocks if block]


def test_pairs_are_the_papers() -> None:
    """Lines 2m and 2m + 1, borders of texts ignored; the last of an odd number is lost."""
    lines = [line for text in TEXTS for line in text]
    assert len(lines) == 6
    for count in (6, 5):
        texts = [[line] for line in lines[:count]]
        found = [(example["first"], example["second"]) for example in pairs(texts, word_tokenizer())]
        assert found == reference_pairs(lines[:count])
    assert [example["first"] for example in pairs(TEXTS, word_tokenizer())][1] == plain_ids("where is this big dog")


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=8),
    length=st.integers(5, 20),
)
def test_blocks_are_the_references(sizes: list[list[int]], length: int) -> None:
    draw = random.Random(str(sizes))
    texts = [[" ".join(draw.choice(PLAIN) for _ in range(size)) for size in text] for text in sizes]
    tokenizer = word_tokenizer()
    blocks = list(packed(texts, tokenizer, length))
    assert [block["input_ids"] for block in blocks] == reference_blocks(texts, length)
    # Not a token is lost, and pieces add up to blocks.
    kept = [token for block in blocks for token in block["input_ids"] if token not in (CLS, SEP)]
    assert kept == [token for text in texts for line in text for token in plain_ids(line)]
    for block in blocks:
        assert sum(block["lengths"]) == len(block["input_ids"]) <= length
        ends = np.cumsum(block["lengths"])
        assert all(block["input_ids"][end - 1] == SEP for end in ends)
        assert all(block["input_ids"][end - size] == CLS for end, size in zip(ends, block["lengths"], strict=True))
    # All but the last are as full as can be.
    assert all(len(block["input_ids"]) >= length - 2 for block in blocks[:-1])


def test_texts_come_back_from_blocks() -> None:
    tokenizer = word_tokenizer()
    texts = [text.split("\n") for text in word_texts(12).strip().split("\n\n")]
    ids = [plain_ids(" ".join(text)) for text in texts]
    packer = Packer(tokenizer, 17)
    blocks = [block for text in ids for block in packer.add(text)] + list(packer.rest())
    found = list(texts_of(datasets.Dataset.from_list(blocks)))
    # Two texts whose border is that of a block are told apart by nothing, and come back as one.
    assert [token for text in found for token in text] == [token for text in ids for token in text]
    assert len(texts) - 3 <= len(found) <= len(texts)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 5 x 3 6 3", "line 2 holds more than ids"),
        ("2 5 3 9999 3", "line 2: id 9999 is beyond the tokenizer's"),
        ("2 5 3 6", r"line 2 is no pair \[CLS\] A \[SEP\] B \[SEP\]"),
        ("5 3 6 3", "line 2 is no pair"),
    ],
)
def test_files_of_ids(line: str, message: str, tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    good = write(tmp_path / "good.txt", "2 5 6 7 3 8 3\n\n2 9 3 10 11 3\r\n")
    assert list(id_files([good], tokenizer)) == [
        {"first": [5, 6, 7], "second": [8]},
        {"first": [9], "second": [10, 11]},
    ]
    with pytest.raises(ValueError, match=message):
        list(id_files([write(tmp_path / "bad.txt", f"2 5 3 6 3\n{line}\n")], tokenizer))


def test_the_last_separator_is_kept() -> None:
    first, second = np.array([10, 11, 12]), np.array([20, 21])
    assert join_pair(first, second, CLS, SEP, 20).tolist() == [2, 10, 11, 12, 3, 20, 21, 3]
    assert join_pair(first, second, CLS, SEP, 7).tolist() == [2, 10, 11, 12, 3, 20, 3]
    assert join_pair(first, second, CLS, SEP, 5).tolist() == [2, 10, 11, 12, 3]


def test_prepared_examples_are_used_again(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    settings = make(prepared=tmp_path / "shared")
    tokenizer = word_tokenizer()
    first = prepare(settings, tokenizer)
    written = (tmp_path / "shared" / "prepared.json").stat().st_mtime_ns
    assert prepare(replace(settings, seed=7, max_steps=9), tokenizer).train[:] == first.train[:]
    moved = shutil.copy(settings.data[0], tmp_path / "moved.txt")
    assert prepare(replace(settings, data=(Path(moved),)), tokenizer).train[:] == first.train[:]
    assert (tmp_path / "shared" / "prepared.json").stat().st_mtime_ns == written
    with pytest.raises(ValueError, match="holds examples of other text or settings"):
        prepare(replace(settings, max_length=30), tokenizer)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        prepare(replace(settings, data=(tmp_path / "nowhere.txt",)), tokenizer)
    settings.data[0].write_text(word_texts(5))
    with pytest.raises(ValueError, match="holds examples of other text or settings"):
        prepare(settings, tokenizer)
    texts = [text.split("\n") for text in word_texts(30).strip().split("\n\n")]
    kept = [text for index, text in enumerate(texts) if index % 10 != 0]
    assert [block["input_ids"] for block in first.train] == reference_blocks(kept, 24)
    assert [block["input_ids"] for block in first.validation] == reference_blocks(texts[::10], 24)


def test_preparation_that_fails_leaves_nothing(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.txt", word_texts(5).encode() + b"\xff\n")
    with pytest.raises(ValueError, match="is not UTF-8"):
        prepare(make(data=(bad,), prepared=tmp_path / "shared"), word_tokenizer())
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    with pytest.raises(ValueError, match="too little text to train on"):
        prepare(make(data=(write(tmp_path / "one.txt", "the cat"),)), word_tokenizer())


def test_many_shards(
    make: Callable[..., PretrainingSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tokenizer = word_tokenizer()
    whole = prepare(make(prepared=tmp_path / "one", format="pairs"), tokenizer)
    monkeypatch.setattr("modeling_convbert_composite.pretraining.prepared.SHARD", 7)
    monkeypatch.setattr("modeling_convbert_composite.pretraining.prepared.ROWS_AT_ONCE", 3)
    parts = prepare(make(prepared=tmp_path / "many", format="pairs"), tokenizer)
    assert len(list((tmp_path / "many" / "train").iterdir())) == 8
    assert parts.train[:] == whole.train[:]


# Masks


def batches(tokenizer: PreTrainedTokenizerFast, count: int, seed: int = 0, **options: Any) -> list[Any]:
    draw = np.random.default_rng(5)
    collate = MaskedBatch(tokenizer, max_length=64, seed=seed, **options)
    found, visit = [], 0
    for _ in range(count):
        examples = []
        for _ in range(8):
            size = int(draw.integers(2, 40))
            ids = draw.integers(5, len(tokenizer), size).tolist()
            examples.append({"first": ids[: size // 2], "second": ids[size // 2 :], "visit": visit})
            visit += 1
        found.append((examples, collate(examples)))
    return found


def test_masking_rates() -> None:
    """200 batches: 15 % chosen, of these 80 % [MASK] and 10 % random; special tokens and padding never."""
    tokenizer = word_tokenizer()
    real = chosen = masked = changed = 0
    for examples, batch in batches(tokenizer, 200):
        for row, example in enumerate(examples):
            ids = [CLS, *example["first"], SEP, *example["second"], SEP]
            labels, inputs = batch["labels"][row].tolist(), batch["input_ids"][row].tolist()
            assert batch["attention_mask"][row].tolist() == [1] * len(ids) + [0] * (len(labels) - len(ids))
            assert inputs[len(ids) :] == [PAD] * (len(labels) - len(ids))
            assert labels[len(ids) :] == [IGNORED] * (len(labels) - len(ids))
            for token, label, shown in zip(ids, labels, inputs, strict=False):
                if label == IGNORED:
                    assert shown == token
                    real += token not in (CLS, SEP)
                    continue
                assert label == token
                assert token not in (CLS, SEP)
                real, chosen = real + 1, chosen + 1
                masked += shown == MASK
                changed += shown not in (MASK, token)
                assert shown == MASK or shown >= 5
    assert chosen / real == pytest.approx(0.15, abs=0.005)
    assert masked / chosen == pytest.approx(0.80, abs=0.02)
    assert changed / chosen == pytest.approx(0.10, abs=0.02)


def test_the_same_seed_gives_the_same_batches() -> None:
    tokenizer = word_tokenizer()
    first, again, other = (batches(tokenizer, 5, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a[1][name], b[1][name]) for a, b in zip(first, again, strict=True) for name in a[1])
    assert not all(torch.equal(a[1]["labels"], b[1]["labels"]) for a, b in zip(first, other, strict=True))


def test_masks_depend_on_the_visit_alone(make: Callable[..., PretrainingSettings]) -> None:
    """Whatever the batch mates; and they change from epoch to epoch."""
    tokenizer = word_tokenizer()
    data = Visits(prepare(make(), tokenizer).train)
    collate = MaskedBatch(tokenizer, max_length=24, seed=3)
    alone = collate([data[4]])
    together = collate([data[1], data[4], data[9]])
    size = int(alone["attention_mask"].sum())
    for name in alone:
        assert torch.equal(together[name][1, :size], alone[name][0, :size])
    epoch = collate([data[4 + len(data)]])
    assert not torch.equal(epoch["labels"], alone["labels"])


@pytest.mark.parametrize("mark", ["##", "\u2581", "\u0120"])
def test_whole_words(mark: str) -> None:
    """All pieces of a word are chosen, or none; also at the right rate."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    names += [f"{mark}{name}" for name in "abcdefgh"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, "[UNK]")),
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    )
    starts = word_starts(tokenizer)
    assert starts[5] == (mark == "##") and starts[13] == (mark != "##")
    chosen = real = 0
    for examples, batch in batches(tokenizer, 60, whole_words=True):
        for row, example in enumerate(examples):
            ids = [CLS, *example["first"], SEP, *example["second"], SEP]
            is_chosen = (batch["labels"][row] != IGNORED).tolist()
            for position in range(2, len(ids)):
                if (
                    ids[position] not in (CLS, SEP)
                    and ids[position - 1] not in (CLS, SEP)
                    and not starts[ids[position]]
                ):
                    assert is_chosen[position] == is_chosen[position - 1]
            chosen, real = chosen + sum(is_chosen), real + len(ids) - 3
    assert chosen / real == pytest.approx(0.15, abs=0.02)


def test_lengths_of_pairs(make: Callable[..., PretrainingSettings]) -> None:
    examples = prepare(make(format="pairs"), word_tokenizer()).train
    expected = [len(example["first"]) + len(example["second"]) + 3 for example in examples]
    assert lengths_of(examples).tolist() == expected


def test_the_limit_is_of_the_training_text(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    line = f"{CLS} 7 {SEP} 8 {SEP}\n"
    train, validation = (write(tmp_path / f"{name}.ids", line * 9) for name in ("train", "validation"))
    found = prepare(make(data=(train,), validation=(validation,), format="ids", limit=5), word_tokenizer())
    assert (len(found.train), len(found.validation)) == (5, 9)


def test_the_order_of_pairs() -> None:
    """Half are swapped, labelled 1."""
    swapped = 0
    for examples, batch in batches(word_tokenizer(), 50, sentence_order=True):
        original = torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])
        for row, example in enumerate(examples):
            parts = [example["first"], example["second"]]
            label = int(batch["sentence_order_label"][row])
            swapped += label
            expected = [CLS, *parts[label], SEP, *parts[1 - label], SEP]
            assert original[row, : len(expected)].tolist() == expected
    assert swapped / 400 == pytest.approx(0.5, abs=0.08)


def test_fixed_length() -> None:
    shapes = {batch["input_ids"].shape for _, batch in batches(word_tokenizer(), 5, fixed_length=True)}
    assert shapes == {(8, 64)}


@pytest.mark.parametrize("kind", ["ours", "bert"])
def test_texts_of_a_block_do_not_see_each_other(kind: str) -> None:
    """Each piece of a packed, padded batch gets what it gets alone; positions start again."""
    from helpers import HEADS

    tokenizer = word_tokenizer()
    if kind == "ours":
        fields = {"position_embedding_type": "absolute", "depthwise_kernel": True}
        model: Any = HEADS["base"].build(vocab_size=len(WORDS), pad_token_id=0, **fields)
    else:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
        model = BertModel(BertConfig(vocab_size=len(WORDS), **sizes)).eval()
    collate = MaskedBatch(
        tokenizer, max_length=24, seed=0, probability=0.3, borders="sequence_ids" if kind == "ours" else "pairs"
    )
    texts = [
        [line] for line in ("the cat", "a dog ran", "where is this big dog", "who ran", "the mat is under a house")
    ]
    examples = [{**block, "visit": visit} for visit, block in enumerate(packed(texts, tokenizer, 14))]
    assert [len(example["lengths"]) for example in examples] == [3, 3, 1]
    batch = collate(examples)
    batch.pop("labels")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
        for row, example in enumerate(examples):
            start = 0
            for length in example["lengths"]:
                part = batch["input_ids"][row : row + 1, start : start + length]
                alone = model(input_ids=part).last_hidden_state[0]
                assert torch.allclose(states[row, start : start + length], alone, atol=1e-5)
                start += length


# Tokenizers


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece", "bpe"])
@pytest.mark.parametrize("cased", [False, True])
def test_training_a_tokenizer(kind: str, cased: bool, tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.txt", ("Der Fuß des Königs. The King's Émile reads 3 books!\n" + CORPUS) * 20)
    # Bytes alone are 256 pieces.
    size = {"bpe": 320, "wordpiece": 90, "sentencepiece": 53 if cased else 44}[kind]
    settings = TokenizerSettings(data=(corpus,), output=tmp_path / "out", kind=kind, vocab_size=size, cased=cased)  # type: ignore[arg-type]
    train_tokenizer(settings)
    assert (tmp_path / "out" / "spm.model").is_file() == (kind == "sentencepiece")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(tokenizer) <= size + 4
    encoded = tokenizer("the cat", "a dog")
    ids = encoded["input_ids"]
    assert ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id
    assert encoded["token_type_ids"] == [0] * ids.index(tokenizer.sep_token_id) + [0] + [1] * (
        len(ids) - ids.index(tokenizer.sep_token_id) - 1
    )
    assert tokenizer.decode(tokenizer("the cat sat", add_special_tokens=False)["input_ids"]).strip() == "the cat sat"
    name = "Émile" if cased else "emile"
    assert tokenizer.decode(tokenizer("Émile", add_special_tokens=False)["input_ids"]).strip() == name
    assert tokenizer.unk_token_id not in ids
    # In pre-training [MASK] stands for a word and its blank.
    plain, masked = (tokenizer(text)["input_ids"] for text in ("the cat sat", "the [MASK] sat"))
    place = masked.index(tokenizer.mask_token_id)
    assert masked[:place] == plain[:place]
    assert masked[place + 1 :] == plain[-len(masked) + place + 1 :]
    if not cased and kind != "bpe":
        # Every piece can be met.
        pieces = tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)
        assert [piece for piece in pieces if piece != piece.lower()] == []
    assert None not in (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.unk_token_id)
    with pytest.raises(FileExistsError, match="--overwrite"):
        train_tokenizer(settings)


def test_long_lines_train_a_tokenizer_too(tmp_path: Path) -> None:
    """SentencePiece would leave them out without a word."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=5)) for _ in range(40_000)]
    corpora = [write(tmp_path / f"{count}.txt", "\n".join([" ".join(words)] * count)) for count in (1, 2)]
    for corpus in corpora:
        settings = TokenizerSettings(data=(corpus,), output=tmp_path / f"of-{corpus.stem}", vocab_size=60)
        assert set("abcdefghij") <= train_tokenizer(settings).get_vocab().keys()
    assert [list(cut("ab cdefgh ij", size)) for size in (4, 20)] == [["ab", " cde", "fgh", " ij"], ["ab cdefgh ij"]]


def test_lines_of_a_text_are_words_apart(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    """A byte-level tokenizer that marks blanks and adds none of its own, as RoBERTa's."""
    corpus = write(tmp_path / "corpus.txt", CORPUS * 20)
    train_tokenizer(TokenizerSettings((corpus,), tmp_path / "bpe", "bpe", 320))
    content = json.loads((tmp_path / "bpe" / "tokenizer.json").read_text())
    content["pre_tokenizer"]["add_prefix_space"] = False
    (tmp_path / "bpe" / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bpe")
    (ids, *_) = text_ids([["a dog ran", "the cat sat"]], tokenizer)
    assert tokenizer.decode(ids) == "a dog ran the cat sat"
    assert int(word_starts(tokenizer)[ids].sum()) == 5  # all but the first
    (ids, *_) = text_ids([["a dog ran", "the cat sat"]], word_tokenizer())
    assert ids == plain_ids("a dog ran the cat sat")


def test_whole_words_of_text_without_blanks(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.txt", (CORPUS.replace(" ", "") * 20))
    train_tokenizer(TokenizerSettings((corpus,), tmp_path / "bpe", "bpe", 260))
    with pytest.raises(ValueError, match=r"--whole-words: .* tokens of the text are .* words"):
        pretrain(make(data=(corpus,), tokenizer=tmp_path / "bpe", whole_words=True))


def test_ids_that_a_vocabulary_leaves_out(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    """Tables have a row for them, and nothing becomes one of them."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {name: index for index, name in enumerate(names)} | {
        word: 10 + 3 * index for index, word in enumerate(PLAIN)
    }
    backend = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    )
    tokenizer.save_pretrained(tmp_path / "gaps")
    result = pretrain(make(tokenizer=tmp_path / "gaps", whole_words=True))
    assert read_json(result.output / "config.json")["vocab_size"] == max(vocabulary.values()) + 1
    collate = MaskedBatch(tokenizer, max_length=24, seed=0)
    assert set(collate.replacements) == set(vocabulary.values()) - set(range(5))


def test_a_tokenizer_replaces_tokenizers_alone(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.txt", CORPUS)
    settings = TokenizerSettings((corpus,), tmp_path / "out", "wordpiece", 60)
    train_tokenizer(settings)
    train_tokenizer(replace(settings, vocab_size=50, overwrite=True))
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == 50
    mine = write(tmp_path / "mine" / "thesis.tex", "x")
    with pytest.raises(FileExistsError, match="something else than a tokenizer"):
        train_tokenizer(replace(settings, output=mine.parent, overwrite=True))
    with pytest.raises(FileExistsError, match="is a file"):
        train_tokenizer(replace(settings, output=mine, overwrite=True))
    assert mine.read_text() == "x"
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "out", "mine"}


def test_a_vocabulary_that_does_not_fit(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.txt", CORPUS)
    with pytest.raises(ValueError, match="--vocab-size 5000 does not fit this text"):
        train_tokenizer(TokenizerSettings(data=(corpus,), output=tmp_path / "out", vocab_size=5000))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.txt"]


# Runs


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def order_corpus(count: int, seed: int) -> str:
    """Couples of words in random order: the neighbours of a word tell it, the words of its text do not."""
    draw = random.Random(seed)
    couples = list(zip(PLAIN[:8], PLAIN[8:16], strict=True))
    return "\n\n".join(" ".join(word for _ in range(5) for word in draw.choice(couples)) for _ in range(count))


@pytest.mark.parametrize("format", ["packed", "pairs"])
def test_a_tiny_corpus_is_learnt_by_heart(
    format: str, make: Callable[..., PretrainingSettings], tmp_path: Path
) -> None:
    corpus = write(tmp_path / "few.txt", "the cat sat on a mat\nwhere is this big dog\n\n" * 100)
    changes: dict[str, Any] = {"data": (corpus,), "validation": (corpus,), "format": format}
    changes |= {"max_steps": 320, "learning_rate": 5e-3, "dropout": 0.0, "batch_size": 16, "save_steps": 999}
    changes["fields"] = ("initializer_range=0.1",)
    result = pretrain(make(eval_steps=999, log_steps=50, **changes))
    assert result.metrics["validation"]["mlm_loss"] < 0.15
    assert result.metrics["validation"]["masked_accuracy"] > 0.95
    assert result.measures["floor"]["mlm_loss"] > 2


NO_KERNELS = ("fixed_kernel=false", "query_kernel=false")


def test_order_is_seen_by_kernels_alone(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    """Without positions: a model whose kernels count has an advantage that one without them cannot have."""
    corpus, held = (write(tmp_path / f"{seed}.txt", order_corpus(400 // (9 * seed + 1), seed)) for seed in (0, 1))
    losses = {}
    for name, fields in (("composite", ()), ("none", NO_KERNELS)):
        settings = make(
            output=tmp_path / name,
            data=(corpus,),
            validation=(held,),
            fields=fields,
            max_steps=260,
            eval_steps=999,
            log_steps=50,
            learning_rate=5e-3,
            dropout=0.0,
            batch_size=32,
            save_steps=999,
        )
        losses[name] = pretrain(settings).metrics["validation"]["mlm_loss"]
    assert losses["composite"] < 0.6 * losses["none"]


@pytest.mark.parametrize("format", ["packed", "pairs"])
def test_resuming_ends_with_the_same_weights(
    format: str, make: Callable[..., PretrainingSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the second epoch, with dropout: bit-equal, and every batch once."""
    changes: dict[str, Any] = {"format": format, "max_steps": 14, "keep_checkpoints": True}
    seen: dict[str, list[list[int]]] = {"whole": [], "parts": []}
    step = CompositeTrainer.training_step

    def record(name: str, stop_at: int | None) -> None:
        def training_step(self: CompositeTrainer, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            if self.state.global_step == stop_at:
                raise KeyboardInterrupt
            if self.state.global_step >= len(seen[name]):
                seen[name].append(inputs["input_ids"].flatten().tolist())
            else:
                assert inputs["input_ids"].flatten().tolist() == seen[name][self.state.global_step]
            return step(self, model, inputs, *args, **kwargs)

        monkeypatch.setattr(CompositeTrainer, "training_step", training_step)

    record("whole", None)
    whole = pretrain(make(output=tmp_path / "whole", **changes))
    settings = make(output=tmp_path / "parts", **changes)
    for stop_at in (3, 9):
        record("parts", stop_at)
        with pytest.raises(KeyboardInterrupt):
            pretrain(replace(settings, resume=True))
    record("parts", None)
    resumed = pretrain(replace(settings, resume=True))
    assert seen["parts"] == seen["whole"]
    assert_states_equal(weights(resumed.output), weights(whole.output))
    assert resumed.metrics["validation"] == whole.metrics["validation"]
    assert resumed.measures["tokens"] == whole.measures["tokens"]


def test_a_failed_save_leaves_the_last_checkpoint(
    make: Callable[..., PretrainingSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk while the second checkpoint is written: its reason is told, and the first one serves to go on."""
    whole = pretrain(make(output=tmp_path / "whole"))
    save = CompositeTrainer._save_optimizer_and_scheduler

    def fail(self: CompositeTrainer, folder: str) -> None:
        if folder.endswith("checkpoint-4"):
            raise OSError(28, "No space left on device", folder)
        save(self, folder)

    monkeypatch.setattr(CompositeTrainer, "_save_optimizer_and_scheduler", fail)
    settings = make(output=tmp_path / "parts")
    with pytest.raises(OSError, match="No space left on device"):
        pretrain(settings)
    monkeypatch.undo()
    assert not (settings.output / "results.json").exists()
    resumed = pretrain(replace(settings, resume=True))
    assert_states_equal(weights(resumed.output), weights(whole.output))


def test_what_a_run_leaves(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    result = pretrain(make(eval_lengths=(16, 48), sentence_order=False))
    assert set(result.measures["by_length"]) == {"16", "48"}
    assert result.measures["by_length"]["48"]["mlm_loss"] > 0
    names = {path.name for path in result.output.iterdir()}
    assert names > {"model.safetensors", "tokenizer.json", "results.md", "training.png", "lengths.png", "log.jsonl"}
    assert "checkpoints" not in names
    results = read_json(result.output / "results.json")
    assert [results["metrics"], results["measures"]] == json.loads(json.dumps([result.metrics, result.measures]))
    card = (result.output / "README.md").read_text()
    assert "| validation | masked_accuracy |" in card
    assert "convbert-composite pretrain" in card
    assert re.match("convbert-composite pretrain .*--architecture tiny", results["command"])
    assert [entry["step"] for entry in read_lines(result.output / "log.jsonl") if "eval_mlm_loss" in entry] == [3, 6]
    model = AutoModelForMaskedLM.from_pretrained(result.output)
    assert (model.config.vocab_size, model.config.pad_token_id) == (len(WORDS), 0)
    # The saved model is the one that was measured.
    tokenizer = AutoTokenizer.from_pretrained(result.output)
    data = prepare(make(), tokenizer)
    collate = MaskedBatch(tokenizer, max_length=24, seed=1)
    batch = collate([Visits(data.validation)[index] for index in range(len(data.validation))])
    with torch.no_grad():
        assert model(**batch).loss.item() == pytest.approx(result.metrics["validation"]["mlm_loss"], rel=1e-4)


def test_sentence_order_prediction(make: Callable[..., PretrainingSettings]) -> None:
    result = pretrain(make(format="pairs", sentence_order=True))
    assert 0 <= result.metrics["validation"]["sentence_order_accuracy"] <= 1
    assert AutoModelForPreTraining.from_pretrained(result.output)
    with pytest.raises(ValueError, match="--sentence-order needs pairs"):
        make(sentence_order=True)


def models_for_masks() -> dict[str, PreTrainedModel]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"vocab_size": len(WORDS)}
    own = ConvBertCompositeConfig(**sizes)
    return {
        "ours": AutoModelForMaskedLM.from_config(own),
        "ours with the order of pairs": AutoModelForPreTraining.from_config(own),
        "BERT": AutoModelForMaskedLM.from_config(BertConfig(**sizes)),
        "ConvBERT": AutoModelForMaskedLM.from_config(ConvBertConfig(embedding_size=32, **sizes)),
        "RoBERTa": AutoModelForMaskedLM.from_config(RobertaConfig(**sizes)),
    }


@pytest.mark.parametrize("name", ["ours", "ours with the order of pairs", "BERT", "ConvBERT", "RoBERTa"])
def test_logits_of_the_tokens_to_predict_suffice(name: str) -> None:
    """Loss and gradients are those of all logits, for our models and transformers'."""
    torch.manual_seed(0)
    model = models_for_masks()[name].eval()
    ids = torch.randint(4, len(WORDS), (3, 11))
    labels = torch.where(torch.rand(3, 11) < 0.3, ids, -100)
    more = {"sentence_order_label": torch.tensor([0, 1, 1])} if "pairs" in name else {}

    def gradients(few: bool) -> tuple[torch.Tensor, torch.Tensor, int]:
        model.zero_grad()
        with states_to_predict(model, labels) if few else nullcontext(labels) as targets:
            outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=targets, **more)
        outputs.loss.backward()
        flat = [part.grad.flatten() for part in model.parameters() if part.grad is not None]
        logits = outputs["prediction_logits" if "pairs" in name else "logits"]
        return outputs.loss.detach(), torch.cat(flat), logits.shape[0] * logits.shape[1]

    loss, gradient, count = gradients(few=False)
    few_loss, few_gradient, few_count = gradients(few=True)
    assert (count, few_count) == (33, int((labels != -100).sum()))
    torch.testing.assert_close(few_loss, loss, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(few_gradient, gradient, rtol=1e-4, atol=1e-6)
    assert gradients(few=False)[2] == 33


def test_going_on_from_a_checkpoint(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    first = pretrain(make())
    more: dict[str, Any] = {"architecture": None, "initial": str(first.output)}
    again = pretrain(make(output=tmp_path / "more", learning_rate=0.0, **more))
    assert_states_equal(weights(again.output), weights(first.output))
    other = pretrain(make(output=tmp_path / "dropout", learning_rate=0.0, dropout=0.25, **more))
    assert read_json(other.output / "config.json")["hidden_dropout_prob"] == 0.25
    assert_states_equal(weights(other.output), weights(first.output))


def test_a_checkpoint_is_measured_without_training(
    make: Callable[..., PretrainingSettings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = pretrain(make(eval_lengths=(16,)))
    more: dict[str, Any] = {"architecture": None, "initial": str(first.output), "max_steps": 0, "eval_lengths": (16,)}
    settings = make(output=tmp_path / "measured", seed=7, **more)
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(as_command("pretrain", settings))[1:])
    assert stop.value.code == 0
    measured = read_json(tmp_path / "measured" / "results.json")
    assert measured["metrics"]["validation"] == pytest.approx(first.metrics["validation"])
    assert measured["measures"]["by_length"]["16"] == pytest.approx(first.measures["by_length"]["16"])
    assert measured["steps"] == measured["measures"]["tokens"] == 0
    assert measured["base_model"] == str(first.output)
    assert "a second" not in capsys.readouterr().out
    # What it measures is not saved as if it were new.
    assert not {"model.safetensors", "README.md"} & {path.name for path in (tmp_path / "measured").iterdir()}
    # The tokenizer of the checkpoint is its own.
    alone = pretrain(replace(settings, output=tmp_path / "alone", tokenizer=None))
    assert alone.metrics == measured["metrics"]


def test_only_a_whole_checkpoint_is_measured(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    word_tokenizer().save_pretrained(tmp_path / "encoder")
    config = ConvBertCompositeConfig(**(load_preset("tiny").to_dict() | {"vocab_size": len(WORDS), "pad_token_id": 0}))
    AutoModel.from_config(config).save_pretrained(tmp_path / "encoder")
    settings = make(architecture=None, initial=str(tmp_path / "encoder"))
    with pytest.raises(ValueError, match="cannot be measured: it has no weights for mlm_head"):
        pretrain(replace(settings, max_steps=0))
    assert pretrain(settings).metrics["validation"]["mlm_loss"] > 0


def test_another_tokenizer_than_the_checkpoint_s(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    first = pretrain(make())
    other = tmp_path / "other"
    words = [*WORDS[:5], *reversed(WORDS[5:])]
    tokenizer = word_tokenizer()
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend["model"]["vocab"] = {word: index for index, word in enumerate(words)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(backend)), **tokenizer.special_tokens_map
    ).save_pretrained(other)
    with pytest.raises(ValueError, match="; leave it out"):
        pretrain(make(architecture=None, initial=str(first.output), tokenizer=other, output=tmp_path / "more"))


def test_a_checkpoint_with_another_tokenizer(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    settings = make(architecture=None, initial=str(tmp_path / "small"))
    small = load_preset("tiny").to_dict() | {"vocab_size": len(WORDS) - 1}
    ConvBertCompositeConfig(**small).save_pretrained(tmp_path / "small")
    with pytest.raises(ValueError, match=f"has {len(WORDS) - 1} tokens, less than"):
        pretrain(settings)
    assert not settings.output.exists()


def test_models_of_transformers_take_the_same_path(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    config.max_position_embeddings = 64
    config.save_pretrained(tmp_path / "bert")
    result = pretrain(make(architecture=str(tmp_path / "bert"), eval_lengths=(32, 128)))
    assert result.metrics["validation"]["mlm_loss"] > 0
    assert result.notes == ["No loss at length 128: the position table ends at 64."]


@pytest.mark.parametrize("kind", ["ours", "BERT"])
def test_accumulated_batches_end_with_the_weights_of_whole_ones(
    kind: str, make: Callable[..., PretrainingSettings], tmp_path: Path
) -> None:
    """Parts have other numbers of tokens to predict, some none at all."""
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = (ConvBertCompositeConfig if kind == "ours" else BertConfig)(intermediate_size=32, **sizes)
    config.save_pretrained(tmp_path / "config")
    changes: dict[str, Any] = {"architecture": str(tmp_path / "config"), "dropout": 0.0, "adam_epsilon": 1e-3}
    changes |= {"mlm_probability": 0.04, "max_length": 12, "max_steps": 4}
    runs = [pretrain(make(output=tmp_path / str(parts), accumulate=parts, **changes)) for parts in (1, 8)]
    for name, tensor in weights(runs[0].output).items():
        assert torch.allclose(weights(runs[1].output)[name], tensor, atol=1e-5), name
        assert tensor.isfinite().all()


PEERS: dict[str, Any] = {
    "bert": BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32),
    "roberta": RobertaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=26
    ),
    "mpnet": MPNetConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32),
    "convbert": ConvBertConfig(
        hidden_size=32, embedding_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    ),
}


@pytest.mark.parametrize(
    ("kind", "attention"),
    [("bert", "sdpa"), ("bert", "eager"), ("roberta", "sdpa"), ("roberta", "eager"), ("mpnet", None)],
)
def test_packed_texts_of_other_models_are_what_they_are_alone(
    kind: str, attention: str | None, make: Callable[..., PretrainingSettings], tmp_path: Path
) -> None:
    """The measured loss is that of each text for itself, with the positions that the model gives it."""
    torch.manual_seed(0)
    config = PEERS[kind]
    config.vocab_size, config.initializer_range = len(WORDS), 0.3
    model = AutoModelForMaskedLM.from_config(config).eval()
    model.save_pretrained(tmp_path / kind)
    word_tokenizer().save_pretrained(tmp_path / kind)
    more: dict[str, Any] = {"architecture": None, "tokenizer": None, "max_steps": 0, "max_length": 22}
    result = pretrain(make(initial=str(tmp_path / kind), attention=attention, **more))
    tokenizer = word_tokenizer()
    collate = MaskedBatch(tokenizer, max_length=22, seed=1)
    total, count = 0.0, 0
    for visit, example in enumerate(prepare(make(initial=str(tmp_path / kind), **more), tokenizer).validation):
        row = collate.example({**example, "visit": visit}, np.random.default_rng((1, visit)))
        ids, labels = (torch.from_numpy(row[name]).split(example["lengths"]) for name in ("input_ids", "labels"))
        for text, targets in zip(ids, labels, strict=True):
            with torch.no_grad():
                logits = model(text[None]).logits[0]
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
            count += int((targets != IGNORED).sum())
    assert result.metrics["validation"]["mlm_loss"] == pytest.approx(total / count, rel=1e-4)


def test_packed_texts_in_bfloat16(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    """Whether a model keeps texts apart is found in float32: bfloat16 cannot tell."""
    config = RobertaConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=26,
        pad_token_id=0,
    )
    config.save_pretrained(tmp_path / "roberta")
    run = pretrain(make(architecture=str(tmp_path / "roberta"), bf16=True, max_steps=1, max_length=20))
    assert np.isfinite(run.metrics["validation"]["mlm_loss"])


def test_what_a_model_cannot_take_is_found_first(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    PEERS["convbert"].save_pretrained(tmp_path / "convbert")
    PEERS["roberta"].save_pretrained(tmp_path / "roberta")
    with pytest.raises(ValueError, match="A convbert with the attention 'eager' cannot take packed texts"):
        pretrain(make(architecture=str(tmp_path / "convbert")))
    # 26 rows less those of padding.
    with pytest.raises(ValueError, match="A roberta of these settings cannot take 26 tokens"):
        pretrain(make(architecture=str(tmp_path / "roberta"), max_length=26, format="pairs"))
    with pytest.raises(ValueError, match="The model has 10 tokens, less than the"):
        pretrain(make(fields=("vocab_size=10",)))
    assert not (tmp_path / "out").exists()
    assert pretrain(make(architecture=str(tmp_path / "convbert"), format="pairs")).metrics


@pytest.mark.parametrize("name", ["mask", "pad", "cls", "sep"])
def test_tokenizers_that_lack_a_token(name: str, make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    setattr(tokenizer, f"{name}_token", None)
    tokenizer.save_pretrained(tmp_path / "lacking")
    with pytest.raises(ValueError, match=rf"has no \[{name.upper()}\]"):
        pretrain(make(tokenizer=tmp_path / "lacking"))
    with pytest.raises(FileNotFoundError, match="There is no folder nowhere for --tokenizer"):
        pretrain(make(tokenizer=Path("nowhere")))


def test_text_without_a_token_to_predict(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    unknown = write(tmp_path / "unknown.txt", "xyzzy plugh\n\n" * 40)
    with pytest.raises(ValueError, match="no token to predict in the text to train on"):
        pretrain(make(data=(unknown,)))
    few = write(tmp_path / "few.txt", "the\n")
    with pytest.raises(ValueError, match="no token to predict in the text to validate on"):
        pretrain(make(validation=(few,)))


def test_what_spells_a_special_token_is_text(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    spelt = write(tmp_path / "spelt.txt", "the [MASK] [SEP] cat [PAD] sat\n\n" * 30)
    examples = prepare(make(data=(spelt,)), word_tokenizer()).train
    ids = [value for block in examples["input_ids"] for value in block]
    assert MASK not in ids and PAD not in ids
    assert ids.count(SEP) == sum(len(lengths) for lengths in examples["lengths"])


def test_stale_examples_are_seen(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    """Another tokenizer with the same vocabulary, another content of a folder of datasets."""
    tokenizer = word_tokenizer()
    prepare(make(prepared=tmp_path / "shared"), tokenizer)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(backend)), **tokenizer.special_tokens_map
    )
    with pytest.raises(ValueError, match="holds examples of other text or settings"):
        prepare(make(prepared=tmp_path / "shared"), other)
    kept: dict[str, Any] = {"data": (), "dataset": str(tmp_path / "set"), "prepared": tmp_path / "of-set"}
    for words in ("the cat sat", "a dog ran"):
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        datasets.Dataset.from_dict({"text": [words] * 30}).save_to_disk(str(tmp_path / "set"))
        if words == "the cat sat":
            prepare(make(**kept), tokenizer)
    with pytest.raises(ValueError, match="holds examples of other text or settings"):
        prepare(make(**kept), tokenizer)


def test_two_runs_prepare_the_same_folder(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    """Whoever comes second takes what the first has made; nobody writes into the other's."""
    settings = make(prepared=tmp_path / "shared", data=(write(tmp_path / "corpus.txt", word_texts(3000)),))
    expected = prepare(make(data=settings.data, prepared=tmp_path / "alone"), word_tokenizer())
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: prepare(settings, word_tokenizer()), range(3)))
    assert all(len(data.train) == len(expected.train) for data in found)
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "shared", "alone"}


def test_folders_that_hold_no_run(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    mine = write(tmp_path / "out" / "model.safetensors", "mine")
    with pytest.raises(FileExistsError, match="holds no run that --resume could go on with"):
        pretrain(make(resume=True))
    with pytest.raises(FileExistsError, match="is not empty"):
        pretrain(make())
    assert mine.read_text() == "mine"
    mine.unlink()
    # What a run leaves that failed before its first step is in nobody's way.
    with pytest.raises(ValueError, match="--schedule must be one of linear"):
        pretrain(make(schedule="warmup_stable_decay"))
    prepare(make(), word_tokenizer())
    # A kill leaves more: the folder in which examples were being written.
    (tmp_path / "out" / ".data.ab12").mkdir()
    write(tmp_path / "out" / ".data.ab12" / "data" / "00000.arrow", "half")
    assert pretrain(make()).metrics
    assert list((tmp_path / "out").glob(".*")) == []


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["data", "checkpoints", ".data.old"])
def test_what_is_not_ours_is_not_deleted(
    name: str, overwrite: bool, make: Callable[..., PretrainingSettings], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    thesis = write(tmp_path / "out" / name / "thesis.txt", "mine")
    is_in_the_way = name != ".data.old" or not overwrite
    refused = pytest.raises(FileExistsError, match=r"is not empty|holds something else")
    with refused if is_in_the_way else nullcontext():
        pretrain(make(overwrite=overwrite))
    assert thesis.read_text() == "mine"


def test_a_run_resumes_with_its_own_text_alone(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    settings = make(keep_checkpoints=True)
    pretrain(settings)
    (settings.output / "results.json").unlink()
    settings.data[0].write_text(word_texts(30, seed=1))
    shutil.rmtree(settings.output / "data")
    for prepared in (None, tmp_path / "elsewhere"):
        with pytest.raises(ValueError, match=r"has changed since the run in .* began"):
            pretrain(replace(settings, resume=True, prepared=prepared))


def test_resuming_at_the_end_takes_no_step_more(make: Callable[..., PretrainingSettings]) -> None:
    """Killed after the last checkpoint, or after `results.json`: the same end, with all that belongs to it."""
    # A constant rate, so that a step too many would be seen.
    settings = make(keep_checkpoints=True, schedule="constant")
    whole = pretrain(settings)
    expected = weights(whole.output)
    for lost in ("results.json", "README.md"):
        (settings.output / lost).unlink()
        again = pretrain(replace(settings, resume=True))
        assert_states_equal(weights(again.output), expected)
        assert again.metrics == whole.metrics and again.measures["tokens"] == whole.measures["tokens"]
        steps = [[entry["step"] for entry in run.history if "train_loss" not in entry] for run in (again, whole)]
        assert steps[0] == steps[1]
        assert (settings.output / lost).is_file()
    pretrain(replace(settings, resume=True, keep_checkpoints=False))
    assert not (settings.output / "checkpoints").exists()


def test_a_loss_that_is_no_number(make: Callable[..., PretrainingSettings]) -> None:
    """A run that went wrong ends with a note, and with JSON that every reader takes."""
    settings = make(learning_rate=1e30, clip=1e30, schedule="constant", warmup=0)
    result = pretrain(settings)
    assert np.isnan(result.metrics["validation"]["mlm_loss"]) and "not finite" in result.notes[0]
    text = (settings.output / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["metrics"]["validation"]["mlm_loss"] is None
    again = pretrain(replace(settings, resume=True))
    assert np.isnan(again.metrics["validation"]["mlm_loss"])
    measures = {"floor": {"mlm_loss": 6.0}, "by_length": {}}
    assert "| perplexity | inf |" in results_table({"mlm_loss": 800.0}, measures)


def test_overwriting_with_other_data(make: Callable[..., PretrainingSettings]) -> None:
    first = pretrain(make(eval_lengths=(16,)))
    assert (first.output / "lengths.png").is_file()
    second = pretrain(make(overwrite=True, max_length=16))
    assert not (second.output / "lengths.png").exists()


def test_the_order_of_pairs_and_the_loss_by_length(make: Callable[..., PretrainingSettings]) -> None:
    result = pretrain(make(format="pairs", sentence_order=True, eval_lengths=(16,)))
    assert result.measures["by_length"]["16"].keys() == {"mlm_loss", "masked_accuracy"}
    assert "sentence_order_accuracy" in result.metrics["validation"]


def test_outputs_beyond_the_logits_do_no_harm(make: Callable[..., PretrainingSettings]) -> None:
    """R62: a config may ask for hidden states and attention maps."""
    plain = pretrain(make(dropout=0.0))
    shutil.rmtree(plain.output)
    fields = ("output_hidden_states=true", "output_attentions=true")
    more = pretrain(make(dropout=0.0, fields=fields, attention="eager"))
    assert more.metrics["validation"] == pytest.approx(plain.metrics["validation"], abs=1e-4)


def test_several_gpus_in_one_process_are_refused(
    make: Callable[..., PretrainingSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(ValueError, match="2 GPUs need a process each: torchrun --nproc-per-node 2"):
        pretrain(make())


@pytest.mark.slow
def test_compiled_training_ends_as_the_plain_one(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    changes: dict[str, Any] = {"dropout": 0.0, "adam_epsilon": 1e-3, "fixed_length": True}
    plain, compiled = (pretrain(make(output=tmp_path / str(on), compile=on, **changes)) for on in (False, True))
    assert compiled.metrics["validation"] == pytest.approx(plain.metrics["validation"], abs=1e-4)
    for name, tensor in weights(plain.output).items():
        assert torch.allclose(weights(compiled.output)[name], tensor, atol=1e-5), name


def test_the_floor_by_hand() -> None:
    def data(ids: list[int]) -> datasets.Dataset:
        return datasets.Dataset.from_list([{"input_ids": [CLS, *ids, SEP], "lengths": [len(ids) + 2]}])

    tokenizer = word_tokenizer()
    floor = unigram_floor(PreparedData(data([7, 7, 7, 9]), data([7, 9, 9, 11])), tokenizer)
    # One is added to every count, of special tokens too.
    total = 4 + len(tokenizer)
    expected = -np.mean([np.log(4 / total), np.log(2 / total), np.log(2 / total), np.log(1 / total)])
    assert floor == {"mlm_loss": pytest.approx(expected), "masked_accuracy": 0.25}


def test_the_time_of_a_step_leaves_evaluations_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # Steps of 2, 4 and 3 seconds; waits of 1, 50 (an evaluation) and 1 between them.
    clock = iter([10.0, 12.0, 13.0, 17.0, 67.0, 70.0, 71.0, 74.0])
    monkeypatch.setattr("modeling_convbert_composite.pretraining.measures.time.perf_counter", lambda: next(clock))
    times = StepTimes()
    assert np.isnan(times.typical)
    for _ in range(4):
        times.on_step_begin()
        times.on_step_end()
    assert (times.steps, times.waits) == ([2, 4, 3, 3], [1, 50, 1])
    assert times.typical == 3 + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "giant"}, "--architecture must be a preset .*'giant'"),
        ({"fields": ("kernel_sise=9",)}, "no field 'kernel_sise'"),
        ({"fields": ("kernel_size=8",)}, "kernel_size"),
        ({"fields": ("kernel_size",)}, "--fields must be name=value, got 'kernel_size'"),
        (
            {"fields": ("position_embedding_type=absolute", "max_position_embeddings=16")},
            "--max-length 24 is more than the 16",
        ),
    ],
)
def test_wrong_architectures(changes: dict[str, Any], message: str, make: Callable[..., PretrainingSettings]) -> None:
    with pytest.raises(ValueError, match=message):
        build_config(make(**changes), word_tokenizer())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": ()}, "--data FILES or as --dataset"),
        ({"mlm_probability": 0.0}, "--mlm-probability must lie between 0 and 1"),
        ({"max_length": 4}, "--max-length must be at least 5"),
        ({"eval_lengths": (64, 2)}, "--eval-lengths must be at least 5 each, got 2"),
        ({"validation_share": 0.6}, "--validation-share must lie between 0 and 0.5"),
        ({"dropout": 1.0}, "--dropout must be at least 0 and below 1"),
        ({"clip": -1.0}, "--clip must be at least 0"),
        ({"kernel_learning_rate": -5.0}, "--kernel-learning-rate must be at least 0"),
        ({"accumulate": 3}, "--accumulate 3 must divide --batch-size 8"),
        ({"max_steps": -1}, "--max-steps must be at least 0"),
        ({"initial": "there"}, "--architecture for random weights or --initial for a checkpoint, one of the two"),
        ({"architecture": None}, "--architecture for random weights or --initial"),
        ({"tokenizer": None}, "--tokenizer is missing: train-tokenizer makes one"),
        ({"log_steps": 0}, "--log-steps must be at least 1"),
        ({"data": (), "dataset": "name", "format": "ids"}, "--format ids reads files of ids"),
    ],
)
def test_wrong_settings(changes: dict[str, Any], message: str, make: Callable[..., PretrainingSettings]) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_length:", "max_length must be a whole number, got None"),
        ("validation:", "validation must be a list .a,b., got None"),
        ("eval_lengths: [a]", "eval_lengths must be whole numbers .64,128., got"),
        ("output:", "output must be a path, got None"),
    ],
)
def test_values_of_a_yaml_file(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_settings(PretrainingSettings, write(tmp_path / "run.yaml", line), {})


def test_a_number_for_a_list(tmp_path: Path) -> None:
    known = {"architecture": "tiny", "tokenizer": "there", "output": "out", "data": "corpus.txt"}
    found = read_settings(PretrainingSettings, write(tmp_path / "run.yaml", "eval_lengths: 16"), known)
    assert found.eval_lengths == (16,)


def test_a_flag_given_twice_is_one_list(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    other = write(tmp_path / "other.txt", word_texts(30, seed=1))
    settings = make()
    command = shlex.split(as_command("pretrain", settings))[1:]
    with pytest.raises(SystemExit) as stop:
        main([*command, "--data", str(other), "--eval-lengths", "16", "--eval-lengths", "8,12,"])
    assert stop.value.code == 0
    found = read_json(settings.output / "results.json")
    assert found["settings"]["data"] == [str(settings.data[0]), str(other)]
    assert list(found["measures"]["by_length"]) == ["16", "8", "12"]


def test_the_command(make: Callable[..., PretrainingSettings], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(as_command("pretrain", make(max_steps=2)).split()[1:])
    printed = capsys.readouterr().out
    assert stop.value.code == 0
    assert "tiny, 2 steps" in printed and "tokens, " in printed and "Saved" in printed


@pytest.mark.slow
@pytest.mark.ci
def test_killed_at_random_steps(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    """kill -9, three times, wherever it hits; then the weights of an uninterrupted run."""
    settings = make(output=tmp_path / "killed", max_steps=60, save_steps=4, eval_steps=20)
    settings.data[0].write_text(word_texts(300))
    whole = pretrain(replace(settings, output=tmp_path / "whole"))
    command = [sys.executable, "-m", "modeling_convbert_composite"]
    command += as_command("pretrain", replace(settings, resume=True)).split()[1:]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet: dict[str, Any] = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    draw = random.Random(time.time_ns())
    for goal in sorted(draw.sample(range(5, 50), 3)):
        running = subprocess.Popen(command, **quiet)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and running.poll() is None:
            steps = [int(path.name[11:]) for path in (settings.output / "checkpoints").glob("checkpoint-*")]
            if max(steps, default=0) >= goal - goal % 4:
                break
            time.sleep(0.01)
        time.sleep(draw.random() / 5)
        assert running.poll() is None and steps, "it must be killed while it trains"
        running.send_signal(signal.SIGKILL)
        running.wait()
    subprocess.run(command, check=True, **quiet)
    assert_states_equal(weights(settings.output), weights(whole.output))


@pytest.mark.slow
@pytest.mark.ci
def test_two_processes_give_the_weights_of_one(make: Callable[..., PretrainingSettings], tmp_path: Path) -> None:
    """The same global batch and masks; dropout off."""
    settings = make(dropout=0.0, max_steps=14, adam_epsilon=1e-3, keep_checkpoints=True)
    alone = pretrain(settings)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29613"]
    command += ["-m", "modeling_convbert_composite"]
    command += as_command("pretrain", replace(settings, output=tmp_path / "two")).split()[1:]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr[-3000:]
    for name, tensor in weights(alone.output).items():
        assert torch.allclose(weights(tmp_path / "two")[name], tensor, atol=1e-5), name
    found = read_json(tmp_path / "two" / "results.json")["metrics"]
    assert found["validation"] == pytest.approx(alone.metrics["validation"], abs=1e-4)
    # Interrupted within a later epoch.
    expected = weights(tmp_path / "two")
    (tmp_path / "two" / "results.json").unlink()
    shutil.rmtree(tmp_path / "two" / "checkpoints" / "checkpoint-14")
    result = subprocess.run(
        [*command, "--resume"], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert result.returncode == 0, result.stderr[-3000:]
    for name, tensor in weights(tmp_path / "two").items():
        assert torch.allclose(expected[name], tensor, atol=1e-7), name


@pytest.mark.slow
@pytest.mark.ci
def test_sharded_parameters_get_the_gradients_of_one_process(tmp_path: Path) -> None:
    """FSDP on two CPU processes, by torch itself: accelerate has it for accelerators only."""
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(load_preset("tiny")).train()
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    model.save_pretrained(tmp_path)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path).train()
    ids = torch.randint(5, 100, (4, 12))
    labels = torch.where(torch.rand(4, 12) < 0.3, ids, IGNORED)
    torch.save({"input_ids": ids, "labels": labels}, tmp_path / "batch.pt")
    torch.save((labels != IGNORED).sum(), tmp_path / "items.pt")
    model(input_ids=ids, labels=labels).loss.backward()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29617"]
    command += [str(Path(__file__).with_name("sharded_step.py")), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr[-3000:]
    found = load_file(tmp_path / "gradients.safetensors")
    expected = {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)


def test_a_folder_that_cannot_be_written(make: Callable[..., PretrainingSettings]) -> None:
    """Even root writes no files below /proc. Nothing has been trained by then."""
    with pytest.raises(OSError):
        pretrain(make(output=Path("/proc/nowhere")))
