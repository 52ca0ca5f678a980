# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""An environment with torch, transformers, safetensors and what these need, made of links: nothing is installed."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement


NAMES = ("torch", "transformers", "safetensors")


def needed_distributions(names: tuple[str, ...]) -> set[str]:
    """The named distributions and all that they require without extras."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        for text in requires:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def link_environment(folder: Path) -> Path:
    """A folder for `sys.path` with links to those distributions."""
    folder.mkdir()
    for name in needed_distributions(NAMES):
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or []}:
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(str(package.locate_file(top)))
    return folder


def run_in(site: Path, home: Path, script: str, *arguments: str) -> Any:
    """Runs a script offline, with an empty cache and no standard input; returns the JSON on its last line."""
    start = f"import sys; sys.path.insert(0, {str(site)!r})\n"
    environment = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PATH": os.environ["PATH"], "HOME": str(home)}
    result = subprocess.run(
        # -I and -S: neither the environment of this process nor its site-packages.
        [sys.executable, "-I", "-S", "-c", start + script, *arguments],
        env=environment,
        cwd=home.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])
