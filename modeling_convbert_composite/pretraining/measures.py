# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What a masked language model has learnt: losses and accuracies by token, the floor below it, and by length."""

import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import EvalPrediction, PreTrainedTokenizerBase, TrainerCallback

from modeling_convbert_composite import records
from modeling_convbert_composite.pretraining.examples import Ids, id_count
from modeling_convbert_composite.pretraining.masking import IGNORED
from modeling_convbert_composite.pretraining.prepared import PreparedData


class StepTimes(TrainerCallback):
    """Seconds of every optimiser step, and of the waits between steps: for data, evaluations and checkpoints."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.waits: list[float] = []
        self.start = self.end = 0.0

    def on_step_begin(self, *arguments: Any, **names: Any) -> None:
        self.start = time.perf_counter()
        if self.end:
            self.waits.append(self.start - self.end)

    def on_step_end(self, *arguments: Any, **names: Any) -> None:
        self.end = time.perf_counter()
        self.steps.append(self.end - self.start)

    @property
    def typical(self) -> float:
        """Seconds of a step and its wait for data: medians, which the few evaluations do not move. NaN of no step."""
        if not self.steps:
            return math.nan
        return statistics.median(self.steps) + statistics.median(self.waits or [0.0])


def token_scores(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Of every token to predict its loss and whether it is predicted right, (B, L) each, 0 elsewhere: far less to keep
    than logits.

    Args:
        logits: (N, vocabulary), of the N tokens with a label. labels: (B, L).
    """
    chosen = labels != IGNORED
    losses, right = (torch.zeros(labels.shape, device=labels.device) for _ in range(2))
    targets = labels[chosen]
    losses[chosen] = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
    right[chosen] = (logits.argmax(-1) == targets).float()
    return losses, right


def masked_metrics(outputs: EvalPrediction) -> dict[str, float]:
    """Mean over all masked tokens of the split, whatever the batches; accuracy of the order of pairs."""
    labels: Any = outputs.label_ids
    words, *order_labels = labels if isinstance(labels, (tuple, list)) else (labels,)
    predictions: Any = outputs.predictions
    losses, right, *order = predictions
    masked = words != IGNORED
    found = {"mlm_loss": float(losses[masked].mean()), "masked_accuracy": float(right[masked].mean())}
    if order:
        found["sentence_order_accuracy"] = float((order[0] == order_labels[0]).mean())
    return found


def unigram_floor(data: PreparedData, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
    """
    What a model reaches that knows how frequent tokens are and nothing else: loss in nats under the frequencies of the
    training data (one added to each), and the accuracy of the most frequent token.
    """
    size = id_count(tokenizer)
    counts = [np.zeros(size) for _ in range(2)]
    for count, examples in zip(counts, (data.train, data.validation), strict=True):
        for ids in all_ids(examples):
            count += np.bincount(ids, minlength=size)
        count[tokenizer.all_special_ids] = 0
    train, validation = counts
    shares = (train + 1) / (train + 1).sum()
    return {
        "mlm_loss": float(-(validation * np.log(shares)).sum() / validation.sum()),
        "masked_accuracy": float(validation[train.argmax()] / validation.sum()),
    }


def all_ids(examples: datasets.Dataset) -> Iterator[np.ndarray]:
    """All tokens, in arrays of many examples."""
    for batch in examples.with_format("arrow").iter(batch_size=1000):
        for name in ("first", "second", "input_ids"):
            if name in batch.column_names:
                yield batch[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)


def texts_of(examples: datasets.Dataset) -> Iterator[Ids]:
    """The texts of packed blocks, those that go on in the next block joined again; or of each pair its lines."""
    open_text: Ids = []
    longest = (
        max((len(ids) for ids in examples["input_ids"]), default=0) if "input_ids" in examples.column_names else 0
    )
    for example in examples:
        if "first" in example:
            yield example["first"] + example["second"]
            continue
        ids, start = example["input_ids"], 0
        for index, length in enumerate(example["lengths"]):
            piece = ids[start + 1 : start + length - 1]
            start += length
            text, open_text = (open_text + piece, []) if index == 0 else (piece, [])
            if start == len(ids) == longest:
                open_text = text
            else:
                yield text
    if open_text:
        yield open_text


def results_table(validation: dict[str, float], measures: dict[str, Any]) -> str:
    """Validation against the floor, and the loss by length."""
    floor = measures["floor"]
    rows = [
        [name, f"{value:.4f}", f"{floor[name]:.4f}" if name in floor else ""] for name, value in validation.items()
    ]
    with np.errstate(over="ignore"):
        rows.append(["perplexity", *(f"{np.exp(scores['mlm_loss']):.2f}" for scores in (validation, floor))])
    text = records.markdown_table(["validation", "model", "frequencies alone"], rows)
    if measures["by_length"]:
        rows = [
            [length, f"{scores['mlm_loss']:.4f}", f"{scores['masked_accuracy']:.4f}"]
            for length, scores in measures["by_length"].items()
        ]
        text += "\n" + records.markdown_table(["length", "loss", "accuracy"], rows)
    return text


def plot_lengths(by_length: dict[str, dict[str, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([int(length) for length in by_length], [scores["mlm_loss"] for scores in by_length.values()], marker="o")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("length in tokens")
    axes.set_ylabel("validation MLM loss")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
