# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
ConvBertComposite for transformers. Importing this package registers the model type `convbert_composite` with the Auto
classes, and has every `save_pretrained` carry the code along, so that saved folders also load without the package.
"""

import transformers

from ._version import __version__
from .configuration_convbert_composite import ConvBertCompositeConfig
from .modeling_convbert_composite import (
    AUTO_MODEL_CLASSES,
    ConvBertCompositeForMaskedLM,
    ConvBertCompositeForMultipleChoice,
    ConvBertCompositeForPreTraining,
    ConvBertCompositeForQuestionAnswering,
    ConvBertCompositeForSequenceClassification,
    ConvBertCompositeForTokenClassification,
    ConvBertCompositeModel,
    ConvBertCompositePreTrainedModel,
)
from .native import register as register_native_kernel


register_native_kernel()
transformers.AutoConfig.register(ConvBertCompositeConfig.model_type, ConvBertCompositeConfig)
ConvBertCompositeConfig.register_for_auto_class()
for auto_class, model_class in AUTO_MODEL_CLASSES.items():
    getattr(transformers, auto_class).register(ConvBertCompositeConfig, model_class)
    model_class.register_for_auto_class(auto_class)  # type: ignore[attr-defined]

__all__ = [
    "ConvBertCompositeConfig",
    "ConvBertCompositeForMaskedLM",
    "ConvBertCompositeForMultipleChoice",
    "ConvBertCompositeForPreTraining",
    "ConvBertCompositeForQuestionAnswering",
    "ConvBertCompositeForSequenceClassification",
    "ConvBertCompositeForTokenClassification",
    "ConvBertCompositeModel",
    "ConvBertCompositePreTrainedModel",
    "__version__",
]
