# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The native CPU kernel of composite attention, `attn_implementation="composite_cpu"`. Its sources are compiled on first
use; models that were loaded as remote code have it only where this package is imported.
"""

from .backend import NAME, kernel_attention, register


__all__ = ["NAME", "kernel_attention", "register"]
