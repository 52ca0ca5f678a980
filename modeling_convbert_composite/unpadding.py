# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Padded batches as one row without padding, and back, so that padding costs nothing: see `sequence_ids`."""

from collections.abc import Mapping

import torch

from .attention_convbert_composite import read_token_mask


def unpad(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """
    All tokens of a padded batch in one row, each text with a number of its own in `sequence_ids`.

    Args:
        batch: `input_ids` and `attention_mask` (B, L), of any kind that models take, and what else has a value for
            every token (`token_type_ids`, `labels`), each (B, L).

    Texts begin at their first token: of a model with a position table, padding on the left moves positions that the
    row leaves in place. Gaps within a text close.

    Returns:
        The same names, without `attention_mask` and with `sequence_ids`, each (1, N) for N tokens. Models take them as
        they are; those that read the first token of a text only (sequence classification) have no use for them.

    Raises:
        ValueError: no mask of shape (B, L), or a tensor of another shape.
    """
    mask = token_mask(batch.get("attention_mask"))
    wrong = next((name for name, value in batch.items() if value.shape != mask.shape), None)
    if wrong is not None:
        shape = tuple(batch[wrong].shape)
        raise ValueError(f"{wrong} must have a value for every token, {tuple(mask.shape)}, got the shape {shape}.")
    row = {name: value[mask][None] for name, value in batch.items() if name != "attention_mask"}
    texts = torch.arange(mask.shape[0], device=mask.device)[:, None].expand(mask.shape)
    return row | {"sequence_ids": texts[mask][None]}


def pad_again(row: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """
    What a model gives for the tokens of such a row (1, N, ...), in the places of the batch: (B, L, ...), 0 at padding.

    Raises:
        ValueError: the row has another number of tokens than the mask.
    """
    mask = token_mask(attention_mask)
    if row.shape[:2] != (1, int(mask.sum())):
        raise ValueError(f"The row must be (1, {int(mask.sum())}, ...) for this mask, got {tuple(row.shape)}.")
    padded = row.new_zeros(*mask.shape, *row.shape[2:])
    padded[mask] = row[0]
    return padded


def token_mask(attention_mask: torch.Tensor | None) -> torch.Tensor:
    """True at tokens, (B, L)."""
    if attention_mask is None or attention_mask.dim() != 2:
        shape = None if attention_mask is None else tuple(attention_mask.shape)
        raise ValueError(f"attention_mask must have two dimensions, (B, L), to tell tokens from padding; got {shape}.")
    return read_token_mask(attention_mask)
