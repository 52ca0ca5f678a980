# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The families of checkpoints that can be converted, and what cannot be."""

from modeling_convbert_composite.conversion.families import (
    albert,
    bert,
    bert_convolutions,
    bert_relative,
    convbert,
    deberta,
    distilbert,
    electra,
    mpnet,
    roberta,
)
from modeling_convbert_composite.conversion.families.base import Family


FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (
        # These two first: by model type alone their sources are those of others.
        bert_convolutions,
        bert_relative,
        bert,
        roberta,
        electra,
        albert,
        distilbert,
        mpnet,
        convbert,
        deberta,
    )
}

PRE_NORM = "its LayerNorms stand before the sub-layers, ours after them"
ROTARY = "rotary positions multiply queries and keys, they are no table that scores add up"

# Model types that look close, each with what is in the way.
REFUSED = {
    **dict.fromkeys(
        ("roberta-prelayernorm", "xlm-roberta-xl", "xmod", "megatron-bert", "ernie_m", "lilt", "canine"), PRE_NORM
    ),
    "esm": f"{PRE_NORM}, and {ROTARY}",
    **dict.fromkeys(("modernbert", "nomic_bert", "eurobert", "roformer", "jina_embeddings_v3", "gte"), ROTARY),
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "longt5"),
        "it has norms before the sub-layers, no biases and unscaled scores; only its bucketed bias is a fixed kernel",
    ),
    "xlnet": "its scores have segment terms, and positions are not clipped",
    "nezha": "its relative positions act on the values as well",
    "mobilebert": "its layers have bottlenecks",
    "layoutlm": "its embeddings read the layout of a page",
    "big_bird": "its attention is sparse",
    "longformer": "its attention is sparse",
}
