# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of the paper's code: model type `bert`, with flags of its own in config.json."""

from typing import Any

import torch

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.configuration.reference_flags import reference_fields
from modeling_convbert_composite.conversion.families import bert
from modeling_convbert_composite.conversion.families.base import Computed, Family, Forward, Layout, Names, is_original
from modeling_convbert_composite.conversion.reference_bert_convolutions import ACTIVATIONS, reference_forward
from modeling_convbert_composite.conversion.sources import ConversionError, Source


SELF = "encoder.layer.*.attention.self."

# The original's modules of a projection `name` -> ours, by (kind, mixed).
PROJECTIONS = {
    ("linear", False): {"{name}": "{name}"},
    ("none", False): {},
    ("convolution", False): {"{name}_conv": "{name}"},
    ("convolution", True): {"{name}_conv": "{name}.convolution", "{name}_linear": "{name}.linear"},
    ("depthwise_separable", False): {"{name}_conv": "{name}.depthwise", "{name}_pointwise": "{name}.pointwise"},
    ("depthwise_separable", True): {
        "{name}_conv": "{name}.convolution.depthwise",
        "{name}_pointwise": "{name}.convolution.pointwise",
        "{name}_linear": "{name}.linear",
    },
}

DYNAMIC_CONVOLUTION = {
    SELF + "convbert_key_depthwise": SELF + "dynamic_convolution.depthwise",
    SELF + "convbert_key_pointwise": SELF + "dynamic_convolution.pointwise",
    SELF + "lightweight_kernel": SELF + "dynamic_convolution.kernel",
}

# The original's kernel tensors: name, our term, change of shape. With radius 0 it has them and skips them.
KERNELS = (
    ("convfixed_param", "fixed_kernel", lambda table: table[0, :, 0, :]),  # (1, H, 1, R) -> (H, R)
    ("convq_param", "query_kernel", lambda table: table),  # (D, R)
    ("convk_param", "key_kernel", lambda table: table),  # (D, R)
    ("convolution_scalar", "depthwise_kernel", lambda scale: scale.reshape(-1)),  # (1, H, 1, 1) -> (H,)
)


def refuse(source: Source) -> None:
    act = source.config.get("hidden_act", "gelu")
    if act not in ACTIVATIONS:
        raise ConversionError(f"`hidden_act={act!r}` is none of the original's: {', '.join(ACTIVATIONS)}.")


def check_slots(source: Source, config: ConvBertCompositeConfig) -> None:
    """The original computes with the slots saved in the file: they must be the clipped offsets."""
    half_width = config.kernel_size // 2
    for name, slots in source.tensors.items():
        if not name.endswith(".relative_positions_mat"):
            continue
        position = torch.arange(slots.shape[-1])
        expected = (position[None, :] - position[:, None]).clamp(-half_width, half_width) + half_width
        if slots.shape[:2] != (1, 1) or not torch.equal(slots[0, 0].long(), expected):
            raise ConversionError(
                f"{name!r} does not hold the offsets j - i clipped to {half_width}, as `attention_kernel` says: the "
                "file was altered, or belongs to another config.json."
            )


def projection_names(config: ConvBertCompositeConfig) -> Names:
    """Where the original's query, key and value modules go."""
    names = {}
    for part, modules in (("query_key", ("query", "key")), ("value", ("value",))):
        kind = (getattr(config, f"{part}_projection"), getattr(config, f"{part}_mixed"))
        for module in modules:
            if module == "value" or getattr(config, f"uses_{module}"):
                for source, target in PROJECTIONS[kind].items():
                    names[SELF + source.format(name=module)] = SELF + target.format(name=module)
    return names


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    check_slots(source, config)
    names = bert.ENCODER | {"embeddings_project": "embeddings.projection"} | dict(projection_names(config))
    if config.depthwise_kernel:
        names[SELF + "convolution"] = SELF + "depthwise_kernel"
    if config.dynamic_convolution_heads:
        names |= DYNAMIC_CONVOLUTION
    targets = {"depthwise_kernel": "depthwise_scale"}
    computed = tuple(
        Computed(SELF + targets.get(term, term), (SELF + name,), function)
        for name, term, function in KERNELS
        if getattr(config, term)
    )
    unused = [name for name, term, _ in KERNELS if not getattr(config, term)]
    unused += [f"{module}.(weight|bias)" for module in ("query", "key") if not getattr(config, f"uses_{module}")]
    dropped = (*bert.DROPPED, *(rf"encoder\.layer\.\d+\.attention\.self\.{name}" for name in unused))
    return Layout(
        prefix="bert.",
        encoder=names,
        heads=bert.HEAD_NAMES,
        computed=computed,
        dropped=(*dropped, r"encoder\.layer\.\d+\.attention\.self\.relative_positions_mat"),
    )


def fields(source: Source) -> dict[str, Any]:
    return reference_fields(source.config)


def reference(source: Source, head: str) -> Forward:
    return reference_forward(source.tensors, source.config, head)


FAMILY = Family(
    name="bert_convolutions",
    model_types=("bert",),
    exact="the paper's code: every attention kernel, projection and ConvBERT form, all six heads",
    proof="a plain float64 re-statement of the original",
    condition=is_original,
    refuse=refuse,
    fields=fields,
    layout=layout,
    reference=reference,
)
