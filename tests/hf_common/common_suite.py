# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Our classes under transformers' own common test suite. Not collected from here: `test_common_suite.py` copies this file
into a package beside the library's `test_modeling_common.py` and runs it there.
"""

import json
import os
import unittest
from typing import Any

import torch
from transformers.models.auto import modeling_auto

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

from . import test_modeling_common
from .test_configuration_common import ConfigTester
from .test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask


# Config fields, and whether to take all classes or the three that own something.
VARIANT: dict[str, Any] = json.loads(os.environ["CONVBERT_COMPOSITE_VARIANT"])
ALL_CLASSES = os.environ["CONVBERT_COMPOSITE_ALL_CLASSES"] == "1"

# The suite makes labels by looking class names up in these tables, which plugins are not part of.
TABLES = {
    "MODEL_MAPPING_NAMES": ConvBertCompositeModel,
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES": ConvBertCompositeForPreTraining,
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": ConvBertCompositeForMaskedLM,
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": ConvBertCompositeForSequenceClassification,
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": ConvBertCompositeForTokenClassification,
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": ConvBertCompositeForQuestionAnswering,
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": ConvBertCompositeForMultipleChoice,
}
for table, model_class in TABLES.items():
    getattr(modeling_auto, table)["convbert_composite"] = model_class.__name__


def set_epsilon(config: ConvBertCompositeConfig) -> None:
    """
    In place of the library's `set_config_for_less_flaky_test`, which sets the epsilons of all models there are, among
    them `layer_norm_epsilon`: a name that our config refuses, so that nobody's epsilon is ignored in silence.
    """
    config.layer_norm_eps = 1.0


test_modeling_common.set_config_for_less_flaky_test = set_epsilon


class ConvBertCompositeModelTester:
    """The sizes and inputs that the suite asks for."""

    batch_size = 13
    seq_length = 7
    is_training = True
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    intermediate_size = 37
    vocab_size = 99
    num_choices = 4

    def __init__(self, parent: unittest.TestCase):
        self.parent = parent

    def get_config(self) -> ConvBertCompositeConfig:
        fields: dict[str, Any] = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": 512,
            "kernel_size": 5,
            "query_key_kernel_size": 3,
            "value_kernel_size": 3,
            "dynamic_convolution_kernel_size": 3,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
        }
        return ConvBertCompositeConfig(**(fields | VARIANT))

    def prepare_config_and_inputs_for_common(self) -> tuple[ConvBertCompositeConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        shape = [self.batch_size, self.seq_length]
        # The padding id is left out: where position ids skip padding, it would move everything behind it.
        inputs = {
            "input_ids": ids_tensor(shape, self.vocab_size - 1) + 1,
            "attention_mask": random_attention_mask(shape),
        }
        if config.type_vocab_size > 0:
            inputs["token_type_ids"] = ids_tensor(shape, config.type_vocab_size)
        return config, inputs


class ConvBertCompositeModelTest(ModelTesterMixin, unittest.TestCase):
    """What is skipped, here and by the suite itself, is listed with its reasons in `test_common_suite.py`."""

    all_model_classes = (
        tuple(TABLES.values())
        if ALL_CLASSES
        else (ConvBertCompositeModel, ConvBertCompositeForMaskedLM, ConvBertCompositeForSequenceClassification)
    )
    # An encoder: nothing to generate, so GenerationTesterMixin has no part here.
    all_generative_model_classes = ()

    def setUp(self) -> None:
        self.model_tester = ConvBertCompositeModelTester(self)
        self.config_tester = ConfigTester(
            self, config_class=ConvBertCompositeConfig, hidden_size=32, num_attention_heads=4
        )

    def _prepare_for_class(
        self, inputs_dict: dict[str, Any], model_class: type[torch.nn.Module], return_labels: bool = False
    ) -> dict[str, Any]:
        """As the library's own BERT test: PreTraining needs both labels."""
        inputs_dict = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if return_labels and model_class is ConvBertCompositeForPreTraining:
            batch, length = self.model_tester.batch_size, self.model_tester.seq_length
            inputs_dict["labels"] = torch.zeros((batch, length), dtype=torch.long)
            inputs_dict["next_sentence_label"] = torch.zeros(batch, dtype=torch.long)
        return inputs_dict

    def test_config(self) -> None:
        self.config_tester.run_common_tests()

    def test_retain_grad_hidden_states_attentions(self) -> None:
        if VARIANT.get("dynamic_convolution_heads"):
            self.skipTest("maps of dynamic heads")
        super().test_retain_grad_hidden_states_attentions()
