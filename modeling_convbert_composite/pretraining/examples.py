# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
From texts to examples of ids, as they are kept on disk:

- pairs (and the paper's files of ids): `first` and `second`, the ids of two lines, without special tokens;
- packed: `input_ids`, a block of pieces [CLS] ... [SEP], and `lengths`, the tokens of each piece.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from modeling_convbert_composite.pretraining.text import Text, decoded_lines


Ids = list[int]
Example = dict[str, Ids]

# How SentencePiece and byte-level BPE write a blank.
BLANK_MARKS = ("\u2581", "\u0120")
# Lines that are tokenised at once.
CHUNK = 1000


def id_count(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than the largest id: the rows of a table. A vocabulary may leave ids out."""
    return max(tokenizer.get_vocab().values()) + 1


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of `size` items; the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def encoded(lines: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[Ids]:
    """The ids of each line, without special tokens. What a text spells like a special token stays text."""
    for chunk in chunks(lines, CHUNK):
        yield from tokenizer(chunk, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]


def pairs(texts: Iterable[Text], tokenizer: PreTrainedTokenizerBase) -> Iterator[Example]:
    """The paper's pairing: lines 2m and 2m + 1 of all text, whatever the borders; an odd last line is lost."""
    ids = encoded(chain.from_iterable(texts), tokenizer)
    for pair in chunks(ids, 2):
        if len(pair) == 2:
            yield {"first": pair[0], "second": pair[1]}


class Packer:
    """
    Fills blocks of `max_length` tokens across texts: each text, or what of it fits, is a piece [CLS] ... [SEP]. A rest
    of two tokens holds no piece and stays free.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int):
        self.cls, self.sep = int(tokenizer.cls_token_id), int(tokenizer.sep_token_id)
        self.max_length = max_length
        self.block: Ids = []
        self.lengths: Ids = []

    def add(self, ids: Ids) -> Iterator[Example]:
        """Takes the ids of a text; yields the blocks that are full."""
        start = 0
        while start < len(ids):
            room = self.max_length - len(self.block) - 2
            if room < 1:
                yield from self.rest()
                continue
            piece = ids[start : start + room]
            start += len(piece)
            self.block += [self.cls, *piece, self.sep]
            self.lengths.append(len(piece) + 2)

    def rest(self) -> Iterator[Example]:
        """The block that is being filled, if there is one."""
        if self.block:
            yield {"input_ids": self.block, "lengths": self.lengths}
        self.block, self.lengths = [], []


def packed(texts: Iterable[Text], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Iterator[Example]:
    """All texts in blocks; the last may be shorter."""
    packer = Packer(tokenizer, max_length)
    for ids in text_ids(texts, tokenizer):
        yield from packer.add(ids)
    yield from packer.rest()


def text_ids(texts: Iterable[Text], tokenizer: PreTrainedTokenizerBase) -> Iterator[Ids]:
    """The ids of each text, its lines joined."""
    joint = line_joint(tokenizer)
    # Texts are tokenised many at a time, and told apart again by the number of their lines.
    for group in chunks(texts, 100):
        lines = (joint + line if number else line for text in group for number, line in enumerate(text))
        ids = encoded(lines, tokenizer)
        for text in group:
            yield list(chain.from_iterable(islice(ids, len(text))))


def line_joint(tokenizer: PreTrainedTokenizerBase) -> str:
    """What stands between the lines of a text: a blank for tokenizers that mark one but add none of their own."""
    alone, behind_blank = ("".join(tokenizer.tokenize(text)) for text in ("a", " a"))
    is_marked = behind_blank.startswith(BLANK_MARKS) and not alone.startswith(BLANK_MARKS)
    return " " if is_marked else ""


def id_files(paths: Iterable[Path], tokenizer: PreTrainedTokenizerBase) -> Iterator[Example]:
    """
    The paper's files of ids: a pair a line, ids with blanks between, [CLS] A [SEP] B [SEP].

    Raises:
        ValueError: a line that is no such pair, named by file and number.
    """
    separator, size = tokenizer.sep_token_id, id_count(tokenizer)
    for path in paths:
        for number, line in enumerate(decoded_lines(path, "strict"), 1):
            if not line.strip():
                continue
            try:
                ids = [int(part) for part in line.split()]
            except ValueError as error:
                raise ValueError(f"{path}, line {number} holds more than ids: {error}.") from error
            outside = next((value for value in ids if not 0 <= value < size), None)
            if outside is not None:
                raise ValueError(f"{path}, line {number}: id {outside} is beyond the tokenizer's {size}.")
            ends = [index for index, value in enumerate(ids) if value == separator]
            if ids[0] != tokenizer.cls_token_id or len(ends) != 2 or ends[1] != len(ids) - 1:
                raise ValueError(f"{path}, line {number} is no pair [CLS] A [SEP] B [SEP] of this tokenizer.")
            yield {"first": ids[1 : ends[0]], "second": ids[ends[0] + 1 : ends[1]]}
