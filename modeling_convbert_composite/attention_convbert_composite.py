# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The maths of composite attention (Chang et al. 2021, arXiv 2106.05505): pure functions on tensors.

    score[b,h,i,j] =  q_i.k_j * s                   query-key product
                    + F[h, slot(j - i)]             fixed kernel    (Raffel et al. 2020)
                    + q_i.U[slot(j - i)] * s        query kernel    (Shaw et al. 2018)
                    + k_j.T[slot(i - j)] * s        key kernel
    y = softmax_j(score + mask) v  (+ g_h * depthwise convolution of v)

    slot(n) = clip(n, -K, K) + K        s = D ** -0.5

Composite attention is the first three terms. Every term beside the product is a lightweight convolution: it depends on
j - i alone, up to the edge of a kernel of R slots. So each is computed in two steps: score the R slots of every
position, then let every (query, key) pair take its slot.

Letters: B batch, H heads, L length in tokens, D head size, K half-width of a kernel in tokens, R = 2K + 1 slots,
C channels of the hidden states, A = H * D, T taps of a dynamic convolution. Queries stand before keys: (B, H, L, L).
"""

from collections.abc import Callable
from typing import TypeGuard

import torch
from torch import nn


def fixed_kernel(table: torch.Tensor) -> torch.Tensor:
    """
    Fixed lightweight convolution (Raffel et al.): the same slot scores at every position, F[h, r]. Not scaled.

    `table` (H, R) -> slot scores (1, H, 1, R).
    """
    return table[None, :, None, :]


def slot_scores(states: torch.Tensor, table: torch.Tensor, scaling: float) -> torch.Tensor:
    """s * x_i.T_r: `states` (B, H, L, D), `table` (D, R) or (H, D, R) -> (B, H, L, R)."""
    if table.dim() == 3:
        return states @ (table * scaling)
    # Tokens before heads, as projections leave them in memory: one product of two matrices, and no copy.
    return (states.transpose(1, 2) @ (table * scaling)).transpose(1, 2)


def query_kernel(query: torch.Tensor, table: torch.Tensor, scaling: float) -> torch.Tensor:
    """
    Dynamic lightweight convolution made from the query (Shaw et al.): s * q_i.U_r.

    `query` (B, H, L, D), `table` (D, R) shared by the heads or (H, D, R) -> slot scores (B, H, L, R) of query i.
    """
    return slot_scores(query, table, scaling)


def key_kernel(key: torch.Tensor, table: torch.Tensor, scaling: float) -> torch.Tensor:
    """
    Dynamic lightweight convolution made from the key: s * k_j.T_r.

    `key` (B, H, L, D), `table` (D, R) shared by the heads or (H, D, R) -> slot scores (B, H, L, R) of key j.
    """
    return slot_scores(key, table, scaling)


def kernel_slots(length: int, kernel_size: int, device: torch.device | None = None) -> torch.Tensor:
    """slot(j - i) = clip(j - i, -K, K) + K of every pair: (L, L) int64, queries before keys."""
    half_width = kernel_size // 2
    position = torch.arange(length, device=device)
    return (position[None, :] - position[:, None]).clamp(-half_width, half_width) + half_width


def spread_query_slots(slots: torch.Tensor, length: int) -> torch.Tensor:
    """score[i, j] = slots[i, slot(j - i)]: (B, H, L or 1, R) -> (B, H, L, L)."""
    index = kernel_slots(length, slots.shape[-1], slots.device)
    slots = slots.expand(-1, -1, length, -1)
    return slots.gather(-1, index.expand(*slots.shape[:2], -1, -1))


def spread_key_slots(slots: torch.Tensor) -> torch.Tensor:
    """score[i, j] = slots[j, slot(i - j)]: (B, H, L, R) -> (B, H, L, L). Seen from the key, so transposed."""
    return spread_query_slots(slots, slots.shape[-2]).transpose(-1, -2)


def outside_window(length: int, kernel_size: int, device: torch.device | None = None) -> torch.Tensor:
    """True where |j - i| > K, the pairs that a true local convolution (Wu et al. 2019) does not attend: (L, L)."""
    position = torch.arange(length, device=device)
    return (position[None, :] - position[:, None]).abs() > kernel_size // 2


def outside_borders(borders: torch.Tensor, keys: slice) -> torch.Tensor:
    """
    True where a key lies outside its query's text. `borders` (B, L, 2): the first key of each query's text and the
    end; `keys` some of L -> (B, 1, L, keys).
    """
    key = torch.arange(keys.start, keys.stop, device=borders.device)
    return ((key < borders[..., :1]) | (key >= borders[..., 1:]))[:, None]


def window_borders(borders: torch.Tensor | None, length: int, kernel_size: int, device: torch.device) -> torch.Tensor:
    """The keys within K of each query, as borders (B or 1, L, 2); within `borders` if there are such."""
    position = torch.arange(length, device=device)
    half_width = kernel_size // 2
    window = torch.stack([(position - half_width).clamp(min=0), (position + half_width + 1).clamp(max=length)], -1)[
        None
    ]
    if borders is None:
        return window
    return torch.stack(
        [torch.maximum(borders[..., 0], window[..., 0]), torch.minimum(borders[..., 1], window[..., 1])], -1
    )


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which softmaxes are taken: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def masked_score(dtype: torch.dtype) -> float:
    """A score that no softmax sees. Half the minimum, so that two masks, or a mask and a score, never overflow."""
    return torch.finfo(dtype).min / 2


def add_up(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    """The sum of what is there."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def position_bias(
    query_slots: torch.Tensor | None,
    key_slots: torch.Tensor | None,
    length: int,
    window: int | None = None,
) -> torch.Tensor | None:
    """
    Everything that is added to the query-key product.

    `query_slots` (B or 1, H, L or 1, R), the fixed and the query kernel added up; `key_slots` (B, H, L, R);
    `window` = R if keys beyond K must not be attended -> (B or 1, H, L, L), or None if nothing is on.
    """
    bias = add_up(
        None if query_slots is None else spread_query_slots(query_slots, length),
        None if key_slots is None else spread_key_slots(key_slots),
    )
    if window is not None and bias is not None:
        bias = bias.masked_fill(outside_window(length, window, bias.device), masked_score(bias.dtype))
    return bias


def zero_padding(states: torch.Tensor, token_mask: torch.Tensor | None) -> torch.Tensor:
    """Sets padded positions to zero, so that no convolution reads them. `states` (B, L, C), `token_mask` (B, L)."""
    return states if token_mask is None else states.masked_fill(~token_mask[..., None], 0)


def convolution(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int) -> torch.Tensor:
    """
    Grouped convolution over positions: y_i = bias + sum_n weight_n x_(i+n), |n| <= K, zero outside the text.

    `states` (B, L, C), `weight` (outputs, C / groups, R) -> (B, L, outputs).
    """
    half_width = weight.shape[-1] // 2
    channels_first = states.transpose(1, 2)
    if groups == states.shape[-1] and states.device.type == "cpu":
        # CPUs are ten times as fast where a position's channels lie together, as here, and only conv2d keeps them so.
        images, kernels = channels_first[:, :, None], weight[:, :, None]  # (B, C, 1, L), (outputs, 1, 1, R)
        output = nn.functional.conv2d(images, kernels, bias, padding=(0, half_width), groups=groups)[:, :, 0]
    else:
        output = nn.functional.conv1d(channels_first, weight, bias, padding=half_width, groups=groups)
    return output.transpose(1, 2)


def depthwise_separable(
    states: torch.Tensor,
    depthwise: tuple[torch.Tensor, torch.Tensor | None],
    pointwise: tuple[torch.Tensor, torch.Tensor],
    activation: Callable[[torch.Tensor], torch.Tensor] | None,
) -> torch.Tensor:
    """
    A convolution of each channel by itself, an activation if there is one, then a linear map over the channels.

    `states` (B, L, C), `depthwise` weight (m * C, 1, R) and bias, `pointwise` weight (outputs, m * C) and bias ->
    (B, L, outputs). Channel o of the first step reads channel o // m.
    """
    channels = convolution(states, *depthwise, groups=states.shape[-1])
    if activation is not None:
        channels = activation(channels)
    return nn.functional.linear(channels, *pointwise)


def depthwise_values(
    values: torch.Tensor,
    token_mask: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
) -> torch.Tensor:
    """
    The depthwise term g_h * (W * v + bias)_i, added to the attention's output. Padding is zeroed after the projection
    of the values, so that its bias does not leak in.

    `values` (B, L, A), `weight` (A, 1, R), `bias` (A,), `scale` (H,) -> (B, L, H, D).
    """
    output = convolution(zero_padding(values, token_mask), weight, bias, groups=values.shape[-1])
    return output.unflatten(-1, (scale.shape[0], -1)) * scale[:, None]


def neighbours(states: torch.Tensor, taps: int) -> torch.Tensor:
    """states[:, i + t - K] for every tap t, zero outside the text: (B, L, ...) -> (B, L, ..., T)."""
    half_width = taps // 2
    edges = [0, 0] * (states.dim() - 2) + [half_width, half_width]
    return nn.functional.pad(states, edges).unfold(1, taps, 1)


def span_weights(logits: torch.Tensor, token_mask: torch.Tensor | None) -> torch.Tensor:
    """
    Kernels read at the query, softmax over the taps that hit a token of the text: (B, L, H, T) -> (B, L, H, T).
    """
    batch, length, _, taps = logits.shape
    if token_mask is None:
        token_mask = torch.ones(batch, length, dtype=torch.bool, device=logits.device)
    hits = neighbours(token_mask.to(logits.dtype), taps)[:, :, None, :] > 0  # (B, L, 1, T)
    weights = logits.masked_fill(~hits, torch.finfo(logits.dtype).min).softmax(-1, dtype=wide(logits.dtype))
    return weights.to(logits.dtype).masked_fill(~hits, 0)


def convbert_weights(logits: torch.Tensor, token_mask: torch.Tensor | None) -> torch.Tensor:
    """
    transformers' ConvBERT: softmax over all taps, whatever they hit. (B, L, H, T) -> (B, L, H, T).
    """
    return logits.softmax(-1, dtype=wide(logits.dtype)).to(logits.dtype)


def reference_weights(logits: torch.Tensor, token_mask: torch.Tensor | None) -> torch.Tensor:
    """
    The paper's code: the score of query i for key j comes from the kernel made at j, slot j - i.
    (B, L, H, T) -> (B, L, H, T).
    """
    taps = logits.shape[-1]
    at_key = neighbours(logits, taps)  # (B, L, H, T slots of key i + t - K, T taps)
    return span_weights(at_key.diagonal(dim1=-2, dim2=-1), token_mask)


TAP_WEIGHTS = {"span": span_weights, "convbert": convbert_weights, "reference": reference_weights}


def dynamic_convolution(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """
    y_i = sum_t weights_i,t v_(i+t-K), v = 0 outside the text.

    `weights` (B, L, H, T), `values` (B, L, H, D) -> (B, L, H, D).
    """
    length, taps = weights.shape[1], weights.shape[-1]
    half_width = taps // 2
    padded = nn.functional.pad(values, [0, 0, 0, 0, half_width, half_width])
    output = torch.zeros_like(values)
    for tap in range(taps):
        output = output + weights[..., tap, None] * padded[:, tap : tap + length]
    return output


def attention_map_of_taps(weights: torch.Tensor) -> torch.Tensor:
    """Tap weights (B, L, H, T) as an attention map (B, H, L, L); taps outside the text are lost."""
    batch, length, heads, taps = weights.shape
    half_width = taps // 2
    columns = length + 2 * half_width
    column = torch.arange(length, device=weights.device)[:, None] + torch.arange(taps, device=weights.device)
    band = weights.new_zeros(batch, heads, length, columns)
    band = band.scatter(-1, column.expand(batch, heads, -1, -1), weights.transpose(1, 2))
    return band[..., half_width : half_width + length]


# Whoever writes an additive mask in float16 has -65504 at most, and the paper's code -10000: what is below is hidden.
HIDDEN_BELOW = -9000


def is_seen(mask: torch.Tensor, adds: torch.Tensor) -> torch.Tensor:
    """What a mask of numbers lets through: of an additive one, if `adds` (one bool), what it does not push below."""
    return (adds & (mask > HIDDEN_BELOW)) | (~adds & (mask > 0))


def read_token_mask(mask: torch.Tensor) -> torch.Tensor:
    """
    Which positions are tokens, (B, L) bool, from a mask of any dtype: (B, L), or of pairs (B, L, L) and (B, H, L, L),
    where a position that no query sees is padding.
    """
    if mask.dim() > 2:
        visible, _ = read_pairwise_mask(mask[:, None] if mask.dim() == 3 else mask, torch.float32)
        return visible.any(1).any(1)
    if mask.dtype == torch.bool:
        return mask
    # 1 = token, 0 = not; or, if there is a negative value, an additive mask.
    return is_seen(mask, (mask < 0).any())


def read_pairwise_mask(mask: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """
    A mask of pairs (B, 1 or H, L, L) of any dtype as who sees whom (bool) and as scores to add (`dtype`).

    Numbers are ambiguous: 1 = attend and 0 = not, or an additive mask (0 = attend, very negative = not, else a bias).
    Integers without a negative one, and floats of ones and zeros with at least one 1, are of the first kind.
    """
    masked = masked_score(dtype)
    zeros = torch.zeros_like(mask, dtype=dtype)
    if mask.dtype == torch.bool:
        visible = mask
        return visible, zeros.masked_fill(~visible, masked)
    adds = (mask < 0).any()
    if mask.is_floating_point():
        adds = ~(((mask == 0) | (mask == 1)).all() & (mask == 1).any())
    visible = is_seen(mask, adds)
    scores = torch.where(adds, mask.to(dtype), zeros)
    return visible, scores.masked_fill(~visible, masked)


def is_additive(mask: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether a backend's mask is one of scores to add."""
    return isinstance(mask, torch.Tensor) and mask.is_floating_point()


def narrow_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An additive mask in another dtype, in which hidden pairs stay finite."""
    return mask.clamp(min=masked_score(dtype)).to(dtype)


def refuse_borders(visible: torch.Tensor, token_mask: torch.Tensor) -> None:
    """Convolutions read neighbours whatever the mask says: refuse a mask that hides one token from another."""
    pairs = token_mask[:, None, :, None] & token_mask[:, None, None, :]
    crosses = (pairs & ~visible).any()
    message = (
        "`attention_mask` hides tokens from each other, but this model has convolutions (depthwise, in its "
        "projections, or dynamic heads), which read across such borders. Say where texts begin and end with "
        "`sequence_ids` instead (README, section Packing)."
    )
    if torch.compiler.is_compiling():
        torch._assert_async(~crosses, message)
    elif crosses:
        raise ValueError(message)


def eager_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    softmax(q k^T * s + bias + mask) v, written out. `query`, `key`, `value` (B, H, L, D); `bias` broadcasts to
    (B, H, L, L); `mask` likewise, float and additive. The softmax is taken in float32 at least.

    Returns the output (B, H, L, D) and the attention weights after dropout (B, H, L, L).
    """
    scores = query @ key.transpose(-1, -2) * scaling  # (B, H, L, D) x (B, H, D, L) -> (B, H, L, L)
    if bias is not None:
        scores = scores + bias
    scores = scores.to(wide(query.dtype))
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1).to(query.dtype)
    weights = nn.functional.dropout(weights, dropout, training=dropout > 0)
    return weights @ value, weights


__all__ = [
    "TAP_WEIGHTS",
    "add_up",
    "attention_map_of_taps",
    "convbert_weights",
    "convolution",
    "depthwise_separable",
    "depthwise_values",
    "dynamic_convolution",
    "eager_attention",
    "fixed_kernel",
    "is_additive",
    "kernel_slots",
    "key_kernel",
    "masked_score",
    "narrow_mask",
    "neighbours",
    "outside_borders",
    "outside_window",
    "position_bias",
    "query_kernel",
    "read_pairwise_mask",
    "read_token_mask",
    "reference_weights",
    "refuse_borders",
    "slot_scores",
    "span_weights",
    "spread_key_slots",
    "spread_query_slots",
    "window_borders",
    "zero_padding",
]
