# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""DistilBERT: BERT without segments and pooler, under names of its own."""

from typing import Any

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.conversion.families import bert
from modeling_convbert_composite.conversion.families.base import (
    BARE_ENCODER,
    Family,
    Forward,
    Layout,
    transformers_forward,
)
from modeling_convbert_composite.conversion.sources import Source


PREFIX = "distilbert."
LAYER = "transformer.layer.*."
OURS = "encoder.layer.*."

ENCODER = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.LayerNorm": "embeddings.LayerNorm",
    LAYER + "attention.q_lin": OURS + "attention.self.query",
    LAYER + "attention.k_lin": OURS + "attention.self.key",
    LAYER + "attention.v_lin": OURS + "attention.self.value",
    LAYER + "attention.out_lin": OURS + "attention.output.dense",
    LAYER + "sa_layer_norm": OURS + "attention.output.LayerNorm",
    LAYER + "ffn.lin1": OURS + "intermediate.dense",
    LAYER + "ffn.lin2": OURS + "output.dense",
    LAYER + "output_layer_norm": OURS + "output.LayerNorm",
}

CLASSIFIER = {"pre_classifier": "convbert_composite.pooler.dense"} | bert.CLASSIFIER

HEAD_NAMES = {
    "ForMaskedLM": {
        "vocab_transform": "mlm_head.dense",
        "vocab_layer_norm": "mlm_head.LayerNorm",
        "vocab_projector.bias": "mlm_head.decoder.bias",
        "?vocab_projector.weight": "mlm_head.decoder.weight",
    },
    "ForSequenceClassification": CLASSIFIER,
    "ForMultipleChoice": CLASSIFIER,
    "ForTokenClassification": bert.CLASSIFIER,
    "ForQuestionAnswering": bert.ANSWERS,
    BARE_ENCODER: {},
}


def fields(source: Source) -> dict[str, Any]:
    values = bert.shared_fields(
        source,
        hidden_size="dim",
        num_attention_heads="n_heads",
        num_hidden_layers="n_layers",
        intermediate_size="hidden_dim",
        hidden_act="activation",
        hidden_dropout_prob="dropout",
        attention_probs_dropout_prob="attention_dropout",
        # Of the sequence head only; the token head uses `dropout`.
        **({"classifier_dropout": "seq_classif_dropout"} if source.has(r"^pre_classifier\.") else {}),
    )
    return values | bert.PLAIN_ATTENTION | {"type_vocab_size": 0, "layer_norm_eps": 1e-12, "classifier_act": "relu"}


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    return Layout(PREFIX, ENCODER, HEAD_NAMES, dropped=bert.DROPPED)


def reference(source: Source, head: str) -> Forward:
    return transformers_forward(source, head, PREFIX)


FAMILY = Family(
    name="distilbert",
    model_types=("distilbert",),
    exact="DistilBERT: encoder, learned or sinusoidal positions, all five heads",
    fields=fields,
    layout=layout,
    reference=reference,
)
