# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""BERT with absolute positions, as transformers has it: the same maths with all kernels off."""

from typing import Any

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.configuration.reference_flags import REFERENCE_KEYS
from modeling_convbert_composite.conversion.families.base import (
    BARE_ENCODER,
    Family,
    Forward,
    Layout,
    Names,
    transformers_forward,
)
from modeling_convbert_composite.conversion.sources import ConversionError, Source


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

MASKED_LM = {
    "cls.predictions.transform.dense": "mlm_head.dense",
    "cls.predictions.transform.LayerNorm": "mlm_head.LayerNorm",
    "?cls.predictions.bias": "mlm_head.decoder.bias",
    "?cls.predictions.decoder": "mlm_head.decoder",
}

HEAD_NAMES = {
    "ForPreTraining": POOLER | MASKED_LM | {"cls.seq_relationship": "sentence_head"},
    "ForMaskedLM": MASKED_LM,
    "ForSequenceClassification": POOLER | {"classifier": "classifier"},
    "ForMultipleChoice": POOLER | {"classifier": "classifier"},
    "ForTokenClassification": {"classifier": "classifier"},
    "ForQuestionAnswering": {"qa_outputs": "qa_outputs"},
    BARE_ENCODER: {"?pooler.dense": "pooler.dense"},
}

# An index buffer of old versions, a pooler that the head at hand does not read, a bias beside an untied decoder.
DROPPED = (r"embeddings\.position_ids", r"pooler\.dense\.(weight|bias)", r"cls\.predictions\.bias")

# Fields of the same name and meaning.
SHARED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
    "classifier_dropout",
    "id2label",
    "label2id",
    "problem_type",
    "is_decoder",
    "add_cross_attention",
)


def shared_fields(config: dict[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in SHARED_FIELDS if config.get(name) is not None}


def matches(source: Source) -> bool:
    return (
        source.model_type == "bert"
        and not any(key in source.config for key in REFERENCE_KEYS)
        and not source.has(r"attention\.self\.(distance_embedding|convfixed_param|convq_param|convk_param)")
    )


def refuse(source: Source) -> None:
    kind = source.config.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ConversionError(
            f"The source's config says `position_embedding_type={kind!r}`, which family 'bert' (absolute positions) "
            "does not compute; converting it as absolute would give wrong answers."
        )


def build_config(source: Source) -> ConvBertCompositeConfig:
    return ConvBertCompositeConfig(
        **shared_fields(source.config),
        position_embedding_type="absolute",
        fixed_kernel=False,
        query_kernel=False,
    )


def layout(source: Source, config: ConvBertCompositeConfig) -> Layout:
    return Layout(prefix="bert.", encoder=ENCODER | ATTENTION, heads=head_names(source), dropped=DROPPED)


def head_names(source: Source) -> dict[str, Names]:
    """
    `HEAD_NAMES`, without the second MLM bias that transformers 5 keeps and saves beside an untied decoder: it never
    reads it.
    """
    is_untied = source.config.get("tie_word_embeddings") is False
    unread = "?cls.predictions.bias" if is_untied and "cls.predictions.decoder.bias" in source.tensors else None
    return {
        head: {name: target for name, target in names.items() if name != unread} for head, names in HEAD_NAMES.items()
    }


def reference(source: Source, head: str) -> Forward:
    return transformers_forward(source, head, prefix="bert.")


FAMILY = Family(
    name="bert",
    exact="BERT with absolute positions: encoder, pooler and all six heads",
    matches=matches,
    refuse=refuse,
    config=build_config,
    layout=layout,
    reference=reference,
)
