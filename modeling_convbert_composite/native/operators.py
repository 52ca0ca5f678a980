# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The kernel as torch operators: shapes for compilers, gradients for training."""

from functools import cache
from typing import Any

import torch

from .build import Kind, built_library


def fake_attention(query: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes of the output (B, L, H, D) and of the rows' highest scores and logarithms (B, H, L, 2)."""
    batch, heads, length, size = query.shape
    return (
        query.new_empty(batch, length, heads, size),
        query.new_empty(batch, heads, length, 2, dtype=torch.float32),
    )


def fake_attention_backward(
    outer: torch.Tensor,
    output: torch.Tensor,
    normalisers: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_slots: torch.Tensor | None,
    key_slots: torch.Tensor | None,
    mask: torch.Tensor | None,
    borders: torch.Tensor | None,
    kernel_size: int,
    *arguments: Any,
) -> tuple[torch.Tensor, ...]:
    """Shapes of the gradients: query, key, value (B, L, H, D), slots (B, H, L, R)."""
    batch, heads, length, _ = query.shape
    states = [output.new_empty(output.shape) for _ in range(3)]
    slots = [
        normalisers.new_empty(batch, heads, length, kernel_size),
        normalisers.new_empty(batch, heads, 0 if key_slots is None else length, kernel_size),
    ]
    return (*states, *slots)


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    query, key, value, query_slots, key_slots, mask, borders, *settings, seed = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, query_slots, key_slots, mask, borders, seed, *output)
    ctx.settings = settings


def attention_gradients(library: Any) -> Any:
    """The backward function of a library's `attention`."""

    def backward(ctx: Any, outer: torch.Tensor | None, _: Any) -> tuple[torch.Tensor | None, ...]:
        query, key, value, query_slots, key_slots, mask, borders, seed, output, normalisers = ctx.saved_tensors
        if outer is None:
            return (None,) * 12
        *states, of_query_slots, of_key_slots = library.attention_backward(
            outer, output, normalisers, query, key, value, query_slots, key_slots, mask, borders, *ctx.settings, seed
        )
        slots = (
            None if query_slots is None else of_query_slots.sum_to_size(query_slots.shape),
            None if key_slots is None else of_key_slots.sum_to_size(key_slots.shape),
        )
        return (*(gradient.transpose(1, 2) for gradient in states), *slots, *([None] * 7))

    return backward


@cache
def load(kind: Kind) -> Any:
    """The namespace of operators of a build: `attention` and `attention_backward`. Built on first use."""
    torch.ops.load_library(str(built_library(kind)))
    library = getattr(torch.ops, kind.library)
    torch.library.register_fake(f"{kind.library}::attention", fake_attention)
    torch.library.register_fake(f"{kind.library}::attention_backward", fake_attention_backward)
    torch.library.register_autograd(
        f"{kind.library}::attention", attention_gradients(library), setup_context=keep_for_backward
    )
    return library
