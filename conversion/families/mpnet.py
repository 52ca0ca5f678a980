# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""MPNet: one bucketed relative bias for all layers, which is a fixed kernel; absolute positions that skip padding."""

import math
from typing import Any

import torch

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.conversion.families import bert
from modeling_convbert_composite.conversion.families.base import (
    BARE_ENCODER,
    Computed,
    Family,
    Forward,
    Layout,
    transformers_forward,
)
from modeling_convbert_composite.conversion.families.roberta import HEAD_NAMES
from modeling_convbert_composite.conversion.sources import ConversionError, Source


PREFIX = "mpnet."

# Offsets of 91 tokens and more share the last bucket: the smallest half-width that is exact for every length.
HALF_WIDTH = 91

# Both are constants of transformers' code, whatever the config says.
BUCKETS = 32
PAD_TOKEN_ID = 1

ENCODER = bert.ENCODER | {
    "encoder.layer.*.attention.attn.q": "encoder.layer.*.attention.self.query",
    "encoder.layer.*.attention.attn.k": "encoder.layer.*.attention.self.key",
    "encoder.layer.*.attention.attn.v": "encoder.layer.*.attention.self.value",
    "encoder.layer.*.attention.attn.o": "encoder.layer.*.attention.output.dense",
    "encoder.layer.*.attention.LayerNorm": "encoder.layer.*.attention.output.LayerNorm",
}


def buckets(offset: torch.Tensor) -> torch.Tensor:
    """
    The bucket of a key `offset` = j - i tokens behind the query: half of them for each side, single offsets up to 7,
    then logarithmic up to 128. In float32, as the original, whose rounding decides at the borders.
    """
    half, single, furthest = BUCKETS // 2, BUCKETS // 4, 128
    distance = offset.abs()
    logarithmic = torch.log(distance.float() / single) / math.log(furthest / single) * (half - single)
    far = (single + logarithmic.long()).clamp(max=half - 1)
    return torch.where(distance < single, distance, far) + torch.where(offset > 0, half, 0)


def fixed_kernel(table: torch.Tensor) -> torch.Tensor:
    """(buckets, H) -> (H, R)."""
    offset = torch.arange(-HALF_WIDTH, HALF_WIDTH + 1)
    return table[buckets(offset)].T.contiguous()


def refuse(source: Source) -> None:
    pad = source.config.get("pad_token_id", PAD_TOKEN_ID)
    if pad != PAD_TOKEN_ID:
        raise ConversionError(
            f"MPNet with `pad_token_id={pad!r}` is not supported: transformers' MPNet counts positions by pad id "
            f"{PAD_TOKEN_ID} whatever its config says."
        )
    table = next((t for name, t in source.tensors.items() if name.endswith("relative_attention_bias.weight")), None)
    if table is not None and table.shape[0] < BUCKETS:
        raise ConversionError(
            f"MPNet with {table.shape[0]} buckets is not supported: transformers' MPNet always uses {BUCKETS}."
        )


def fields(source: Source) -> dict[str, Any]:
    return bert.shared_fields(source) | {
        "type_vocab_size": 0,
        "position_embedding_type": "absolute",
        "position_ids_rule": "skip_padding",
        "fixed_kernel": True,
        "query_kernel": False,
        "kernel_size": 2 * HALF_WIDTH + 1,
        "mlm_act": "gelu",
    }


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    kernel = Computed(
        "encoder.layer.*.attention.self.fixed_kernel", ("encoder.relative_attention_bias.weight",), fixed_kernel
    )
    return Layout(PREFIX, ENCODER, HEAD_NAMES | {BARE_ENCODER: bert.BARE_POOLER}, (kernel,), bert.DROPPED)


def reference(source: Source, head: str) -> Forward:
    # MPNet's forward knows no segments.
    forward = transformers_forward(source, head, PREFIX)
    return lambda token_type_ids, **inputs: forward(**inputs)


FAMILY = Family(
    name="mpnet",
    model_types=("mpnet",),
    exact="MPNet: the bucketed bias as a fixed kernel of half-width 91, exact at every length; all five heads",
    refuse=refuse,
    fields=fields,
    layout=layout,
    reference=reference,
)
