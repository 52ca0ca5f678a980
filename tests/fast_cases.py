# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Inputs for the fast paths of attention, and what they must give: written-out attention in float64."""

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st

from modeling_convbert_composite import attention_convbert_composite as maths
from modeling_convbert_composite.fast_attention_convbert_composite import KernelTerms, as_additive


@dataclass(frozen=True)
class Shape:
    """What a case is made of; `mask` "none", "padding", "pairs" or "soft", `slots` "none", "fixed" or "query"."""

    batch: int = 2
    heads: int = 3
    length: int = 40
    size: int = 8
    kernel_size: int = 7
    slots: str = "query"
    has_key: bool = False
    mask: str = "none"
    has_borders: bool = False
    window: bool = False
    dtype: torch.dtype = torch.float32
    seed: int = 0


@st.composite
def shapes(draw: st.DrawFn, largest: int = 140) -> Shape:
    """Any case: odd sizes, one token, kernels wider than the text."""
    return Shape(
        batch=draw(st.integers(1, 3)),
        heads=draw(st.integers(1, 3)),
        length=draw(st.one_of(st.integers(1, 12), st.integers(1, largest))),
        size=draw(st.integers(1, 20)),
        kernel_size=2 * draw(st.integers(0, 12)) + 1,
        slots=draw(st.sampled_from(("query", "fixed", "none"))),
        has_key=draw(st.booleans()),
        mask=draw(st.sampled_from(("none", "padding", "pairs", "soft"))),
        has_borders=draw(st.booleans()),
        window=draw(st.booleans()),
        dtype=draw(st.sampled_from((torch.float32, torch.float32, torch.bfloat16))),
        seed=draw(st.integers(0, 99)),
    )


@dataclass
class Inputs:
    """Arguments of `fast_attention`, and the leaves that want gradients."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    terms: KernelTerms
    borders: torch.Tensor | None
    scaling: float

    @property
    def leaves(self) -> list[torch.Tensor]:
        found = (self.query, self.key, self.value, self.terms.query_slots, self.terms.key_slots)
        return [tensor for tensor in found if tensor is not None]

    def arguments(self, dropout: float = 0.0) -> tuple:
        return (self.query, self.key, self.value, self.mask, self.terms, self.borders, self.scaling, dropout)

    def to(self, dtype: torch.dtype) -> "Inputs":
        """Copies that want gradients."""

        def copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.detach().to(dtype).requires_grad_()

        query, key, value = (copy(tensor) for tensor in (self.query, self.key, self.value))
        assert query is not None and key is not None and value is not None
        slots = copy(self.terms.query_slots), copy(self.terms.key_slots)
        mask = self.mask if self.mask is None or self.mask.dtype == torch.bool else self.mask.to(dtype)
        terms = self.terms._replace(query_slots=slots[0], key_slots=slots[1])
        return replace(self, query=query, key=key, value=value, terms=terms, mask=mask)


def make_inputs(shape: Shape) -> Inputs:
    """Random numbers for a case; queries, keys and values strided as a model has them."""
    generator = torch.Generator().manual_seed(shape.seed)
    batch, heads, length, size, slots = shape.batch, shape.heads, shape.length, shape.size, shape.kernel_size

    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator).to(shape.dtype)

    states = [draw(batch, length, heads, size).transpose(1, 2) for _ in range(3)]
    query_slots = {"query": draw(batch, heads, length, slots), "fixed": draw(1, heads, 1, slots), "none": None}
    terms = KernelTerms(
        query_slots[shape.slots],
        draw(batch, heads, length, slots) if shape.has_key else None,
        shape.kernel_size,
        # The model has a kernel of zeros where a window has none.
        shape.window and shape.slots != "none",
    )
    visible = torch.rand(batch, 1, length, length, generator=generator) > 0.3
    visible |= torch.eye(length, dtype=torch.bool)
    tokens = visible[:, :, :1]
    tokens[..., 0] = True
    masks = {
        "none": None,
        "padding": tokens,
        "pairs": visible,
        "soft": (-3 * torch.rand(batch, heads, length, length, generator=generator)).to(shape.dtype),
    }
    borders = None
    if shape.has_borders:
        cut = max(1, length // 3)
        position = torch.arange(length)
        first = torch.where(position >= cut, cut, 0)
        borders = torch.stack([first, torch.where(position >= cut, length, cut)], -1).expand(batch, -1, -1)
    return Inputs(*states, masks[shape.mask], terms, borders, size**-0.5)


def reference(inputs: Inputs, keep: torch.Tensor | None = None) -> torch.Tensor:
    """By the maths that the loops check, in the dtype of the inputs; `keep` multiplies the weights. (B, H, L, D)."""
    query, key, value, mask, terms, borders, scaling, _ = inputs.arguments()
    length, dtype = query.shape[2], query.dtype
    window = terms.kernel_size if terms.window else None
    bias = maths.position_bias(terms.query_slots, terms.key_slots, length, window)
    additive = as_additive(mask, dtype)
    if borders is not None:
        across = torch.zeros(len(query), 1, length, length, dtype=dtype)
        across = across.masked_fill(maths.outside_borders(borders, slice(0, length)), -torch.inf)
        additive = across if additive is None else additive + across
    output, weights = maths.eager_attention(query, key, value, additive, bias, scaling)
    return output if keep is None else (weights * keep) @ value
