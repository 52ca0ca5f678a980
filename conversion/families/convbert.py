# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""transformers' ConvBERT: half of the heads attend, half are span-based dynamic convolutions."""

from typing import Any

import torch

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.conversion.families import bert, electra
from modeling_convbert_composite.conversion.families.base import (
    BARE_ENCODER,
    Computed,
    Family,
    Forward,
    Layout,
    transformers_forward,
)
from modeling_convbert_composite.conversion.families.roberta import DENSE_CLASSIFIER
from modeling_convbert_composite.conversion.sources import ConversionError, Source


PREFIX = "convbert."
SELF = "encoder.layer.*.attention.self."
DYNAMIC = SELF + "dynamic_convolution."

ENCODER = electra.ENCODER | {
    SELF + "query": SELF + "query",
    SELF + "key": SELF + "key",
    SELF + "key_conv_attn_layer.depthwise": DYNAMIC + "depthwise",
    SELF + "conv_kernel_layer": DYNAMIC + "kernel",
}

HEAD_NAMES = {
    "ForMaskedLM": electra.MASKED_LM,
    "ForSequenceClassification": DENSE_CLASSIFIER,
    "ForTokenClassification": bert.CLASSIFIER,
    "ForQuestionAnswering": bert.ANSWERS,
    BARE_ENCODER: {},
}


def block_diagonal(weight: torch.Tensor) -> torch.Tensor:
    """A grouped linear map (groups, inputs, outputs) as the dense weight (outputs, inputs) that computes the same."""
    return weight if weight.dim() == 2 else torch.block_diag(*weight.transpose(1, 2))


# The values of the attending heads, then those of the dynamic ones; a pointwise convolution as a linear map.
COMPUTED = (
    Computed(
        SELF + "value.weight", (SELF + "value.weight", SELF + "conv_out_layer.weight"), lambda *parts: torch.cat(parts)
    ),
    Computed(
        SELF + "value.bias", (SELF + "value.bias", SELF + "conv_out_layer.bias"), lambda *parts: torch.cat(parts)
    ),
    Computed(
        DYNAMIC + "pointwise.weight",
        (SELF + "key_conv_attn_layer.pointwise.weight",),
        lambda weight: weight.squeeze(-1),
    ),
    Computed(DYNAMIC + "pointwise.bias", (SELF + "key_conv_attn_layer.bias",), lambda bias: bias.squeeze(-1)),
    Computed(
        "encoder.layer.*.intermediate.dense.weight", ("encoder.layer.*.intermediate.dense.weight",), block_diagonal
    ),
    Computed("encoder.layer.*.output.dense.weight", ("encoder.layer.*.output.dense.weight",), block_diagonal),
)


def refuse(source: Source) -> None:
    architectures = source.config.get("architectures") or [""]
    if str(architectures[0]).endswith("ForMultipleChoice"):
        raise ConversionError(
            "ConvBERT's multiple-choice head is not supported: it reads the last token, and has no layer before its "
            "classifier."
        )


def fields(source: Source) -> dict[str, Any]:
    values = bert.shared_fields(source) | bert.PLAIN_ATTENTION
    ratio, taps = (source.config.get(name, source.defaults()[name]) for name in ("head_ratio", "conv_kernel_size"))
    # transformers halves the heads until the ratio is met, and gives both kinds as many.
    heads = max(1, values["num_attention_heads"] // ratio)
    return values | {
        "num_attention_heads": 2 * heads,
        "attention_head_size": values["hidden_size"] // heads // 2,
        "dynamic_convolution_heads": heads,
        "dynamic_convolution_kernel_size": taps,
        "dynamic_convolution_mode": "convbert",
        "classifier_act": values["hidden_act"],
        "mlm_act": "gelu",
    }


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    # Copied whole elsewhere, but grouped here: only the bias of these two is.
    names = {
        name: target for name, target in ENCODER.items() if not name.endswith(("intermediate.dense", "*.output.dense"))
    }
    biases = {
        f"encoder.layer.*.{part}.dense.bias": f"encoder.layer.*.{part}.dense.bias"
        for part in ("intermediate", "output")
    }
    return Layout(PREFIX, names | biases, HEAD_NAMES, COMPUTED, bert.DROPPED)


def reference(source: Source, head: str) -> Forward:
    return transformers_forward(source, head, PREFIX)


FAMILY = Family(
    name="convbert",
    model_types=("convbert",),
    exact="transformers' ConvBERT, reading of padding included: every head ratio, grouped feed-forward, four heads",
    refuse=refuse,
    fields=fields,
    layout=layout,
    reference=reference,
)
