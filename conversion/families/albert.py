# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""ALBERT: layers that share weights in groups. Ours have weights of their own, so the file grows."""

from typing import Any

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
from modeling_convbert_composite.conversion.sources import Source


PREFIX = "albert."

ENCODER = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
    "embeddings.LayerNorm": "embeddings.LayerNorm",
    "encoder.embedding_hidden_mapping_in": "embeddings.projection",
}

# Of one layer of a group -> of each of our layers that it serves.
LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.dense": "attention.output.dense",
    "attention.LayerNorm": "attention.output.LayerNorm",
    "ffn": "intermediate.dense",
    "ffn_output": "output.dense",
    "full_layer_layer_norm": "output.LayerNorm",
}

POOLER = {"pooler": "convbert_composite.pooler.dense"}

MASKED_LM = {
    "predictions.dense": "mlm_head.dense",
    "predictions.LayerNorm": "mlm_head.LayerNorm",
    "?predictions.bias": "mlm_head.decoder.bias",
    "?predictions.decoder": "mlm_head.decoder",
}

HEAD_NAMES = {
    "ForPreTraining": POOLER | MASKED_LM | {"sop_classifier.classifier": "sentence_head"},
    "ForMaskedLM": MASKED_LM,
    "ForSequenceClassification": POOLER | bert.CLASSIFIER,
    "ForMultipleChoice": POOLER | bert.CLASSIFIER,
    "ForTokenClassification": bert.CLASSIFIER,
    "ForQuestionAnswering": bert.ANSWERS,
    BARE_ENCODER: {"?pooler": "pooler.dense"},
}

DROPPED = (*bert.DROPPED, r"pooler\.(weight|bias)")


def group_path(source: Source, layer: int) -> str:
    """Where the weights of our layer `layer` stand: groups in turn, in each its inner layers one after the other."""
    defaults = source.defaults()
    layers, groups, inner = (
        int(source.config.get(name, defaults[name]))
        for name in ("num_hidden_layers", "num_hidden_groups", "inner_group_num")
    )
    group = int(layer // inner / (layers / groups))
    return f"encoder.albert_layer_groups.{group}.albert_layers.{layer % inner}."


def fields(source: Source) -> dict[str, Any]:
    values = bert.shared_fields(source, classifier_dropout="classifier_dropout_prob") | bert.PLAIN_ATTENTION
    values["num_hidden_layers"] *= int(source.config.get("inner_group_num", 1))
    return values | {"embedding_projection": True}


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    computed = tuple(
        shared_tensor(source, f"{theirs}.{parameter}", f"encoder.layer.*.{ours}.{parameter}")
        for theirs, ours in LAYER.items()
        for parameter in ("weight", "bias")
    )
    return Layout(PREFIX, ENCODER, HEAD_NAMES, computed, DROPPED)


def shared_tensor(source: Source, name: str, target: str) -> Computed:
    """The rule that gives a group's tensor to each of our layers."""
    return Computed(target, lambda layer: (group_path(source, layer) + name,), lambda tensor: tensor)


def reference(source: Source, head: str) -> Forward:
    return transformers_forward(source, head, PREFIX)


FAMILY = Family(
    name="albert",
    model_types=("albert",),
    exact="ALBERT: any number of groups and inner layers, all six heads; the shared weights are copied to each layer",
    refuse=bert.refuse_relative,
    fields=fields,
    layout=layout,
    reference=reference,
)
