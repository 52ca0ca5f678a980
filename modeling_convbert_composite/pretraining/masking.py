# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
From examples to batches: pairs are joined, tokens masked, texts padded. All choices of an example come from the seed
and the visit (epoch and example) alone, so that neither processes nor interruptions change a batch.
"""

from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from modeling_convbert_composite.pretraining.examples import BLANK_MARKS, id_count


IGNORED = -100
# WordPiece marks what goes on with a word; the others what begins one.
CONTINUES = "##"
WORD_MARKS = (CONTINUES, *BLANK_MARKS)
# Added to the scores of pairs that do not see each other: eager attention adds a mask, and knows no bools.
HIDDEN = -1e4
Array = np.ndarray


def join_pair(first: Array, second: Array, cls: int, sep: int, max_length: int) -> Array:
    """[CLS] A [SEP] B [SEP], cut at the end of B (or, if it must be, of A), the last [SEP] kept."""
    ids = np.concatenate([[cls], first, [sep], second])[: max_length - 1]
    return np.append(ids, sep)


def word_starts(tokenizer: PreTrainedTokenizerBase) -> Array:
    """Of every id, whether it begins a word: marked by SentencePiece and byte-level BPE, not marked by WordPiece."""
    marked = np.zeros((len(WORD_MARKS), id_count(tokenizer)), dtype=bool)
    for piece, index in tokenizer.get_vocab().items():
        marked[:, index] = [piece.startswith(mark) for mark in WORD_MARKS]
    # Another kind's mark may be a letter here: that of most pieces is meant.
    kind = int(marked.sum(1).argmax())
    return ~marked[kind] if WORD_MARKS[kind] == CONTINUES else marked[kind]


class MaskedBatch:
    """
    Collates examples that carry their `visit`.

    Args:
        probability: share of the tokens to predict; of these 80 % become [MASK], 10 % a random token, 10 % stay.
        fixed_length: pad to `max_length`, else to the longest of the batch.
        sentence_order: swap half of the pairs and label that (1 = swapped).
        borders: how a model is told where the texts of a block are: by `sequence_ids`, which ours take, or by an
            additive `attention_mask` of pairs and `position_ids` that start again, which transformers' models take.
        first_position: where those start; see `trial`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        seed: int,
        probability: float = 0.15,
        whole_words: bool = False,
        fixed_length: bool = False,
        sentence_order: bool = False,
        borders: Literal["sequence_ids", "pairs"] = "sequence_ids",
        first_position: int = 0,
    ):
        self.borders, self.first_position = borders, first_position
        self.max_length, self.seed, self.probability = max_length, seed, probability
        self.fixed_length, self.sentence_order = fixed_length, sentence_order
        self.cls, self.sep, self.mask, self.pad = (
            int(getattr(tokenizer, f"{name}_token_id")) for name in ("cls", "sep", "mask", "pad")
        )
        # Ids that the vocabulary leaves out are as little text.
        special = np.ones(id_count(tokenizer), dtype=bool)
        special[list(tokenizer.get_vocab().values())] = False
        special[tokenizer.all_special_ids] = True
        self.is_special = special
        self.replacements = np.flatnonzero(~special)
        self.starts = word_starts(tokenizer) if whole_words else None

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        rows = [self.example(example, np.random.default_rng((self.seed, example["visit"]))) for example in examples]
        width = self.max_length if self.fixed_length else max(len(row["input_ids"]) for row in rows)
        batch = {
            name: padded([row[name] for row in rows], width, fill)
            for name, fill in (("input_ids", self.pad), ("labels", IGNORED), ("attention_mask", 0))
        }
        if "lengths" in examples[0]:
            batch |= self.border_inputs([example["lengths"] for example in examples], batch)
        if "sentence_order_label" in rows[0]:
            batch["sentence_order_label"] = torch.tensor([row["sentence_order_label"] for row in rows])
        return batch

    def border_inputs(self, lengths: list[Array], batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Where the texts of each block are, from the lengths of its pieces."""
        width = batch["input_ids"].shape[1]
        pieces = [np.repeat(np.arange(len(row)), row) for row in lengths]
        # Padding is a piece of its own, which no other sees.
        sequence_ids = padded(pieces, width, -1)
        if self.borders == "sequence_ids":
            return {"sequence_ids": sequence_ids}
        start = self.first_position
        positions = [np.concatenate([np.arange(start, start + length) for length in row]) for row in lengths]
        is_seen = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
        return {
            "attention_mask": torch.where(is_seen, 0.0, HIDDEN),
            "position_ids": padded(positions, width, start),
        }

    def example(self, example: dict[str, Any], draw: np.random.Generator) -> dict[str, Any]:
        """One text, masked: `input_ids`, `labels`, `attention_mask` (from its length), and the order of a pair."""
        row: dict[str, Any] = {}
        if "first" in example:
            first, second = (np.asarray(example[name], np.int64) for name in ("first", "second"))
            if self.sentence_order:
                row["sentence_order_label"] = int(draw.random() < 0.5)
                first, second = (second, first) if row["sentence_order_label"] else (first, second)
            ids = join_pair(first, second, self.cls, self.sep, self.max_length)
        else:
            ids = np.asarray(example["input_ids"], np.int64)
        row["input_ids"], row["labels"] = self.masked(ids, draw)
        row["attention_mask"] = np.ones_like(ids)
        return row

    def masked(self, ids: Array, draw: np.random.Generator) -> tuple[Array, Array]:
        chosen = self.chosen(ids, draw)
        labels = np.where(chosen, ids, IGNORED)
        fate = draw.random(len(ids))
        random = self.replacements[draw.integers(len(self.replacements), size=len(ids))]
        inputs = np.where(chosen & (fate < 0.8), self.mask, ids)
        return np.where(chosen & (fate >= 0.9), random, inputs), labels

    def chosen(self, ids: Array, draw: np.random.Generator) -> Array:
        """Which tokens are to be predicted: each, or each word, with `probability`; never a special one."""
        is_text = ~self.is_special[ids]
        if self.starts is None:
            return is_text & (draw.random(len(ids)) < self.probability)
        # A word ends where the next begins, or a special token stands.
        word = np.cumsum(self.starts[ids] | ~is_text)
        return is_text & (draw.random(len(ids) + 1) < self.probability)[word]


def padded(rows: list[Array], width: int, fill: int) -> torch.Tensor:
    """Rows of ids as one tensor (B, width), filled up on the right."""
    batch = np.full((len(rows), width), fill, dtype=np.int64)
    for index, row in enumerate(rows):
        batch[index, : len(row)] = row
    return torch.from_numpy(batch)
