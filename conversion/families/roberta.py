# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The RoBERTa line: BERT's encoder with position ids that skip padding, and heads of its own."""

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


# Model type -> prefix of the encoder's names.
PREFIXES = {
    "roberta": "roberta.",
    "xlm-roberta": "roberta.",
    "camembert": "roberta.",
    "data2vec-text": "data2vec_text.",
}

MASKED_LM = {
    "lm_head.dense": "mlm_head.dense",
    "lm_head.layer_norm": "mlm_head.LayerNorm",
    "?lm_head.bias": "mlm_head.decoder.bias",
    "?lm_head.decoder": "mlm_head.decoder",
}

# A classifier over the first token with a layer of its own, which is what our pooler is.
DENSE_CLASSIFIER = {
    "classifier.dense": "convbert_composite.pooler.dense",
    "classifier.out_proj": "classifier",
}

HEAD_NAMES = {
    "ForMaskedLM": MASKED_LM,
    "ForSequenceClassification": DENSE_CLASSIFIER,
    "ForMultipleChoice": bert.POOLER | bert.CLASSIFIER,
    "ForTokenClassification": bert.CLASSIFIER,
    "ForQuestionAnswering": bert.ANSWERS,
    BARE_ENCODER: bert.BARE_POOLER,
}


def fields(source: Source) -> dict[str, Any]:
    values = bert.shared_fields(source) | bert.PLAIN_ATTENTION
    return values | {"position_ids_rule": "skip_padding", "mlm_act": "gelu"}


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    return Layout(PREFIXES[source.model_type], bert.ENCODER | bert.ATTENTION, HEAD_NAMES, dropped=bert.DROPPED)


def reference(source: Source, head: str) -> Forward:
    return transformers_forward(source, head, PREFIXES[source.model_type])


FAMILY = Family(
    name="roberta",
    model_types=tuple(PREFIXES),
    exact="RoBERTa, XLM-RoBERTa, CamemBERT, data2vec-text: encoder, positions that skip padding, all five heads",
    refuse=bert.refuse_relative,
    fields=fields,
    layout=layout,
    reference=reference,
)
