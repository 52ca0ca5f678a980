# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What a run leaves for people: results as JSON and Markdown, curves as a plot, and the environment it ran in."""

import contextlib
import json
import math
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from modeling_convbert_composite._version import __version__


def environment() -> dict[str, Any]:
    """Versions and machine, as far as numbers depend on them."""
    return {
        "convbert_composite": __version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", 1)),
    }


def is_main_process() -> bool:
    """Whether this process is the one that prints and writes; launchers number them."""
    return int(os.environ.get("RANK", 0)) == 0


def write_json(path: Path, content: Any) -> None:
    """Writes beside, then renames: no reader, or killed run, meets half a file. NaN and infinity become null."""
    write_text(path, json.dumps(with_nulls(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_lines(path: Path, items: Iterable[Any]) -> None:
    """JSON lines, in the same way."""
    write_text(path, "".join(json.dumps(with_nulls(item), ensure_ascii=False) + "\n" for item in items))


def with_nulls(content: Any) -> Any:
    """Lists and dicts of plain values with None where JSON knows no number."""
    if isinstance(content, dict):
        return {name: with_nulls(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [with_nulls(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def with_nans(content: Any) -> Any:
    """The numbers of `with_nulls`, where None stands for one."""
    if isinstance(content, dict):
        return {name: with_nans(value) for name, value in content.items()}
    return math.nan if content is None else content


def write_text(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", newline="\n", delete=False) as file:
        file.write(text)
    # A temporary file is private; what we leave has the usual rights.
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(file.name, 0o666 & ~umask)
    os.replace(file.name, path)


@contextlib.contextmanager
def folder_beside(folder: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `folder`, that must not exist, if nothing is raised; else it vanishes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Of its own name, so that two processes do not write into the same; the folder itself has the usual rights.
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    made = scratch / folder.name
    made.mkdir()
    try:
        yield made
        made.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_json(path: Path) -> Any:
    """
    Raises:
        ValueError: not JSON. OSError: not there.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error


def read_lines(path: Path) -> list[Any]:
    """The items of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def markdown_table(headers: list[str], rows: list[list[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def score_rows(scores: dict[str, dict[str, float]]) -> list[list[str]]:
    """A row for each metric, a cell for each split."""
    names = dict.fromkeys(name for split in scores.values() for name in split)
    return [[name, *(f"{split[name]:.4f}" if name in split else "" for split in scores.values())] for name in names]


Curve = list[tuple[float, float]]


def curves(history: list[dict[str, float]]) -> dict[str, Curve]:
    """(step, value) of every logged number that is a loss or a metric."""
    found: dict[str, Curve] = {}
    for entry in history:
        for name, value in entry.items():
            if name == "loss" or (name.startswith("eval_") and is_metric(name)):
                found.setdefault(name, []).append((entry["step"], value))
    return found


def is_metric(name: str) -> bool:
    """Whether a number of the Trainer's log says how good, not how fast, something is."""
    return not name.endswith(("runtime", "per_second", "jit_compilation_time"))


def plot_history(history: list[dict[str, float]], path: Path, title: str) -> bool:
    """Losses on the left, metrics on the right, over steps, as PNG. False without matplotlib (the extra `plot`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    found = curves(history)
    losses = {name: curve for name, curve in found.items() if name in ("loss", "eval_loss", "eval_mse")}
    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    others = {name: curve for name, curve in found.items() if name not in losses}
    for axes, lines, label in zip(figure.subplots(1, 2), (losses, others), ("loss", "metric"), strict=True):
        for name, curve in lines.items():
            axes.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=name.removeprefix("eval_"))
        axes.set_xlabel("optimiser steps")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if lines:
            axes.legend()
    figure.savefig(path, dpi=120)
    return True
