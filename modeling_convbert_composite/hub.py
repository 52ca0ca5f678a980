# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Model cards: what is known about a model, as README.md. Unknown facts are left out."""

from importlib.resources import files
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from .configuration_convbert_composite import ConvBertCompositeConfig
from .description import features, formula
from .modeling_convbert_composite import AUTO_MODEL_CLASSES


TASKS = {
    "AutoModel": "feature-extraction",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForPreTraining": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForMultipleChoice": "multiple-choice",
}


def render_card(config: ConvBertCompositeConfig, title: str, report: Any = None) -> ModelCard:
    """
    The card of a model.

    Args:
        config: its config, `architectures` included. title: heading. report: its `ConversionReport`, if converted.
    """
    architecture = (config.architectures or ["ConvBertCompositeModel"])[0]
    auto_class = next(name for name, model in AUTO_MODEL_CLASSES.items() if model.__name__ == architecture)
    template = files("modeling_convbert_composite.model_cards") / "card_template.md"
    return ModelCard.from_template(
        ModelCardData(
            library_name="transformers",
            pipeline_tag=TASKS[auto_class],
            tags=["convbert_composite", "composite-attention"],
        ),
        template_str=template.read_text(encoding="utf-8"),
        title=title,
        formula=formula(config),
        features=features(config),
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        heads=config.num_attention_heads,
        vocab_size=config.vocab_size,
        parameters=f"{report.parameters:,}" if report else None,
        auto_class=auto_class,
        report=report,
    )
