# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Losses of the task heads. They differ from transformers' in two ways that training needs:

- every loss is a sum over labels divided by a count. The Trainer passes that count for a whole accumulated step as
  `num_items_in_batch`; a head that ignored it would train with the gradient times the number of micro-batches;
- labels that are all -100 give 0, not 0 / 0.
"""

from typing import Literal

import torch
from torch import nn


IGNORED = -100


def widen(logits: torch.Tensor) -> torch.Tensor:
    """Losses are taken in float32 at least, whatever the model computes in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def mean_over_labels(
    losses: torch.Tensor, counted: torch.Tensor, num_items: torch.Tensor | int | None
) -> torch.Tensor:
    """The sum of `losses` where `counted`, divided by `num_items`, or if there is none by the number counted."""
    total = losses.masked_fill(~counted, 0).sum()
    if num_items is None:
        return total / counted.sum().clamp(min=1)
    if isinstance(num_items, torch.Tensor):
        return total / num_items.to(total.device).clamp(min=1)
    return total / max(num_items, 1)


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Cross-entropy: `logits` (..., classes), `labels` (...) with -100 ignored."""
    labels = labels.to(logits.device).reshape(-1)
    losses = nn.functional.cross_entropy(
        widen(logits).flatten(0, -2), labels.long(), ignore_index=IGNORED, reduction="none"
    )
    return mean_over_labels(losses, labels != IGNORED, num_items)


def sentence_loss(
    logits: torch.Tensor,
    sentence_labels: torch.Tensor,
    token_labels: torch.Tensor | None,
    num_items: torch.Tensor | int | None,
) -> torch.Tensor:
    """
    Loss of the sentence head in pre-training: `logits` (B, 2), `sentence_labels` (B,).

    `num_items` counts token labels, so a micro-batch weighs as its share of them: the weights of one step add up to 1.
    """
    loss = cross_entropy(logits, sentence_labels)
    if token_labels is None or num_items is None:
        return loss
    return loss * mean_over_labels(torch.ones_like(token_labels, dtype=loss.dtype), token_labels != IGNORED, num_items)


def question_answering_loss(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_positions: torch.Tensor | None,
    end_positions: torch.Tensor | None,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor | None:
    """Mean of the losses of start and end: logits (B, L), positions (B,) or (B, 1), ignored beyond the input."""
    if start_positions is None or end_positions is None:
        return None
    losses = []
    for logits, positions in ((start_logits, start_positions), (end_logits, end_positions)):
        positions = positions.reshape(-1)
        is_ignored = (positions == IGNORED) | (positions >= logits.shape[1])
        positions = positions.clamp(min=0).masked_fill(is_ignored, IGNORED)
        losses.append(cross_entropy(logits, positions, num_items))
    return (losses[0] + losses[1]) / 2


ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]


def resolve_problem_type(configured: str | None, num_labels: int, labels: torch.Tensor) -> ProblemType:
    """
    Which loss the labels ask for. Their dtype and shape decide; `config.problem_type`, perhaps left over from another
    task, only where both kinds of loss fit them.
    """
    if labels.dim() == 0:
        raise ValueError("`labels` must have a value for each text, got a single number.")
    if num_labels == 1:
        return "multi_label_classification" if configured == "multi_label_classification" else "regression"
    if labels.numel() == labels.shape[0] and not labels.is_floating_point():
        return "single_label_classification"
    if labels.dim() == 2 and labels.shape[1] == num_labels:
        return "regression" if configured == "regression" else "multi_label_classification"
    raise ValueError(
        f"`labels` must be integers of shape (batch_size,) or (batch_size, 1), or of shape (batch_size, {num_labels}) "
        f"for several labels or a regression, got {labels.dtype} of shape {tuple(labels.shape)}."
    )


def classification_loss(
    problem_type: str, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int | None
) -> torch.Tensor:
    """Loss of a classifier over whole texts, `logits` (B, num_labels), by `problem_type`."""
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels, num_items)
    logits = widen(logits).reshape(-1)
    labels = labels.to(logits.device, logits.dtype).reshape(-1)
    if problem_type == "regression":
        losses = (logits - labels) ** 2
    else:
        losses = nn.functional.binary_cross_entropy_with_logits(logits, labels.clamp(min=0), reduction="none")
    return mean_over_labels(losses, labels != IGNORED, num_items)


__all__ = [
    "IGNORED",
    "classification_loss",
    "cross_entropy",
    "question_answering_loss",
    "resolve_problem_type",
    "sentence_loss",
]
