# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Tiny models, random weights and inputs for the tests."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from modeling_convbert_composite import (
    ConvBertCompositeConfig,
    ConvBertCompositeForMaskedLM,
    ConvBertCompositeForMultipleChoice,
    ConvBertCompositeForPreTraining,
    ConvBertCompositeForQuestionAnswering,
    ConvBertCompositeForSequenceClassification,
    ConvBertCompositeForTokenClassification,
    ConvBertCompositeModel,
)
from modeling_convbert_composite.native import build


IGNORED = -100

# The kernel is compiled on first use: on a machine without the tools its tests skip visibly.
HAS_TOOLS = build.compiler() is not None and shutil.which("ninja", path=build.path_with_ninja()) is not None
needs_kernel = pytest.mark.skipif(not HAS_TOOLS, reason="the native kernel needs a C++ compiler and ninja")


def tiny_config(**overrides: Any) -> ConvBertCompositeConfig:
    """Composite attention in a model of 32 channels and two layers, without dropout."""
    fields = {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
        "pad_token_id": 1,
        "kernel_size": 7,
        "query_key_kernel_size": 5,
        "value_kernel_size": 3,
        "dynamic_convolution_kernel_size": 5,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return ConvBertCompositeConfig(**(fields | overrides))


NO_KERNELS = {"fixed_kernel": False, "query_kernel": False}

# Every term, position and projection option at least once; names are test ids.
OPTIONS: dict[str, dict[str, Any]] = {
    "composite": {},
    "absolute": {**NO_KERNELS, "position_embedding_type": "absolute"},
    "no_positions": NO_KERNELS,
    "skip_padding": {"position_embedding_type": "absolute", "position_ids_rule": "skip_padding"},
    "fixed_only": {"query_key_product": False, "query_kernel": False},
    "query_only": {"query_key_product": False, "fixed_kernel": False},
    "key_only": {**NO_KERNELS, "query_key_product": False, "key_kernel": True},
    "all_per_head": {"key_kernel": True, "kernels_per_head": True},
    "window": {"beyond_kernel": "window"},
    "window_key": {**NO_KERNELS, "query_key_product": False, "key_kernel": True, "beyond_kernel": "window"},
    "depthwise": {"depthwise_kernel": True},
    "depthwise_only": {**NO_KERNELS, "query_key_product": False, "depthwise_kernel": True},
    "depthwise_learned": {**NO_KERNELS, "depthwise_kernel": True, "depthwise_scale": "learned"},
    "no_query_key": {**NO_KERNELS, "query_key_projection": "none"},
    "qk_convolution": {"query_key_projection": "convolution", "query_key_groups": 4},
    "qk_separable_mixed": {
        "query_key_projection": "depthwise_separable",
        "query_key_mixed": True,
        "query_key_activation": True,
    },
    "value_convolution_mixed": {"value_projection": "convolution", "value_mixed": True, "value_groups": 2},
    "qkv_separable": {
        "query_key_projection": "depthwise_separable",
        "value_projection": "depthwise_separable",
        "value_activation": True,
    },
    "value_separable_depthwise": {"value_projection": "depthwise_separable", "depthwise_kernel": True},
    "dynamic_span": {"dynamic_convolution_heads": 2},
    "dynamic_convbert": {**NO_KERNELS, "dynamic_convolution_heads": 2, "dynamic_convolution_mode": "convbert"},
    "dynamic_reference": {"dynamic_convolution_heads": 1, "dynamic_convolution_mode": "reference"},
    "narrow_embeddings": {"embedding_size": 16, "mlm_act": "relu"},
    "forced_projection": {"embedding_projection": True, "classifier_act": "gelu"},
    "wide_heads": {"attention_head_size": 12, "value_projection": "depthwise_separable", "value_activation": True},
    "no_types": {"type_vocab_size": 0},
    "untied": {"tie_word_embeddings": False},
}

# Reads across padding on purpose, to equal an original that does.
LEAKING_OPTIONS = {"dynamic_convbert"}


def random_ids(config: ConvBertCompositeConfig, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Ids of tokens that are not padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, config.vocab_size, shape, generator=generator)


def text_length(row: int, length: int) -> int:
    """How many tokens the row of a padded batch has."""
    return max(length - 2 * row, 2) if row else length


def text_batch(
    config: ConvBertCompositeConfig, batch: int = 3, length: int = 11, seed: int = 0, padded: bool = True
) -> dict[str, torch.Tensor]:
    """`input_ids`, `attention_mask`, `token_type_ids` (batch, length); row r is padded by 2 * r tokens."""
    ids = random_ids(config, (batch, length), seed)
    mask = torch.ones(batch, length, dtype=torch.long)
    types = torch.zeros(batch, length, dtype=torch.long)
    types[:, length // 2 :] = 1 if config.type_vocab_size > 1 else 0
    if padded:
        for row in range(batch):
            end = text_length(row, length)
            mask[row, end:] = 0
            ids[row, end:] = config.pad_token_id
            types[row, end:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


@dataclass(frozen=True)
class Head:
    """A model class with the inputs, labels and outputs that it has."""

    name: str
    model_class: type[PreTrainedModel]
    auto_class: str
    logits: tuple[str, ...]

    def config(self, **overrides: Any) -> ConvBertCompositeConfig:
        """A tiny config; three labels where the number matters."""
        if self.name in ("sequence", "token"):
            overrides = {"num_labels": 3, **overrides}
        return tiny_config(**overrides)

    def build(self, seed: int = 0, **overrides: Any) -> PreTrainedModel:
        """A tiny model in eval mode whose every parameter is random."""
        return randomise(self.model_class(self.config(**overrides)), seed).eval()

    def inputs(
        self, config: ConvBertCompositeConfig, batch: int = 3, length: int = 11, seed: int = 0, padded: bool = True
    ) -> dict[str, torch.Tensor]:
        """A batch of texts, of choices for multiple choice."""
        if self.name != "choice":
            return text_batch(config, batch, length, seed, padded)
        texts = text_batch(config, 2 * batch, length, seed, padded)
        return {name: tensor.unflatten(0, (batch, 2)) for name, tensor in texts.items()}

    def labels(self, config: ConvBertCompositeConfig, batch: int = 3, length: int = 11) -> dict[str, torch.Tensor]:
        """Labels for a batch of `inputs`, some of them ignored; nothing for the bare encoder."""
        generator = torch.Generator().manual_seed(1)

        def draw(limit: int, *shape: int) -> torch.Tensor:
            return torch.randint(0, limit, shape, generator=generator)

        words = draw(config.vocab_size, batch, length)
        words[:, ::3] = IGNORED
        classes = draw(config.num_labels, batch, length)
        classes[:, ::4] = IGNORED
        for row in range(batch):
            # As collators fill up; what a label at padding means is a test of its own.
            classes[row, text_length(row, length) :] = IGNORED
        return {
            "base": {},
            "mlm": {"labels": words},
            "pretraining": {"labels": words, "next_sentence_label": draw(2, batch)},
            "sequence": {"labels": draw(config.num_labels, batch)},
            "token": {"labels": classes},
            "answer": {"start_positions": draw(4, batch), "end_positions": draw(4, batch) + 1},
            "choice": {"labels": draw(2, batch)},
        }[self.name]

    def loss(self, output: ModelOutput) -> torch.Tensor:
        """The loss; for the bare encoder a number that depends on all it gives."""
        if output.get("loss") is not None:
            return output.loss
        # LayerNorm fixes the mean square, so that a power of it would have next to no gradient.
        weights = torch.linspace(-1, 1, output.last_hidden_state.numel()).view_as(output.last_hidden_state)
        return (output.last_hidden_state.float() * weights).mean() + output.pooler_output.float().mean()


ALL_HEADS = [
    Head("base", ConvBertCompositeModel, "AutoModel", ("last_hidden_state", "pooler_output")),
    Head("mlm", ConvBertCompositeForMaskedLM, "AutoModelForMaskedLM", ("logits",)),
    Head(
        "pretraining",
        ConvBertCompositeForPreTraining,
        "AutoModelForPreTraining",
        ("prediction_logits", "seq_relationship_logits"),
    ),
    Head("sequence", ConvBertCompositeForSequenceClassification, "AutoModelForSequenceClassification", ("logits",)),
    Head("token", ConvBertCompositeForTokenClassification, "AutoModelForTokenClassification", ("logits",)),
    Head(
        "answer",
        ConvBertCompositeForQuestionAnswering,
        "AutoModelForQuestionAnswering",
        ("start_logits", "end_logits"),
    ),
    Head("choice", ConvBertCompositeForMultipleChoice, "AutoModelForMultipleChoice", ("logits",)),
]
HEADS = {head.name: head for head in ALL_HEADS}


def persistent_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and every saved buffer, tied ones once."""
    yield from model.named_parameters()
    saved = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int = 0, scale: float = 0.5) -> PreTrainedModel:
    """
    Gives every parameter and saved buffer random and distinct values, LayerNorm weights and depthwise scales around 1:
    a term at its start value (fixed kernels are 0, scales 1) would hide what a test looks for.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in persistent_tensors(model):
        noise = torch.randn(tensor.shape, generator=generator) * scale
        around_one = name.endswith(("LayerNorm.weight", "depthwise_scale"))
        tensor.copy_(1 + noise / 4 if around_one else noise)
    return model


def state_copy(model: nn.Module) -> dict[str, torch.Tensor]:
    """A detached copy of the state dict."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_states_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Same names, and every tensor bit-equal and of the same dtype."""
    assert sorted(actual) == sorted(expected)
    different = [
        name
        for name, tensor in expected.items()
        if actual[name].dtype != tensor.dtype or not torch.equal(actual[name], tensor)
    ]
    assert not different


def assert_outputs_close(
    actual: ModelOutput, expected: ModelOutput, names: tuple[str, ...], atol: float = 1e-5
) -> None:
    """The named outputs agree."""
    for name in names:
        torch.testing.assert_close(actual[name], expected[name], atol=atol, rtol=1e-5)
