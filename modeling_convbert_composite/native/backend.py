# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""`attn_implementation="composite_cpu"`: the kernel behind transformers' interfaces for attention and masks."""

from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from modeling_convbert_composite.attention_convbert_composite import is_additive
from modeling_convbert_composite.fast_attention_convbert_composite import (
    KernelTerms,
    as_additive,
    as_borders,
    fast_attention,
)

from .build import KERNEL, Kind
from .operators import load


NAME = "composite_cpu"
DTYPES = (torch.float32, torch.bfloat16)
NO_TERMS = KernelTerms(None, None, 1, False)


def kernel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    terms: KernelTerms,
    borders: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    kind: Kind = KERNEL,
) -> torch.Tensor:
    """
    What `fast_attention` computes, by the kernel: float32 or bfloat16 on a CPU.

    `query`, `key`, `value` (B, H, L, D); `mask` bool or additive, broadcasts to (B, H, L, L); `borders` (B, L, 2)
    -> (B, L, H, D).
    """
    terms, borders = as_borders(terms, mask, borders, query)
    slots = [None if slots is None else slots.float() for slots in (terms.query_slots, terms.key_slots)]
    # From the default generator, so that checkpointing, which winds it back, drops the same weights again.
    if dropout:
        seed = torch.randint(2**62, (1,), device="cpu")
    else:
        seed = torch.zeros(1, dtype=torch.long, device="cpu")
    if not torch.compiler.is_compiling():
        # A model is prepared before it is compiled.
        load(kind)
    output, _ = getattr(torch.ops, kind.library).attention(
        query,
        key,
        value,
        *slots,
        as_additive(mask, torch.float32),
        borders,
        terms.kernel_size,
        terms.window,
        scaling,
        dropout,
        seed,
    )
    return output


def is_for_kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether the kernel takes these; what it does not take, other devices, dtypes and learned masks, is for torch."""
    is_alike = query.dtype == key.dtype == value.dtype and query.shape == key.shape == value.shape
    is_plain_mask = mask is None or not (is_additive(mask) and mask.requires_grad)
    return is_alike and is_plain_mask and query.dtype in DTYPES and query.device.type == "cpu"


def composite_cpu_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    terms: KernelTerms = NO_TERMS,
    borders: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The kernel with the signature of transformers' attention interface; without `terms` plain attention."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if is_for_kernel(query, key, value, attention_mask):
        return kernel_attention(query, key, value, attention_mask, terms, borders, scaling, dropout), None
    output = fast_attention(query, key, value, attention_mask, terms, borders, scaling, dropout)
    return output.transpose(1, 2), None


def composite_cpu_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    allow_is_bidirectional_skip: bool = False,
    **kwargs: Any,
) -> torch.Tensor | None:
    """One row for all queries, (B, 1, 1, keys) bool, or None if nothing is masked; other masks as for sdpa."""
    if mask_function is not bidirectional_mask_function:
        return sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
            **kwargs,
        )
    if attention_mask is None:
        return None
    attention_mask = attention_mask.bool()
    is_full = allow_is_bidirectional_skip and not torch.compiler.is_compiling() and bool(attention_mask.all())
    return None if is_full else attention_mask[:, None, None, :kv_length]


def register() -> None:
    """Makes the name known to transformers. Nothing is built before a model asks for it."""
    # Read by the model: terms in place of a bias, and what must be ready before the first step.
    composite_cpu_forward.takes_kernel_terms = True  # type: ignore[attr-defined]
    composite_cpu_forward.prepare = partial(load, KERNEL)  # type: ignore[attr-defined]
    AttentionInterface.register(NAME, composite_cpu_forward)
    AttentionMaskInterface.register(NAME, composite_cpu_mask)
