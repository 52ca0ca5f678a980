# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Choosing an architecture: named presets, and the flags of the paper's code."""

import json
from importlib.resources import files

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.configuration.reference_flags import from_reference_flags


PRESETS = files("modeling_convbert_composite.configuration") / "presets"


def list_presets() -> list[str]:
    """Names of the presets, in alphabetical order."""
    return sorted(entry.name.removesuffix(".json") for entry in PRESETS.iterdir() if entry.name.endswith(".json"))


def load_preset(name: str) -> ConvBertCompositeConfig:
    """
    The config of a named architecture.

    Raises:
        ValueError: no preset of that name; the message lists them.
    """
    if name not in list_presets():
        raise ValueError(f"There is no preset {name!r}. Presets: {', '.join(list_presets())}.")
    return ConvBertCompositeConfig.from_dict(json.loads((PRESETS / f"{name}.json").read_text(encoding="utf-8")))


__all__ = ["ConvBertCompositeConfig", "from_reference_flags", "list_presets", "load_preset"]
