# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Composite attention in plain torch at a price near that of plain attention, and its form for flex_attention.

The kernel terms of a layer are small tables of slot scores; spread over all pairs they would be a (B, H, L, L) tensor,
which costs more to write and read than the attention itself. So the work is cut into tiles of some texts, heads and
queries, whose part of that tensor stays in the processor's cache: memory grows linearly with the length, in training
too, where the backward pass makes each tile again instead of keeping it. Only short inputs, whose weights are at most
twice as large as the queries, have them kept.

Letters as in `attention_convbert_composite.py`: B batch, H heads, L length, D head size, K half-width, R = 2K + 1.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from .attention_convbert_composite import (
    add_up,
    is_additive,
    masked_score,
    narrow_mask,
    outside_borders,
    position_bias,
    wide,
    window_borders,
)


# Numbers in the bias of one tile, so that it stays in a core's cache, and queries in a tile: farther apart than that,
# most keys lie beyond every query's kernel and take a constant. A GPU has no use for small tiles.
TILE = {"cpu": 2**18}
LARGE_TILE = 2**28
TILE_QUERIES = {"cpu": 256}
# The longest input whose weights are kept for the backward pass, in head sizes.
KEPT_LENGTH = 2


class KernelTerms(NamedTuple):
    """
    The kernel terms of a layer before they are spread over pairs: `query_slots` (B or 1, H, L or 1, R), the fixed and
    the query kernel added up, or None; `key_slots` (B, H, L, R) or None; R; whether keys farther than K are hidden.
    """

    query_slots: torch.Tensor | None
    key_slots: torch.Tensor | None
    kernel_size: int
    window: bool

    @property
    def is_empty(self) -> bool:
        return self.query_slots is None and self.key_slots is None and not self.window


class Tile(NamedTuple):
    """Some texts, heads, queries and keys, as slices."""

    texts: slice
    heads: slice
    queries: slice
    keys: slice

    def of_queries(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor (B, H, L, ...)."""
        return tensor[self.texts, self.heads, self.queries]

    def of_keys(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor (B, H, L, ...)."""
        return tensor[self.texts, self.heads, self.keys]

    def of_pairs(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor (B or 1, H or 1, L or 1, L or 1)."""
        parts = (self.texts, self.heads, self.queries, self.keys)
        return tensor[
            tuple(slice(None) if size == 1 else part for size, part in zip(tensor.shape, parts, strict=True))
        ]


def pieces(size: int, step: int) -> Iterator[slice]:
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def tiles(query: torch.Tensor, borders: torch.Tensor | None) -> Iterator[Tile]:
    """All of (B, H, L) in tiles whose bias fits into a cache, with the keys that their queries may attend."""
    batch, heads, length, _ = query.shape
    device = query.device.type
    queries = max(1, min(length, TILE_QUERIES.get(device, length)))
    count = max(1, TILE.get(device, LARGE_TILE) // (queries * max(length, 1)))
    heads_at_once = min(heads, count)
    # Only where all heads fit into a tile do several texts; with borders every text has its own keys.
    texts_at_once = max(1, count // heads) if borders is None else 1
    for texts in pieces(batch, texts_at_once):
        for heads_ in pieces(heads, heads_at_once):
            for queries_ in pieces(length, queries):
                yield Tile(texts, heads_, queries_, reachable(texts, queries_, length, borders))


def reachable(texts: slice, queries: slice, length: int, borders: torch.Tensor | None) -> slice:
    """The keys that some of these queries may attend. On other devices reading the borders would wait for them."""
    if borders is None or borders.device.type != "cpu":
        return slice(0, length)
    rows = borders[texts, queries]
    return slice(int(rows[..., 0].min()), int(rows[..., 1].max()))


def spread(slots: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
    """
    score[i, j] = slots[i, slot(j - i)] for i in `rows` and j in `columns`: (B, H, rows or 1, R) -> (B, H, rows,
    columns), the last a view into wider memory.

    Left and right of the kernel the score is one constant a row; the R slots lie on diagonals, which in memory are
    columns of a matrix whose rows are one number longer.
    """
    kernel_size = slots.shape[-1]
    half_width = kernel_size // 2
    height, width = rows.stop - rows.start, columns.stop - columns.start
    margin = 2 * half_width  # so that no diagonal leaves its row
    memory = slots.new_empty(*slots.shape[:2], height, width + 2 * margin)
    scores = memory[..., margin : margin + width]
    left, right = slots[..., :1], slots[..., -1:]
    # Columns before all rows are left of them, columns after all rows right of them.
    begin = min(max(rows.start - columns.start, 0), width)
    end = min(max(rows.stop - columns.start, 0), width)
    scores[..., :begin] = left
    scores[..., end:] = right
    if begin < end:
        torch.where(is_left(rows, columns, begin, end, slots.device), left, right, out=scores[..., begin:end])
    first, last = max(rows.start, columns.start - half_width), min(rows.stop, columns.stop + half_width)
    if first < last:
        column = first - columns.start + half_width
        diagonals = diagonal_view(memory, first - rows.start, last - first, column, kernel_size)
        diagonals.copy_(slots if slots.shape[2] == 1 else slots[:, :, first - rows.start : last - rows.start])
    return scores


def is_left(rows: slice, columns: slice, begin: int, end: int, device: torch.device) -> torch.Tensor:
    """j <= i for the columns from number `begin` up to `end`: (rows, end - begin)."""
    row = torch.arange(rows.start, rows.stop, device=device)[:, None]
    return torch.arange(columns.start + begin, columns.start + end, device=device) <= row


def diagonal_view(memory: torch.Tensor, row: int, rows: int, column: int, kernel_size: int) -> torch.Tensor:
    """memory[..., row + n, column + n + r] as [..., n, r]: (B, H, rows, R)."""
    steps = memory.stride()
    offset = memory.storage_offset() + row * steps[2] + column
    return memory.as_strided((*memory.shape[:2], rows, kernel_size), (*steps[:2], steps[2] + 1, 1), offset)


def with_margins(like: torch.Tensor, kernel_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for a tensor like (B, H, rows, columns), with zeros left and right of each row, and the view between."""
    margin, width = kernel_size - 1, like.shape[-1]
    memory = like.new_empty(*like.shape[:-1], width + 2 * margin)
    memory[..., :margin] = 0
    memory[..., margin + width :] = 0
    return memory, memory[..., margin : margin + width]


def gather_slots(memory: torch.Tensor, kernel_size: int, rows: slice, columns: slice) -> torch.Tensor:
    """
    The gradient of `spread`, from a gradient between margins of zeros: (B, H, rows, columns + margins) -> (B, H, rows,
    R), summed up in float32.
    """
    half_width = kernel_size // 2
    margin = 2 * half_width
    gradient = memory[..., margin : memory.shape[-1] - margin]
    width = columns.stop - columns.start
    begin = min(max(rows.start - columns.start, 0), width)
    end = min(max(rows.stop - columns.start, 0), width)
    slots = gradient.new_zeros(*gradient.shape[:3], kernel_size, dtype=wide(gradient.dtype))
    first, last = max(rows.start, columns.start - half_width), min(rows.stop, columns.stop + half_width)
    if first < last:
        part = slice(first - rows.start, last - rows.start)
        slots[:, :, part] = diagonal_view(
            memory, first - rows.start, last - first, first - columns.start + half_width, kernel_size
        ).to(slots.dtype)
    left = gradient[..., :begin].sum(-1, dtype=slots.dtype)
    right = gradient[..., end:].sum(-1, dtype=slots.dtype)
    if begin < end:
        middle = gradient[..., begin:end]
        # In the gradient's dtype: torch multiplies numbers with bools many times slower.
        lower = is_left(rows, columns, begin, end, gradient.device).to(gradient.dtype)
        on_left = (middle * lower).sum(-1, dtype=slots.dtype)
        left, right = left + on_left, right + middle.sum(-1, dtype=slots.dtype) - on_left
    # What has a slot of its own is not beyond the kernel. A kernel of one slot has it on the left.
    inner_left, inner_right = slots[..., 1 : half_width + 1].sum(-1), slots[..., half_width + 1 : -1].sum(-1)
    if kernel_size == 1:
        slots[..., 0] = left + right
    else:
        slots[..., 0], slots[..., -1] = left - inner_left, right - inner_right
    return slots


def tile_bias(
    tile: Tile, terms: KernelTerms, mask: torch.Tensor | None, borders: torch.Tensor | None, query: torch.Tensor
) -> torch.Tensor | None:
    """All that is added to the products of a tile, or None: broadcasts to (texts, heads, queries, keys)."""
    dtype, device = query.dtype, query.device
    bias = None
    if terms.query_slots is not None:
        bias = spread(some_slots(terms.query_slots, tile, tile.queries), tile.queries, tile.keys)
    if terms.key_slots is not None:
        by_key = spread(some_slots(terms.key_slots, tile, tile.keys), tile.keys, tile.queries).transpose(-1, -2)
        bias = by_key if bias is None else add_onto(bias, by_key)
    if terms.window:
        bias = hide(bias, outside_window_of(tile, terms.kernel_size, device), masked_score(dtype), dtype)
    if mask is not None:
        part = tile.of_pairs(mask)
        bias = part if bias is None else add_onto(bias, part)
    if borders is not None:
        bias = hide(bias, outside_borders(borders[tile.texts, tile.queries], tile.keys), -torch.inf, dtype)
    return bias


def add_onto(bias: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    """The sum, in the memory of `bias` where it has room for all texts and heads."""
    has_room = bias.shape[0] >= more.shape[0] and bias.shape[1] >= more.shape[1]
    return bias.add_(more) if has_room else bias + more


def hide(bias: torch.Tensor | None, hidden: torch.Tensor, score: float, dtype: torch.dtype) -> torch.Tensor:
    """
    The bias with another score where `hidden` is True: -inf beyond the borders of a text, in which every query has at
    least its own key, and a finite one beyond a window, whose keys may all be masked.
    """
    if bias is None:
        bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return bias.masked_fill(hidden, score)


def some_slots(slots: torch.Tensor, tile: Tile, positions: slice) -> torch.Tensor:
    """The slot scores of a tile; those that texts or positions share stay shared."""
    texts = slice(None) if slots.shape[0] == 1 else tile.texts
    return slots[texts, tile.heads, slice(None) if slots.shape[2] == 1 else positions]


def outside_window_of(tile: Tile, kernel_size: int, device: torch.device) -> torch.Tensor:
    """True where a key is farther than K from its query: (1, 1, queries, keys)."""
    row = torch.arange(tile.queries.start, tile.queries.stop, device=device)[:, None]
    column = torch.arange(tile.keys.start, tile.keys.stop, device=device)
    return ((column - row).abs() > kernel_size // 2)[None, None]


def keep_of(scores: torch.Tensor, dropout: float, seed: int) -> torch.Tensor:
    """Which weights dropout keeps, 1 or 0. The same for the same seed and shape."""
    generator = torch.Generator(scores.device).manual_seed(seed)
    keep = torch.empty_like(scores, memory_format=torch.contiguous_format)
    return keep.bernoulli_(1 - dropout, generator=generator)


class TiledAttention(torch.autograd.Function):
    """
    Attention tile by tile. Keeps its arguments, its output and the weights of short inputs, and makes everything else
    again when it goes back.

    `query`, `key`, `value` (B, H, L, D), the slots of `terms` apart so that they get gradients, `mask` additive or
    None, `borders` (B, L, 2) or None; `seed` of the dropout -> (B, L, H, D).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        query_slots: torch.Tensor | None,
        key_slots: torch.Tensor | None,
        mask: torch.Tensor | None,
        borders: torch.Tensor | None,
        kernel_size: int,
        window: bool,
        scaling: float,
        dropout: float,
        seed: int,
    ) -> torch.Tensor:
        terms = KernelTerms(query_slots, key_slots, kernel_size, window)
        kept = memory_for_weights(query)
        output = tiled_attention(query, key, value, terms, mask, borders, scaling, dropout, seed, kept)
        ctx.save_for_backward(query, key, value, query_slots, key_slots, mask, borders, output, kept)
        ctx.settings = kernel_size, window, scaling, dropout, seed
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, query_slots, key_slots, mask, borders, output, kept = ctx.saved_tensors
        outer, output = outer.transpose(1, 2), output.transpose(1, 2)
        kernel_size, window, scaling, dropout, seed = ctx.settings
        terms = KernelTerms(query_slots, key_slots, kernel_size, window)
        sums = Sums(query, key, value, query_slots, key_slots)
        with torch.autocast(query.device.type, enabled=False):
            for number, tile in enumerate(tiles(query, borders)):
                parts = tile.of_queries(query), tile.of_keys(key), tile.of_keys(value)
                outers = tile.of_queries(outer), tile.of_queries(output)
                if kept is None:
                    bias = tile_bias(tile, terms, mask, borders, query)
                    weights = signed_weights(parts[0], parts[1], bias, scaling, dropout, seed + number)
                else:
                    weights = tile.of_pairs(kept)
                tile_backward(tile, parts, outers, weights, terms, scaling, dropout, sums)
        return (*sums.gradients(), None, None, None, None, None, None, None)


class Sums:
    """The gradients of what `TiledAttention` reads, summed up over tiles: those of keys in float32."""

    def __init__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        query_slots: torch.Tensor | None,
        key_slots: torch.Tensor | None,
    ):
        self.inputs = query, key, value, query_slots, key_slots
        self.query = torch.empty_like(query)
        self.key = torch.zeros_like(key, dtype=wide(key.dtype))
        self.value = torch.zeros_like(value, dtype=wide(value.dtype))
        slots = [
            None if slots is None else torch.zeros_like(slots, dtype=wide(slots.dtype)) for slots in self.inputs[3:]
        ]
        self.query_slots, self.key_slots = slots

    def add_query_slots(self, tile: Tile, gradient: torch.Tensor) -> None:
        if self.query_slots is not None:
            target = some_slots(self.query_slots, tile, tile.queries)
            target += gradient.sum_to_size(target.shape)

    def gradients(self) -> list[torch.Tensor | None]:
        found = (self.query, self.key, self.value, self.query_slots, self.key_slots)
        return [
            None if like is None or gradient is None else gradient.to(like.dtype)
            for gradient, like in zip(found, self.inputs, strict=True)
        ]


def tile_backward(
    tile: Tile,
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    outers: tuple[torch.Tensor, torch.Tensor],
    signed: torch.Tensor,
    terms: KernelTerms,
    scaling: float,
    dropout: float,
    sums: Sums,
) -> None:
    """
    Adds a tile's gradients to `sums`. `parts`: query, key and value; `outers`: outer gradient and output; `signed`:
    see `signed_weights`.
    """
    query, key, value = parts
    outer, output = outers
    # The sum of weight times gradient over a row is that of output times outer gradient over the channels.
    means = (outer.to(wide(outer.dtype)) * output.to(wide(outer.dtype))).sum(-1, keepdim=True)
    weights, left = (signed.abs(), signed.clamp(min=0)) if dropout else (signed, signed)
    if dropout:
        outer = outer / (1 - dropout)
    gradient = (outer @ value.transpose(-1, -2)).to(weights.dtype)  # of the weights that dropout left
    tile.of_keys(sums.value).add_(left.to(query.dtype).transpose(-1, -2) @ outer)
    memory, scores = with_margins(weights, terms.kernel_size)
    if dropout:
        torch.mul(gradient, left, out=scores).addcmul_(weights, means, value=-1)
    else:
        torch.mul(gradient.sub_(means), weights, out=scores)
    narrow = scores.to(query.dtype)
    tile.of_queries(sums.query).copy_((narrow @ key).mul_(scaling))
    tile.of_keys(sums.key).add_(narrow.transpose(-1, -2) @ query, alpha=scaling)
    if terms.window:
        # There the slots are not read.
        scores.masked_fill_(outside_window_of(tile, terms.kernel_size, scores.device), 0)
    sums.add_query_slots(tile, gather_slots(memory, terms.kernel_size, tile.queries, tile.keys))
    if sums.key_slots is not None:
        turned, by_key = with_margins(scores.transpose(-1, -2), terms.kernel_size)
        by_key.copy_(scores.transpose(-1, -2))
        gradient = gather_slots(turned, terms.kernel_size, tile.keys, tile.queries)
        some_slots(sums.key_slots, tile, tile.keys).add_(gradient)


def tile_weights(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, scaling: float) -> torch.Tensor:
    """The softmax of a tile's scores, in float32 at least."""
    if query.dtype == wide(query.dtype):
        # Cheaper on queries than on scores; narrow dtypes would lose digits.
        scores = (query * scaling) @ key.transpose(-1, -2)
    else:
        scores = (query @ key.transpose(-1, -2)).to(wide(query.dtype)).mul_(scaling)
    return (scores if bias is None else scores.add_(bias)).softmax(-1)


def signed_weights(
    query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, scaling: float, dropout: float, seed: int
) -> torch.Tensor:
    """A tile's weights, those that dropout takes away with a minus sign: one tensor tells both."""
    weights = tile_weights(query, key, bias, scaling)
    return weights.mul_(keep_of(weights, dropout, seed).mul_(2).sub_(1)) if dropout else weights


def memory_for_weights(query: torch.Tensor) -> torch.Tensor | None:
    """
    (B, H, L, L), if that is at most twice the queries (B, H, L, D): then keeping the weights is cheaper than making
    them again. In narrow dtypes weights are twice as wide, and made again.
    """
    batch, heads, length, head_size = query.shape
    if length > KEPT_LENGTH * head_size or query.dtype != wide(query.dtype):
        return None
    return query.new_empty(batch, heads, length, length)


def tiled_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    terms: KernelTerms,
    mask: torch.Tensor | None,
    borders: torch.Tensor | None,
    scaling: float,
    dropout: float,
    seed: int,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """What `TiledAttention` computes, without gradients: (B, L, H, D). Signed weights go to `kept`, (B, H, L, L)."""
    output = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
    with torch.autocast(query.device.type, enabled=False):
        for number, tile in enumerate(tiles(query, borders)):
            bias = tile_bias(tile, terms, mask, borders, query)
            parts = tile.of_queries(query), tile.of_keys(key), tile.of_keys(value)
            target = tile.of_queries(output.transpose(1, 2))
            if dropout or kept is not None:
                weights = signed_weights(parts[0], parts[1], bias, scaling, dropout, seed + number)
                if kept is not None:
                    tile.of_pairs(kept).copy_(weights)
                left = weights.clamp_(min=0) if dropout else weights
                target.copy_((left.to(query.dtype) @ parts[2]).div_(1 - dropout))
            else:
                target.copy_(nn.functional.scaled_dot_product_attention(*parts, attn_mask=bias, scale=scaling))
    return output


def as_additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask, bool with True where a pair is seen or already additive, as scores to add."""
    if mask is None:
        return None
    if is_additive(mask):
        return narrow_mask(mask, dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def as_borders(
    terms: KernelTerms, mask: torch.Tensor | None, borders: torch.Tensor | None, query: torch.Tensor
) -> tuple[KernelTerms, torch.Tensor | None]:
    """
    A window as borders, (B, L, 2), so that keys beyond it cost nothing. With a mask it stays a term: a query whose
    window holds only masked keys attends to others.
    """
    if not terms.window or mask is not None:
        return terms, borders
    borders = window_borders(borders, query.shape[2], terms.kernel_size, query.device)
    return terms._replace(window=False), borders.expand(query.shape[0], -1, -1)


def whole_bias(
    terms: KernelTerms, mask: torch.Tensor | None, borders: torch.Tensor | None, length: int, dtype: torch.dtype
) -> torch.Tensor | None:
    """All that is added to the products of all pairs at once, for graphs, where a compiler does the cutting."""
    window = terms.kernel_size if terms.window else None
    bias = position_bias(terms.query_slots, terms.key_slots, length, window)
    bias = add_up(None if bias is None else bias.to(dtype), as_additive(mask, dtype))
    return bias if borders is None else hide(bias, outside_borders(borders, slice(0, length)), -torch.inf, dtype)


def fast_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    terms: KernelTerms,
    borders: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
) -> torch.Tensor:
    """
    softmax(q k^T * s + kernel terms + mask) v by the way that is fast where it runs.

    `query`, `key`, `value` (B, H, L, D); `mask` bool or additive, broadcasts to (B, H, L, L); `borders` (B, L, 2), the
    first key of each query and the end of its keys, or None -> (B, H, L, D).
    """
    is_graph = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if is_graph or (mask is not None and mask.requires_grad):
        bias = whole_bias(terms, mask, borders, query.shape[2], query.dtype)
        return nn.functional.scaled_dot_product_attention(query, key, value, bias, dropout, scale=scaling)
    if terms.is_empty and borders is None:
        mask = narrow_mask(mask, query.dtype) if is_additive(mask) else mask
        return nn.functional.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scaling)
    terms, borders = as_borders(terms, mask, borders, query)
    mask = as_additive(mask, query.dtype)
    slots = [None if slots is None else slots.to(query.dtype) for slots in (terms.query_slots, terms.key_slots)]
    # From the default generator, so that checkpointing, which winds it back, drops the same weights again.
    seed = int(torch.randint(2**62, (1,), device="cpu")) if dropout else 0
    inputs = (query, key, value, *slots)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs):
        settings = terms.kernel_size, terms.window, scaling, dropout, seed
        return TiledAttention.apply(*inputs, mask, borders, *settings).transpose(1, 2)
    small = terms._replace(query_slots=slots[0], key_slots=slots[1])
    return tiled_attention(query, key, value, small, mask, borders, scaling, dropout, seed).transpose(1, 2)


__all__ = ["KernelTerms", "as_additive", "as_borders", "fast_attention", "whole_bias"]
