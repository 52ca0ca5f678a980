# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Attention backends behind the signature of transformers' attention interface: eager, sdpa, flex_attention.

Those in `TERM_BACKENDS` take the kernel terms of a layer, and the borders of packed texts, as they are. Letters as in
`attention_convbert_composite.py`.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers.integrations.flex_attention import compile_friendly_flex_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from .attention_convbert_composite import eager_attention, masked_score
from .fast_attention_convbert_composite import (
    KernelTerms,
    as_additive,
    as_borders,
    fast_attention,
    whole_bias,
)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: torch.Tensor | None = None,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The maths of `eager_attention`."""
    output, weights = eager_attention(query, key, value, attention_mask, position_bias, scaling, dropout)
    return output.transpose(1, 2), weights


def sdpa_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    *,
    terms: KernelTerms,
    borders: torch.Tensor | None = None,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, None]:
    """The maths of `fast_attention`."""
    output = fast_attention(query, key, value, attention_mask, terms, borders, scaling, dropout)
    return output.transpose(1, 2), None


ScoreMod = Callable[..., torch.Tensor]


def flex_score_mod(
    query: torch.Tensor, mask: torch.Tensor | None, terms: KernelTerms, borders: torch.Tensor | None
) -> ScoreMod:
    """
    What flex_attention does to each score: it looks up the slot tables, which stay small, and the mask.

    Everything is expanded to real batches and heads without memory of its own: flex indexes all dimensions.
    """
    batch, heads, length, _ = query.shape
    half_width = terms.kernel_size // 2
    by_query, by_key = (
        None if slots is None else slots.to(query.dtype).expand(batch, heads, length, -1)
        for slots in (terms.query_slots, terms.key_slots)
    )
    added = as_additive(mask, query.dtype)
    added = None if added is None else added.expand(batch, heads, length, length)
    beyond = masked_score(query.dtype)

    def score_mod(
        score: torch.Tensor, text: torch.Tensor, head: torch.Tensor, i: torch.Tensor, j: torch.Tensor
    ) -> torch.Tensor:
        slot = (j - i).clamp(-half_width, half_width) + half_width
        bias = torch.zeros_like(score)
        if by_query is not None:
            bias = bias + by_query[text, head, i, slot]
        if by_key is not None:
            bias = bias + by_key[text, head, j, 2 * half_width - slot]
        if terms.window:
            bias = torch.where((j - i).abs() > half_width, beyond, bias)
        score = score + bias
        if added is not None:
            score = score + added[text, head, i, j]
        if borders is not None:
            is_inside = (j >= borders[text, i, 0]) & (j < borders[text, i, 1])
            score = torch.where(is_inside, score, -torch.inf)
        return score

    return score_mod


def flex_bias_mod(query: torch.Tensor, bias: torch.Tensor | None) -> ScoreMod | None:
    """The same from one tensor of all pairs, which broadcasts to (B, H, L, L)."""
    if bias is None:
        return None
    batch, heads, length, _ = query.shape
    expanded = bias.expand(batch, heads, length, length)

    def score_mod(
        score: torch.Tensor, text: torch.Tensor, head: torch.Tensor, i: torch.Tensor, j: torch.Tensor
    ) -> torch.Tensor:
        return score + expanded[text, head, i, j]

    return score_mod


def border_block_mask(borders: torch.Tensor) -> BlockMask:
    """The borders (B, L, 2) as blocks that flex_attention skips."""
    batch, length, _ = borders.shape

    def is_inside(text: torch.Tensor, head: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (j >= borders[text, i, 0]) & (j < borders[text, i, 1])

    return create_block_mask(is_inside, batch, None, length, length, device=str(borders.device))


def flex_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | BlockMask | None,
    scaling: float,
    dropout: float = 0.0,
    *,
    terms: KernelTerms,
    borders: torch.Tensor | None = None,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, None]:
    """torch's compiled attention; padding comes as a mask, or on GPUs as blocks to skip."""
    if dropout > 0:
        raise ValueError(
            f"`flex_attention` has no attention dropout, got {dropout}: set `attention_probs_dropout_prob=0`, or use "
            '"sdpa".'
        )
    blocks = attention_mask if isinstance(attention_mask, BlockMask) else None
    mask = None if isinstance(attention_mask, BlockMask) else attention_mask
    if query.device.type == "cpu":
        # torch 2.13 writes C++ that does not compile where several tables of free length are looked up.
        score_mod = flex_bias_mod(query, whole_bias(terms, mask, borders, query.shape[2], query.dtype))
    else:
        if blocks is None:
            terms, borders = as_borders(terms, mask, borders, query)
        if borders is not None:
            blocks, borders = border_block_mask(borders), None
        score_mod = flex_score_mod(query, mask, terms, borders)
    output = compile_friendly_flex_attention(
        query,
        key,
        value,
        training=module.training,
        score_mod=score_mod,
        block_mask=blocks,
        scale=scaling,
    )
    # A tuple only if the normalisers are asked for.
    return cast(torch.Tensor, output).transpose(1, 2).contiguous(), None


TERM_BACKENDS: dict[str, Callable] = {"sdpa": sdpa_attention_forward, "flex_attention": flex_attention_forward}


def backend_with_terms(name: str) -> Callable | None:
    """
    The function of a backend that takes kernel terms, and borders of texts, as they are; None for those that get a
    bias (B, H, L, L) and a mask. Registered with transformers' AttentionInterface, it has a true `takes_kernel_terms`.
    """
    if name in TERM_BACKENDS:
        return TERM_BACKENDS[name]
    registered = ALL_ATTENTION_FUNCTIONS.get(name)
    return registered if getattr(registered, "takes_kernel_terms", False) else None


__all__ = ["backend_with_terms", "eager_attention_forward"]
