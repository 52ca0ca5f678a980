# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Converting checkpoints of other families, with a proof."""

from modeling_convbert_composite.conversion.convert_checkpoint import convert
from modeling_convbert_composite.conversion.families import FAMILIES
from modeling_convbert_composite.conversion.report import ConversionReport
from modeling_convbert_composite.conversion.sources import ConversionError
from modeling_convbert_composite.conversion.verify import verify


__all__ = ["FAMILIES", "ConversionError", "ConversionReport", "convert", "verify"]
