# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
DeBERTa v1, v2 and v3: disentangled attention is a query and a key kernel per head. The tables are projections of one
relative embedding, folded once for each layer: exact for inference, no longer tied when trained.

    score = (q_i.k_j + q_i.PK[t(i-j)] + k_j.PQ[t(i-j)]) / sqrt(D * (1 + number of position terms))
    t(n) = S + clip(bucket(n), -S, S - 1)        S rows of the relative embedding on each side

Our scale is 1 / sqrt(D): the rest goes into the queries and PQ.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

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
from modeling_convbert_composite.conversion.sources import ConversionError, Source


PREFIX = "deberta."
SELF = "encoder.layer.*.attention.self."
RELATIVE = "encoder.rel_embeddings.weight"
RELATIVE_NORM = ("encoder.LayerNorm.weight", "encoder.LayerNorm.bias")

# The MLM head of transformers' older code, and of its newer code and the original files.
MASKED_LM = bert.MASKED_LM
LM_PREDICTIONS = {
    "lm_predictions.lm_head.dense": "mlm_head.dense",
    "lm_predictions.lm_head.LayerNorm": "mlm_head.LayerNorm",
    "lm_predictions.lm_head.bias": "mlm_head.decoder.bias",
}

# `pooler` belongs to the head here, under the name that other families give to the encoder's.
HEAD_NAMES = {
    "ForSequenceClassification": bert.POOLER | bert.CLASSIFIER,
    "ForMultipleChoice": bert.POOLER | bert.CLASSIFIER,
    "ForTokenClassification": bert.CLASSIFIER,
    "ForQuestionAnswering": bert.ANSWERS,
    BARE_ENCODER: {},
}

# The head of replaced-token detection in the original files.
DROPPED = (*bert.DROPPED, r"mask_predictions\..*")

# A kernel has two slots for each token that it reaches; released models reach 512.
FURTHEST = 1 << 16

# Settings that transformers reads without declaring them.
UNDECLARED = ("share_att_key", "position_buckets", "norm_rel_ebd", "attention_head_size")

Function = Callable[..., torch.Tensor]


class Settings:
    """What a DeBERTa's config.json says about its attention, defaults filled in."""

    def __init__(self, source: Source):
        values = source.defaults() | source.config
        kinds = values.get("pos_att_type") or []
        self.kinds = [kind.strip() for kind in kinds.lower().split("|")] if isinstance(kinds, str) else list(kinds)
        self.is_relative = bool(values.get("relative_attention"))
        self.heads = int(values["num_attention_heads"])
        self.eps = float(values["layer_norm_eps"])
        furthest = int(values.get("max_relative_positions", -1))
        self.half_width = int(values["max_position_embeddings"]) if furthest < 1 else furthest
        self.buckets = int(values.get("position_buckets", -1)) if source.model_type == "deberta-v2" else -1
        self.span = self.buckets if self.buckets > 0 else self.half_width
        self.shares_projections = bool(values.get("share_att_key"))
        self.normalises = "layer_norm" in str(values.get("norm_rel_ebd", "none")).lower()
        # 1 / sqrt(1 + terms), which our scale does not have.
        self.extra_scale = (1 + len(self.kinds)) ** -0.5

    def rows(self, offset: torch.Tensor) -> torch.Tensor:
        """t(n): the row of the relative embedding for n = i - j tokens."""
        if self.buckets > 0:
            offset = log_buckets(offset, self.buckets, self.half_width)
        return self.span + offset.clamp(-self.span, self.span - 1)


def log_buckets(offset: torch.Tensor, buckets: int, furthest: int) -> torch.Tensor:
    """Offsets up to half the buckets as they are, farther ones logarithmically; in float32, as the original rounds."""
    middle = buckets // 2
    distance = offset.abs().clamp(min=middle - 1).float()
    scale = torch.log(torch.tensor((furthest - 1) / middle))
    far = torch.ceil(torch.log(distance / middle) / scale * (middle - 1)) + middle
    return torch.where(offset.abs() <= middle, offset, (far * offset.sign()).long())


def refuse(source: Source) -> None:
    settings, values = Settings(source), source.defaults() | source.config
    unknown = [kind for kind in settings.kinds if kind not in ("c2p", "p2c")]
    if unknown:
        raise ConversionError(f"DeBERTa with the position term {unknown[0]!r} is not supported, only c2p and p2c.")
    if values.get("talking_head"):
        raise ConversionError("DeBERTa with talking heads (`talking_head`) is not supported: our heads do not mix.")
    if values.get("embedding_size", values["hidden_size"]) != values["hidden_size"] or source.has(r"\.embed_proj\."):
        raise ConversionError(
            "DeBERTa with its own embedding projection (`embedding_size`) is not supported: it stands before the "
            "LayerNorm, ours after it."
        )
    if int(values.get("conv_kernel_size") or 0) > 0 or source.has(r"encoder\.conv\."):
        raise ConversionError(
            "DeBERTa-v2 with its convolution layer (`conv_kernel_size`) is not supported: it stands beside the first "
            "layer, not in its attention."
        )
    if settings.is_relative and not source.has(r"rel_embeddings\.weight$"):
        raise ConversionError("The source lacks 'encoder.rel_embeddings.weight', though `relative_attention` is on.")
    if settings.half_width > FURTHEST:
        raise ConversionError(f"Relative positions up to {settings.half_width} tokens are beyond {FURTHEST}.")


def fields(source: Source) -> dict[str, Any]:
    settings, values = Settings(source), source.defaults() | source.config
    return bert.shared_fields(source, classifier_dropout="cls_dropout") | {
        "position_embedding_type": "absolute" if values.get("position_biased_input", True) else "none",
        "fixed_kernel": False,
        "query_kernel": settings.is_relative and "c2p" in settings.kinds,
        "key_kernel": settings.is_relative and "p2c" in settings.kinds,
        "kernels_per_head": True,
        "kernel_size": 2 * settings.half_width + 1,
        "classifier_act": values.get("pooler_hidden_act", "gelu"),
    }


def relative_table(settings: Settings, scale: float, sign: int) -> Function:
    """
    The rule for a kernel: project the relative embedding, give every slot its row; `sign` -1 where slots count j - i.

    Takes the embedding, its LayerNorm if it has one, weight and perhaps bias of the projection -> (H, D, R).
    """

    def fold(embedding: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        original = embedding.dtype
        embedding, *rest = (tensor.double() for tensor in (embedding, *others))
        embedding = embedding[: 2 * settings.span]
        if settings.normalises:
            gain, shift, *rest = rest
            embedding = functional.layer_norm(embedding, embedding.shape[-1:], gain, shift, settings.eps)
        projected = functional.linear(embedding, *rest) * scale  # (2S, H * D)
        offset = torch.arange(-settings.half_width, settings.half_width + 1)
        slots = projected[settings.rows(sign * offset)]  # (R, H * D)
        return narrow(slots.unflatten(-1, (settings.heads, -1)).permute(1, 2, 0), original).contiguous()

    return fold


def kernels(
    settings: Settings, config: ConvBertCompositeConfig, projections: dict[str, tuple[str, ...]]
) -> list[Computed]:
    """The rules for both kernels; `projections` names the tensors of each one's projection."""
    sources = (RELATIVE, *(RELATIVE_NORM if settings.normalises else ()))
    tables = {"query_kernel": (1.0, -1), "key_kernel": (settings.extra_scale, 1)}
    return [
        Computed(SELF + name, (*sources, *projections[name]), relative_table(settings, *table), exact=False)
        for name, table in tables.items()
        if getattr(config, name)
    ]


def narrow(tensor: torch.Tensor, original: torch.dtype) -> torch.Tensor:
    """Back from float64 to what the source had, float32 at least: a computed table deserves more than its parts."""
    return tensor.to(torch.promote_types(original, torch.float32))


def scaled(factor: float) -> Function:
    return lambda tensor: narrow(tensor.double() * factor, tensor.dtype)


def part_of(heads: int, part: int, factor: float = 1.0) -> Function:
    """One of q, k, v out of v1's joint projection (H, 3, D, C), whose rows are mixed head by head."""

    def take(weight: torch.Tensor) -> torch.Tensor:
        rows = weight.double().reshape(heads, 3, -1, weight.shape[-1])[:, part]  # (H, D, C)
        return narrow(rows.flatten(0, 1) * factor, weight.dtype)

    return take


def layout_v1(settings: Settings, config: ConvBertCompositeConfig) -> tuple[dict[str, str], list[Computed]]:
    """Names and rules of v1: one joint projection without a bias for the keys."""
    weight = (SELF + "in_proj.weight",)
    rules = [
        Computed(SELF + "query.weight", weight, part_of(settings.heads, 0, settings.extra_scale), exact=False),
        Computed(SELF + "key.weight", weight, part_of(settings.heads, 1), exact=False),
        Computed(SELF + "value.weight", weight, part_of(settings.heads, 2), exact=False),
        Computed(SELF + "query.bias", (SELF + "q_bias",), scaled(settings.extra_scale), exact=False),
        Computed(SELF + "key.bias", (SELF + "q_bias",), torch.zeros_like, exact=False),
    ]
    projections = {
        "query_kernel": (SELF + "pos_proj.weight",),
        "key_kernel": (SELF + "pos_q_proj.weight", SELF + "pos_q_proj.bias"),
    }
    return {SELF + "v_bias": SELF + "value.bias"}, rules + kernels(settings, config, projections)


def layout_v2(settings: Settings, config: ConvBertCompositeConfig) -> tuple[dict[str, str], list[Computed]]:
    """Names and rules of v2 and v3: ordinary projections, which may serve the relative embedding as well."""
    names = {SELF + "key_proj": SELF + "key", SELF + "value_proj": SELF + "value"}
    rules = [
        Computed(SELF + f"query.{kind}", (SELF + f"query_proj.{kind}",), scaled(settings.extra_scale), exact=False)
        for kind in ("weight", "bias")
    ]
    prefix = "" if settings.shares_projections else "pos_"
    projections = {
        "query_kernel": tuple(f"{SELF}{prefix}key_proj.{kind}" for kind in ("weight", "bias")),
        "key_kernel": tuple(f"{SELF}{prefix}query_proj.{kind}" for kind in ("weight", "bias")),
    }
    return names, rules + kernels(settings, config, projections)


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    settings = Settings(source)
    build = layout_v1 if source.model_type == "deberta" else layout_v2
    names, rules = build(settings, config)
    masked_lm = LM_PREDICTIONS if source.has(r"^lm_predictions\.") else MASKED_LM
    dropped: tuple[str, ...] = DROPPED
    if config.position_embedding_type == "none":
        dropped = (*dropped, r"embeddings\.position_embeddings\.weight")
    if not (config.query_kernel or config.key_kernel):
        dropped = (*dropped, r"encoder\.rel_embeddings\.weight")
    return Layout(PREFIX, bert.ENCODER | names, {"ForMaskedLM": masked_lm} | HEAD_NAMES, tuple(rules), dropped)


def reference(source: Source, head: str) -> Forward:
    values = {name: source.config[name] for name in UNDECLARED if name in source.config}
    return transformers_forward(source, head, PREFIX, legacy=not source.has(r"^lm_predictions\."), **values)


FAMILY = Family(
    name="deberta",
    model_types=("deberta", "deberta-v2"),
    exact="DeBERTa v1, v2, v3 without the convolution layer: both position terms as kernels per head, all five heads",
    refuse=refuse,
    fields=fields,
    layout=layout,
    reference=reference,
)
