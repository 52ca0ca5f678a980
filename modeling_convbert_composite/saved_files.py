# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What a folder of ours consists of, read without running or loading anything."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open


PACKAGE_FOLDER = Path(__file__).parent

CONFIG_FILE = "config.json"
CARD_FILE = "README.md"
RESULTS_FILE = "results.json"
CONVERSION_FILE = "conversion_report.json"
WEIGHTS_PATTERN = "model*.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def code_files() -> list[Path]:
    """The installed files that every saved folder carries as its code."""
    return sorted(PACKAGE_FOLDER.glob("*_convbert_composite.py"))


def read_object(file: Path) -> dict[str, Any] | None:
    """
    The object in a JSON file, None if there is no such file.

    Raises:
        ValueError: no valid JSON, or something else than an object.
    """
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(file)!r} must hold a JSON object, got {type(content).__name__}.")
    return content


def stored_size(files: Iterable[Path]) -> tuple[int, list[str]]:
    """
    Numbers in safetensors files, and their dtypes (`F32`, ...), from the headers alone.

    Raises:
        ValueError: a file is damaged.
    """
    parameters, dtypes = 0, set()
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    part = tensors.get_slice(name)
                    parameters += math.prod(part.get_shape())
                    dtypes.add(str(part.get_dtype()))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{str(file)!r} is damaged or not a safetensors file: {error}") from error
    return parameters, sorted(dtypes)
