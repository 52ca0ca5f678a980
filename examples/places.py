# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Paths of one machine, told as they read with the default --output of a script."""

import os
import shlex
from pathlib import Path
from typing import Any


def as_told(value: Any, root: Path, told: str) -> Any:
    """`value` with every path below `root` moved below `told`; lists and objects are gone through."""
    if isinstance(value, dict):
        return {name: as_told(part, root, told) for name, part in value.items()}
    if isinstance(value, list):
        return [as_told(part, root, told) for part in value]
    if isinstance(value, str) and os.sep in value and Path(value).is_relative_to(root):
        return str(Path(told) / Path(value).relative_to(root))
    return value


def command_as_told(command: str, root: Path, told: str) -> str:
    """A command line, word by word."""
    return shlex.join(as_told(shlex.split(command), root, told))
