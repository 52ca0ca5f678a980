# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The families of checkpoints that can be converted, in the order in which they are tried."""

from modeling_convbert_composite.conversion.families import bert, bert_convolutions
from modeling_convbert_composite.conversion.families.base import Family


FAMILIES: dict[str, Family] = {family.name: family for family in (bert_convolutions.FAMILY, bert.FAMILY)}
