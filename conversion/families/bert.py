# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""BERT with absolute positions, and what shares its code: the same maths with all kernels off."""

from typing import Any

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.configuration.reference_flags import BERT_FIELDS
from modeling_convbert_composite.conversion.families.base import (
    BARE_ENCODER,
    Family,
    Forward,
    Layout,
    is_relative,
    transformers_forward,
)
from modeling_convbert_composite.conversion.sources import ConversionError, Source


# Model type -> prefix of the encoder's names.
PREFIXES = {"bert": "bert.", "ernie": "ernie.", "bert-generation": "bert."}

# Source name -> ours, for everything around the self-attention. Shared by all that descend from BERT's code.
ENCODER = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
    "embeddings.LayerNorm": "embeddings.LayerNorm",
    "encoder.layer.*.attention.output.dense": "encoder.layer.*.attention.output.dense",
    "encoder.layer.*.attention.output.LayerNorm": "encoder.layer.*.attention.output.LayerNorm",
    "encoder.layer.*.intermediate.dense": "encoder.layer.*.intermediate.dense",
    "encoder.layer.*.output.dense": "encoder.layer.*.output.dense",
    "encoder.layer.*.output.LayerNorm": "encoder.layer.*.output.LayerNorm",
}

ATTENTION = {
    "encoder.layer.*.attention.self.query": "encoder.layer.*.attention.self.query",
    "encoder.layer.*.attention.self.key": "encoder.layer.*.attention.self.key",
    "encoder.layer.*.attention.self.value": "encoder.layer.*.attention.self.value",
}

POOLER = {"pooler.dense": "convbert_composite.pooler.dense"}
CLASSIFIER = {"classifier": "classifier"}
ANSWERS = {"qa_outputs": "qa_outputs"}
BARE_POOLER = {"?pooler.dense": "pooler.dense"}

MASKED_LM = {
    "cls.predictions.transform.dense": "mlm_head.dense",
    "cls.predictions.transform.LayerNorm": "mlm_head.LayerNorm",
    "?cls.predictions.bias": "mlm_head.decoder.bias",
    "?cls.predictions.decoder": "mlm_head.decoder",
}

HEAD_NAMES = {
    "ForPreTraining": POOLER | MASKED_LM | {"cls.seq_relationship": "sentence_head"},
    "ForMaskedLM": MASKED_LM,
    "ForSequenceClassification": POOLER | CLASSIFIER,
    "ForMultipleChoice": POOLER | CLASSIFIER,
    "ForTokenClassification": CLASSIFIER,
    "ForQuestionAnswering": ANSWERS,
    BARE_ENCODER: BARE_POOLER,
}

# Index buffers of old versions, and a pooler that the head at hand does not read.
DROPPED = (r"embeddings\.(position_ids|token_type_ids)", r"pooler\.dense\.(weight|bias)")

# Fields of the same name and meaning in all families.
SHARED_FIELDS = (*BERT_FIELDS, "classifier_dropout", "embedding_size")

# No kernels, absolute positions: what most families start from.
PLAIN_ATTENTION = {"position_embedding_type": "absolute", "fixed_kernel": False, "query_kernel": False}


def shared_fields(source: Source, **renamed: str) -> dict[str, Any]:
    """
    The source's values for our fields: those of the same name, and those it calls otherwise (ours=theirs). Absent ones
    are left to the source's own defaults, which transformers knows.
    """
    names = {name: name for name in SHARED_FIELDS} | renamed
    defaults = source.defaults()
    values = {ours: source.config.get(theirs, defaults.get(theirs)) for ours, theirs in names.items()}
    return {ours: value for ours, value in values.items() if value is not None}


def refuse(source: Source) -> None:
    refuse_relative(source)
    refuse_unsupported(source)


def refuse_relative(source: Source) -> None:
    """The message for those who ask for an absolute family by name."""
    if is_relative(source):
        raise ConversionError(
            f"The source has relative positions (`position_embedding_type="
            f"{source.config.get('position_embedding_type')!r}`): converting it as absolute would give wrong answers. "
            "Its family is 'bert_relative'."
        )


def refuse_unsupported(source: Source) -> None:
    """What of BERT's relatives has no place in our model."""
    if source.config.get("use_task_id") or source.has(r"task_type_embeddings"):
        raise ConversionError("ERNIE with task types is not supported: our embeddings have no table for them.")
    if source.model_type == "bert-generation" and source.has(r"^lm_head\."):
        raise ConversionError(
            "The language-model head of bert-generation is not supported: it is a bare decoder, ours has a transform. "
            "Save the BertGenerationEncoder alone and convert that."
        )


def fields(source: Source) -> dict[str, Any]:
    values = shared_fields(source) | PLAIN_ATTENTION
    if source.model_type == "bert-generation":
        values |= {"type_vocab_size": 0, "is_decoder": False}
    return values


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    return Layout(PREFIXES[source.model_type], ENCODER | ATTENTION, HEAD_NAMES, dropped=DROPPED)


def reference(source: Source, head: str) -> Forward:
    return transformers_forward(source, head, PREFIXES[source.model_type])


FAMILY = Family(
    name="bert",
    model_types=tuple(PREFIXES),
    exact="BERT, ERNIE without task types and bert-generation encoders with absolute positions; all six heads",
    refuse=refuse,
    fields=fields,
    layout=layout,
    reference=reference,
)
