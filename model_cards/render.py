# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Renders the cards in this folder: one for each family of presets, one for each shipped checkpoint.

    python -m modeling_convbert_composite.model_cards.render

writes them beside this file; a test compares. A new card is a row of one of the two tables.
"""

from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCardData

from modeling_convbert_composite import ConvBertCompositeForMaskedLM
from modeling_convbert_composite.cards import TAGS, limits, make_card, render_template
from modeling_convbert_composite.checkpoints import checkpoint_path
from modeling_convbert_composite.configuration import load_preset
from modeling_convbert_composite.description import features, formula, legend


FOLDER = Path(__file__).parent

# What each variant of bert-small-* and bert-base-* is.
VARIANTS = {
    "absolute": "Plain BERT: dot products and a table of absolute positions. The baseline.",
    "none": "BERT without any positions: the order of the words is unknown to it.",
    "fixed": "Dot products and a fixed kernel a head: lightweight convolution, as the biases of Raffel et al. (2020).",
    "query": "Dot products and a kernel that depends on the query: dynamic convolution, as Shaw et al. (2018).",
    "composite": "Composite attention as the paper proposes it: dot products, fixed and query-dependent kernels.",
    "composite-key": "Composite attention with a kernel that depends on the key as well.",
    "depthwise": "Dot products, and a depthwise convolution of the values that is added to the output.",
    "composite-depthwise": "Composite attention, and a depthwise convolution of the values.",
    "qk-convolution": "Half of the queries and keys come from depthwise-separable convolutions.",
    "value-convolution": "Half of the values come from depthwise-separable convolutions.",
    "qkv-convolution": "Half of queries, keys and values come from depthwise-separable convolutions.",
    "qkv-convolution-composite": "Convolutional queries, keys and values together with composite attention.",
    "convbert": "Half of the heads are span-based dynamic convolutions, as the paper's code has ConvBERT.",
    "remove-qk": "No query and key maps: the hidden states themselves are compared.",
}

# Card -> its presets and what they are.
PRESET_CARDS: dict[str, tuple[list[str], str]] = {
    **{
        f"bert-{name}": ([f"bert-{size}-{name}" for size in ("small", "base")], text)
        for name, text in VARIANTS.items()
    },
    "tiny": (["tiny"], "Composite attention in a model for tests."),
}

# Shipped checkpoint -> its title. The card that lies beside the weights, refreshed.
CHECKPOINT_CARDS = {"mini": "convbert-composite mini"}


def render_preset_card(name: str) -> str:
    """The card of a family of presets."""
    presets, words = PRESET_CARDS[name]
    config = load_preset(presets[0])
    return render_template(
        "preset_template.md",
        {
            "card_data": ModelCardData(library_name="transformers", license="apache-2.0", tags=list(TAGS)).to_yaml(),
            "name": name,
            "words": words,
            "formula": formula(config),
            "legend": legend(config),
            "features": {preset: "; ".join(features(load_preset(preset))) for preset in presets},
            "presets": [describe_preset(preset) for preset in presets],
            "limits": list(limits(config)),
        },
    )


def describe_preset(name: str) -> dict[str, Any]:
    config = load_preset(name)
    with torch.device("meta"):
        parameters = ConvBertCompositeForMaskedLM(config).num_parameters()
    return {"name": name, "config": config, "parameters": f"{parameters:,}"}


def render_all() -> dict[str, str]:
    """File name -> card."""
    cards = {f"{name}.md": render_preset_card(name) for name in PRESET_CARDS}
    return cards | {
        f"{name}.md": str(make_card(checkpoint_path(name), title=title)) for name, title in CHECKPOINT_CARDS.items()
    }


if __name__ == "__main__":
    for file, text in render_all().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
        print(f"Wrote {file}.")
