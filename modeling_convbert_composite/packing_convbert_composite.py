# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Several texts in one row, as if each stood alone: attention stays within a text, positions start again, and
convolutions see nothing but zeros beyond a border.

A convolution cannot be told where texts end. So models that have one spread their rows while they attend: K zeros
between two texts, K the half-width of the widest convolution, are what each would see at its ends if it stood alone.

Letters: B rows, L length of a row in tokens, C channels, S length of a spread row.
"""

from typing import NamedTuple

import torch

from .configuration_convbert_composite import ConvBertCompositeConfig


class Packing(NamedTuple):
    """
    Where the texts of each row are. `borders` (B, S, 2): the first position of each position's text and the end;
    padding is a text of its own. `places` (B, L): where each token is in the spread row, None if rows are not spread
    (S = L). `token_mask` (B, S): True at tokens, None if all are.
    """

    borders: torch.Tensor
    places: torch.Tensor | None
    token_mask: torch.Tensor | None

    def spread(self, states: torch.Tensor) -> torch.Tensor:
        """(B, L, C) -> (B, S, C) with zeros wherever there is no token."""
        if self.places is None or self.token_mask is None:
            return states
        spread = states.new_zeros(states.shape[0], self.borders.shape[1], states.shape[2])
        spread = spread.scatter(1, self.places[..., None].expand_as(states), states)
        return spread.masked_fill(~self.token_mask[..., None], 0)

    def collect(self, states: torch.Tensor) -> torch.Tensor:
        """(B, S, C) -> (B, L, C)."""
        if self.places is None:
            return states
        return states.gather(1, self.places[..., None].expand(-1, -1, states.shape[2]))

    def collect_pairs(self, weights: torch.Tensor) -> torch.Tensor:
        """(B, H, S, S) -> (B, H, L, L)."""
        if self.places is None:
            return weights
        length = self.places.shape[1]
        rows = self.places[:, None, :, None].expand(-1, weights.shape[1], -1, weights.shape[3])
        columns = self.places[:, None, None, :].expand(-1, weights.shape[1], length, -1)
        return weights.gather(2, rows).gather(3, columns)


def text_starts(sequence_ids: torch.Tensor, token_mask: torch.Tensor | None) -> torch.Tensor:
    """True where a text begins: at the start of a row, wherever the id changes, and at all padding. (B, L)."""
    starts = torch.ones_like(sequence_ids, dtype=torch.bool)
    starts[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
    if token_mask is not None:
        starts[:, 1:] |= ~token_mask[:, :-1]
        starts = starts | ~token_mask
    return starts


def text_borders(starts: torch.Tensor) -> torch.Tensor:
    """By position the first of its text and the end of its text, from where texts begin: (B, L) -> (B, L, 2)."""
    length = starts.shape[1]
    position = torch.arange(length, device=starts.device).expand_as(starts)
    first = position.masked_fill(~starts, 0).cummax(1).values
    following = position.masked_fill(~starts, length).roll(-1, 1)
    following[:, -1] = length
    end = following.flip(1).cummin(1).values.flip(1)
    return torch.stack([first, end], -1)


def positions_in_texts(sequence_ids: torch.Tensor, token_mask: torch.Tensor | None) -> torch.Tensor:
    """0, 1, 2, ... in each text: (B, L)."""
    borders = text_borders(text_starts(sequence_ids, token_mask))
    return torch.arange(sequence_ids.shape[1], device=sequence_ids.device) - borders[..., 0]


def widest_convolution(config: ConvBertCompositeConfig) -> int:
    """The half-width in tokens of the widest convolution that reads neighbours; 0 without any."""
    convolutional = ("convolution", "depthwise_separable")
    sizes = [
        config.kernel_size if config.depthwise_kernel else 1,
        config.query_key_kernel_size if config.query_key_projection in convolutional else 1,
        config.value_kernel_size if config.value_projection in convolutional else 1,
        config.dynamic_convolution_kernel_size if config.dynamic_convolution_heads else 1,
    ]
    return max(sizes) // 2


def make_packing(
    config: ConvBertCompositeConfig, sequence_ids: torch.Tensor, token_mask: torch.Tensor | None
) -> Packing:
    """
    From `sequence_ids` (B, L), integers: neighbours with the same id are of one text. `token_mask` (B, L) or None.
    """
    starts = text_starts(sequence_ids, token_mask)
    borders = text_borders(starts)
    gap = widest_convolution(config)
    if gap == 0:
        return Packing(borders, None, token_mask)
    batch, length = sequence_ids.shape
    tokens = torch.ones_like(starts) if token_mask is None else token_mask
    # Before every text but a row's first there is a gap. Padding needs none.
    gaps = ((starts & tokens).cumsum(1) - 1).clamp(min=0) * gap
    places = torch.arange(length, device=sequence_ids.device) + gaps
    size = length + int(gaps[:, -1].max())
    spread_mask = torch.zeros(batch, size, dtype=torch.bool, device=tokens.device).scatter(1, places, tokens)
    alone = torch.arange(size, device=tokens.device)
    spread_borders = torch.stack([alone, alone + 1], -1).expand(batch, -1, -1)
    spread_borders = spread_borders.scatter(1, places[..., None].expand(-1, -1, 2), borders + gaps[..., None])
    return Packing(spread_borders, places, spread_mask)


__all__ = ["Packing", "make_packing", "positions_in_texts"]
