# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What a model cannot do is found before it is trained: a forward pass of the longest input, and of packed texts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from modeling_convbert_composite.pretraining.masking import MaskedBatch


# Tokens of the texts that are packed, and how far logits may lie apart, as a share of their spread.
PIECES, TOLERANCE = (7, 5), 1e-3
Collate = Callable[[int], MaskedBatch]


def first_position(model: PreTrainedModel, collate: Collate) -> int:
    """
    The number of a text's first position: 0, or behind the padding's in the RoBERTa line. Found by comparing packed
    texts with the same texts alone.

    Args:
        collate: the collator for models whose positions start at a number.

    Raises:
        ValueError: with no start do packed texts give what they give alone.
    """
    reason = "texts in a row change each other"
    # MPNet begins at 2 whatever its padding is.
    for start in dict.fromkeys((0, (model.config.pad_token_id or 0) + 1, 2)):
        try:
            if keeps_texts_apart(model, collate(start)):
                return start
        except Exception as error:  # whatever a model raises where it cannot take the mask
            reason = in_one_line(error)
    attention = model.config._attn_implementation
    raise ValueError(
        f"A {model.config.model_type} with the attention {attention!r} cannot take packed texts ({reason}): "
        "--format pairs, or another --attention."
    )


def keeps_texts_apart(model: PreTrainedModel, collator: MaskedBatch) -> bool:
    """Whether two texts in a row give the logits that each gives alone."""
    draw = np.random.default_rng(0)
    texts = [draw.choice(collator.replacements, size) for size in PIECES]
    packed = logits(model, inputs_of(collator, texts))[0]
    alone = torch.cat([logits(model, {"input_ids": torch.from_numpy(text)[None]})[0] for text in texts])
    return bool((packed - alone).abs().max() <= TOLERANCE * alone.std())


def inputs_of(collator: MaskedBatch, texts: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """Texts of ids in one packed row, as the model is told them."""
    row = {"input_ids": torch.from_numpy(np.concatenate(texts))[None]}
    return row | collator.border_inputs([np.array([len(text) for text in texts])], row)


def check_longest(model: PreTrainedModel, collator: MaskedBatch, is_packed: bool) -> None:
    """
    Raises:
        ValueError: the model fails on an input of the greatest length.
    """
    ids = np.random.default_rng(0).choice(collator.replacements, collator.max_length)
    inputs = inputs_of(collator, [ids]) if is_packed else {"input_ids": torch.from_numpy(ids)[None]}
    try:
        logits(model, inputs, training=True)
    except Exception as error:
        raise ValueError(
            f"A {model.config.model_type} of these settings cannot take {collator.max_length} tokens: "
            f"{in_one_line(error)}"
        ) from error


def in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def logits(model: PreTrainedModel, inputs: dict[str, torch.Tensor], training: bool = False) -> torch.Tensor:
    """Of the masked-LM head (1, L, vocabulary); the generators of random numbers stay where they are."""
    device = next(model.parameters()).device
    was_training = model.training
    model.train(training)
    try:
        with torch.random.fork_rng(), torch.no_grad():
            outputs: Any = model(**{name: tensor.to(device) for name, tensor in inputs.items()})
    finally:
        model.train(was_training)
    found = outputs["logits"] if "logits" in outputs else outputs["prediction_logits"]
    return found.float().cpu()
