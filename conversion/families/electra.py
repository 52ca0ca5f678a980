# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""ELECTRA: BERT's encoder behind narrow embeddings. Of the discriminator the encoder, without its detection head."""

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
from modeling_convbert_composite.conversion.families.roberta import DENSE_CLASSIFIER
from modeling_convbert_composite.conversion.sources import ConversionError, Source


PREFIX = "electra."

ENCODER = bert.ENCODER | {"embeddings_project": "embeddings.projection"}

MASKED_LM = {
    "generator_predictions.dense": "mlm_head.dense",
    "generator_predictions.LayerNorm": "mlm_head.LayerNorm",
    "generator_lm_head.bias": "mlm_head.decoder.bias",
    "?generator_lm_head.weight": "mlm_head.decoder.weight",
}

HEAD_NAMES = {
    "ForMaskedLM": MASKED_LM,
    "ForSequenceClassification": DENSE_CLASSIFIER,
    "ForMultipleChoice": {"sequence_summary.summary": "convbert_composite.pooler.dense"} | bert.CLASSIFIER,
    "ForTokenClassification": bert.CLASSIFIER,
    "ForQuestionAnswering": bert.ANSWERS,
    BARE_ENCODER: {},
}

# The detection head has one output a token and no counterpart among our heads.
DROPPED = (*bert.DROPPED, r"discriminator_predictions\.(dense|dense_prediction)\.(weight|bias)")


def refuse(source: Source) -> None:
    bert.refuse_relative(source)
    refuse_summary(source)


def refuse_summary(source: Source) -> None:
    """The multiple-choice head summarises a text as its config says; ours reads the first token through a gelu."""
    settings = {"summary_type": "first", "summary_activation": "gelu", "summary_use_proj": True}
    if source.has(r"^sequence_summary\."):
        for name, value in settings.items():
            if source.config.get(name, value) != value:
                raise ConversionError(
                    f"`{name}={source.config[name]!r}` of ELECTRA's multiple-choice head is not supported, only "
                    f"{value!r}."
                )


def fields(source: Source) -> dict[str, Any]:
    return bert.shared_fields(source) | bert.PLAIN_ATTENTION | {"classifier_act": "gelu", "mlm_act": "gelu"}


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    return Layout(PREFIX, ENCODER | bert.ATTENTION, HEAD_NAMES, dropped=DROPPED)


def reference(source: Source, head: str) -> Forward:
    return transformers_forward(source, head, PREFIX)


FAMILY = Family(
    name="electra",
    model_types=("electra",),
    exact="ELECTRA: generator with its head, encoder of the discriminator, fine-tuned heads",
    refuse=refuse,
    fields=fields,
    layout=layout,
    reference=reference,
)
