# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The relative positions of transformers 4, `relative_key` and `relative_key_query`, which transformers 5 dropped: such
checkpoints load there without an error, as models with absolute positions that were never trained.

    relative_key:        score = (q_i.k_j + q_i.E[M-1+i-j]) / sqrt(D)
    relative_key_query:  score = (q_i.k_j + q_i.E[M-1+i-j] + k_j.E[M-1+i-j]) / sqrt(D)

E is a table of 2M - 1 rows a layer, M = `max_position_embeddings`: a query kernel read backwards, and a key kernel.
ALBERT divides by sqrt(D) before it adds the relative terms, so that its tables count sqrt(D) times as much.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.conversion.families import albert, bert, electra, roberta
from modeling_convbert_composite.conversion.families.base import (
    Computed,
    Family,
    Forward,
    Layout,
    is_relative,
    transformers_forward,
)
from modeling_convbert_composite.conversion.sources import ConversionError, Source


# Model type -> the family whose encoder it is.
BASES = {
    **dict.fromkeys(bert.PREFIXES, bert.FAMILY),
    **dict.fromkeys(roberta.PREFIXES, roberta.FAMILY),
    "electra": electra.FAMILY,
    "albert": albert.FAMILY,
}

KINDS = ("relative_key", "relative_key_query")

# The only one that adds absolute positions as well.
KEEPS_POSITIONS = ("bert-generation",)


def refuse(source: Source) -> None:
    kind = source.config.get("position_embedding_type", "absolute")
    has_tables = source.has(r"\.distance_embedding\.weight$")
    if not is_relative(source):
        raise ConversionError("The source has no relative positions; its family is one with absolute positions.")
    if kind not in KINDS:
        raise ConversionError(
            f"The source has relative tables (`distance_embedding`), but its config says "
            f"`position_embedding_type={kind!r}`, which does not tell how to use them: set one of {', '.join(KINDS)}."
        )
    if not has_tables:
        raise ConversionError(
            f"The source's config says `position_embedding_type={kind!r}`, but the file has no relative tables "
            "(`distance_embedding`): it was saved again by transformers 5, which drops them. Convert the file that "
            "transformers 4 wrote; this one has lost its positions."
        )
    if source.model_type == "electra":
        electra.refuse_summary(source)
    bert.refuse_unsupported(source)


def fields(source: Source) -> dict[str, Any]:
    values = BASES[source.model_type].fields(source)
    return values | {
        "position_embedding_type": "absolute" if source.model_type in KEEPS_POSITIONS else "none",
        "query_kernel": True,
        "key_kernel": source.config["position_embedding_type"] == "relative_key_query",
        "kernel_size": 2 * values["max_position_embeddings"] - 1,
    }


def table_name(source: Source) -> tuple[str, ...] | Callable[[int], tuple[str, ...]]:
    """Where a layer's table stands."""
    if source.model_type == "albert":
        return lambda layer: (albert.group_path(source, layer) + "attention.distance_embedding.weight",)
    return ("encoder.layer.*.attention.self.distance_embedding.weight",)


def kernel(scale: float, is_query: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The rule from E (2M - 1, D) to a kernel (D, R): slots of the query kernel count j - i, those of E i - j."""

    def turn(table: torch.Tensor) -> torch.Tensor:
        rows = table.flip(0) if is_query else table
        if scale != 1.0:
            rows = (rows.double() * scale).to(torch.promote_types(rows.dtype, torch.float32))
        return rows.T.contiguous()

    return turn


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    base = BASES[source.model_type].layout(source, config)
    scale = config.head_size**0.5 if source.model_type == "albert" else 1.0
    kernels = [
        Computed(
            f"encoder.layer.*.attention.self.{name}", table_name(source), kernel(scale, is_query), exact=scale == 1.0
        )
        for name, is_query in (("query_kernel", True), ("key_kernel", False))
        if getattr(config, name)
    ]
    dropped = base.dropped
    if config.position_embedding_type == "none":
        # In the file, but never read.
        dropped = (*dropped, r"embeddings\.position_embeddings\.weight")
    encoder = {
        name: target
        for name, target in base.encoder.items()
        if config.position_embedding_type == "absolute" or name != "embeddings.position_embeddings"
    }
    return replace(base, encoder=encoder, computed=(*base.computed, *kernels), dropped=dropped)


def reference(source: Source, head: str) -> Forward:
    """
    transformers' own class for everything but the attention, and the formula of transformers 4 for that.
    """

    def prepare(model: PreTrainedModel) -> None:
        add_tables(model, source)
        AttentionInterface.register(ORACLE, attention_of_transformers_4)
        AttentionMaskInterface.register(ORACLE, eager_mask)
        model.set_attn_implementation(ORACLE)

    prefix = BASES[source.model_type].layout(source, ConvBertCompositeConfig()).prefix
    if source.model_type in KEEPS_POSITIONS:
        return transformers_forward(source, head, prefix, prepare)
    # Without a position table the input may be longer than transformers 4 took it: kernels clip.
    return transformers_forward(
        source,
        head,
        prefix,
        prepare,
        ignored=r"\.position_embeddings\.",
        max_position_embeddings=POSITIONS_OF_THE_PROOF,
    )


POSITIONS_OF_THE_PROOF = 4096
ORACLE = "transformers_4_relative_positions"


def add_tables(model: PreTrainedModel, source: Source) -> None:
    """Gives each attention module its table, and takes the position table's effect away where 4.x never read it."""
    modules = dict(model.named_modules())
    suffix = ".distance_embedding.weight"
    for name, table in source.tensors.items():
        if name.endswith(suffix):
            path = name.removesuffix(suffix)
            module = next(
                module for key, module in modules.items() if key and (path.endswith(key) or key.endswith(path))
            )
            module.relative_table = table.double()
            module.adds_key_term = source.config["position_embedding_type"] == "relative_key_query"
            module.scales_table = source.model_type != "albert"
    for name, module in modules.items():
        if name.endswith("position_embeddings") and source.model_type not in KEEPS_POSITIONS:
            nn.init.zeros_(module.weight)


def attention_of_transformers_4(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula at the head of this file, with q, k, v (B, H, L, D); offsets beyond the table take its last row."""
    table, length, scale = cast(torch.Tensor, module.relative_table), query.shape[2], query.shape[-1] ** -0.5
    reach = len(table) // 2
    offset = torch.arange(length)[:, None] - torch.arange(length)[None, :]  # i - j
    rows = table[offset.clamp(-reach, reach) + reach]  # (L, L, D)
    relative = torch.einsum("bhid,ijd->bhij", query, rows)
    if module.adds_key_term:
        relative = relative + torch.einsum("bhjd,ijd->bhij", key, rows)
    scores = query @ key.mT * scale + relative * (scale if module.scales_table else 1.0)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2), weights


FAMILY = Family(
    name="bert_relative",
    model_types=tuple(BASES),
    exact="relative_key(_query) of transformers 4: BERT, ERNIE, bert-generation, ELECTRA, RoBERTa line, ALBERT",
    proof="transformers' own class with the attention formula of transformers 4",
    condition=is_relative,
    refuse=refuse,
    fields=fields,
    layout=layout,
    reference=reference,
)
