# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Tables and a figure of what the replication has found so far.

    python examples/replication_report.py --output runs/replication --report docs/replication

reads the runs of `replication.py` and writes `replication.json` (every run: its command, numbers and curve), the
tables of it as `tables.md`, and the curves as `curves.png`. Without runs in OUTPUT the tables are made from the JSON
alone.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from places import command_as_told
from replication import LONG, LONG_RATE, RATES, SEEDS, TASKS, VARIANTS, run_folder

from modeling_convbert_composite.records import markdown_table, read_json, write_json, write_text


# Losses whose first step is told: below what frequencies of tokens give, and farther down.
THRESHOLDS, LONG_THRESHOLDS = (6.0, 5.5, 5.0), (5.5, 4.5, 3.5)
BERT = "absolute (BERT of transformers)"
Found = dict[str, Any]


# Collecting


def collect(root: Path) -> Found:
    """Every finished run."""
    found: Found = {"environment": None}
    for stage, (pattern, read) in RUNS.items():
        found[stage] = []
        for variant in VARIANTS:
            for path in sorted(run_folder(root, stage, variant).glob(f"{pattern}/results.json")):
                results = read_json(path)
                command = command_as_told(results["command"], root, "runs/replication")
                found[stage].append({"variant": variant} | read(results) | {"command": command})
                if stage == "pretraining":
                    found |= {"environment": results["environment"], "floor": results["measures"]["floor"]}
    return found


def pretraining_run(results: Found) -> Found:
    curve = [
        [entry["step"], round(entry["eval_mlm_loss"], 4)] for entry in results["history"] if "eval_mlm_loss" in entry
    ]
    return {
        "rate": results["settings"]["learning_rate"],
        "seed": results["seed"],
        "steps": results["steps"],
        "tokens": results["measures"]["tokens"],
        "parameters": results["parameters"],
        "loss": results["metrics"]["validation"]["mlm_loss"],
        "accuracy": results["metrics"]["validation"]["masked_accuracy"],
        "curve": curve,
    }


def downstream_run(results: Found) -> Found:
    task = next(name for name, (_, recipe, _) in TASKS.items() if recipe["task"] == results["task"])
    return {
        "task": task,
        "seed": results["seed"],
        "rate": rate_of(results["base_model"]),
        "score": results["metrics"]["test"][TASKS[task][2]],
    }


def speed_run(results: Found) -> Found:
    return {"tokens_per_second": round(results["measures"]["tokens_per_second"])}


# Stage -> where its runs lie below a variant's folder, and what is kept of each.
RUNS: dict[str, tuple[str, Callable[[Found], Found]]] = {
    "pretraining": ("rate-*/seed-*", pretraining_run),
    "long": ("rate-*/seed-*", pretraining_run),
    "downstream": ("rate-*/*/seed-*", downstream_run),
    "speed": ("round-*", speed_run),
}


def rate_of(source: str) -> float:
    """The rate of pre-training, from the place of the checkpoint that a run started from."""
    return float(next(part for part in Path(source).parts if part.startswith("rate-")).removeprefix("rate-"))


# Tables


def best_rate(found: Found, variant: str) -> float:
    """The rate of the lowest loss under the first seed, among those with the most seeds."""
    tried = {run["rate"]: run["loss"] for run in runs_of(found, variant) if run["seed"] == SEEDS[0]}
    counts = {rate: len(runs_of(found, variant, rate)) for rate in tried}
    return min((rate for rate in tried if counts[rate] == max(counts.values())), key=lambda rate: tried[rate])


def runs_of(found: Found, variant: str, rate: float | None = None, stage: str = "pretraining") -> list[Found]:
    return [run for run in found[stage] if run["variant"] == variant and (rate is None or run["rate"] == rate)]


def best_runs(found: Found, variant: str) -> list[Found]:
    return runs_of(found, variant, best_rate(found, variant))


def reached(curve: list[list[float]], loss: float) -> int | None:
    """The first evaluated step with at most this loss."""
    return next((int(step) for step, value in curve if value <= loss), None)


def spread(values: list[float], digits: int = 3) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def steps_text(runs: list[Found], loss: float) -> str:
    """The mean of the first steps with at most this loss, if all runs come there."""
    steps = [reached(run["curve"], loss) for run in runs]
    return "never" if None in steps else f"{statistics.mean(step for step in steps if step is not None):,.0f}"


def loss_table(found: Found) -> str:
    rows = []
    for variant in tried_variants(found):
        runs = best_runs(found, variant)
        rows.append(
            [
                variant,
                f"{runs[0]['rate']:g}",
                str(len(runs)),
                spread([run["loss"] for run in runs]),
                spread([run["accuracy"] for run in runs]),
                *(steps_text(runs, loss) for loss in THRESHOLDS),
                f"{runs[0]['parameters']:,}",
            ]
        )
    headers = ["variant", "rate", "seeds", "validation loss", "masked accuracy"]
    headers += [f"steps to {loss}" for loss in THRESHOLDS]
    return markdown_table([*headers, "parameters"], rows)


def rates_table(found: Found) -> str:
    """The lowest loss of a variant stands out, so that one at the edge of the rates is seen."""
    rates = sorted(RATES)
    rows = []
    for variant in tried_variants(found):
        losses = {run["rate"]: run["loss"] for run in runs_of(found, variant) if run["seed"] == SEEDS[0]}
        cells = {rate: f"{loss:.3f}" for rate, loss in losses.items()}
        lowest = min(losses, key=lambda rate: losses[rate])
        cells[lowest] = f"**{cells[lowest]}**"
        rows.append([variant, *(cells.get(rate, "") for rate in rates)])
    return markdown_table([f"variant, seed {SEEDS[0]}", *(f"rate {rate:g}" for rate in rates)], rows)


def downstream_table(found: Found) -> str:
    rows = []
    for variant in tried_variants(found):
        cells = []
        for task in TASKS:
            scores = [
                run["score"]
                for run in found["downstream"]
                if (run["variant"], run["task"], run["rate"]) == (variant, task, best_rate(found, variant))
            ]
            cells.append(f"{spread(scores, 4)} ({len(scores)})" if scores else "")
        if any(cells):
            rows.append([variant, *cells])
    return markdown_table(["variant (test split, seeds)", *(f"{task}, {TASKS[task][2]}" for task in TASKS)], rows)


def long_table(found: Found) -> str:
    rows = [
        [
            variant,
            f"{run['rate']:g}",
            f"{run['steps']:,}",
            f"{run['tokens'] / 1e6:.1f} M",
            f"{run['loss']:.3f}",
            f"{run['accuracy']:.3f}",
            *(steps_text([run], loss) for loss in LONG_THRESHOLDS),
        ]
        for variant in LONG
        for run in runs_of(found, variant, stage="long")
    ]
    headers = ["long run", "rate", "steps", "tokens", "validation loss", "masked accuracy"]
    return markdown_table([*headers, *(f"steps to {loss}" for loss in LONG_THRESHOLDS)], rows)


def speed_table(found: Found) -> str:
    """Medians of the rounds, and their ratio to transformers' BERT."""
    speeds = {
        variant: statistics.median(run["tokens_per_second"] for run in runs)
        for variant in VARIANTS
        if (runs := runs_of(found, variant, stage="speed"))
    }
    rows = [
        [variant, f"{speed:,.0f}", f"{speed / speeds[BERT]:.2f}" if BERT in speeds else ""]
        for variant, speed in speeds.items()
    ]
    return markdown_table(["training, one thread", "tokens a second", "to BERT of transformers"], rows)


def tried_variants(found: Found) -> list[str]:
    return [variant for variant in VARIANTS if any(run["seed"] == SEEDS[0] for run in runs_of(found, variant))]


# Title -> the runs that its table shows, and how; a table of no runs is left out.
TABLES: dict[str, tuple[str, Callable[[Found], str]]] = {
    "Equal steps": ("pretraining", loss_table),
    "Learning rates": ("pretraining", rates_table),
    "Fine-tuned": ("downstream", downstream_table),
    "Long runs": ("long", long_table),
    "Speed": ("speed", speed_table),
}


def tables(found: Found) -> str:
    parts = [f"### {title}\n\n{make(found)}" for title, (runs, make) in TABLES.items() if found[runs]]
    floor = found["floor"]
    parts.append(
        f"Frequencies of tokens alone: loss {floor['mlm_loss']:.3f}, masked accuracy {floor['masked_accuracy']:.3f}.\n"
    )
    return "\n".join(parts)


def plot(found: Found, path: Path) -> None:
    """Validation loss over steps: at equal steps, the mean of the seeds, and of the long runs."""
    import matplotlib
    from matplotlib.figure import Figure

    colours = {variant: matplotlib.colormaps["tab20"](index) for index, variant in enumerate(VARIANTS)}
    long_variants = [variant for variant in LONG if runs_of(found, variant, stage="long")]
    figure = Figure(figsize=(15 if long_variants else 10, 5.5), layout="constrained")
    left, *rest = figure.subplots(1, 2 if long_variants else 1, squeeze=False)[0]
    for variant in tried_variants(found):
        curves = [run["curve"] for run in best_runs(found, variant)]
        steps = [step for step, _ in curves[0]]
        losses = ([loss for _, loss in curve] for curve in curves)
        means = [statistics.mean(values) for values in zip(*losses, strict=True)]
        left.plot(steps, means, label=variant, color=colours[variant])
    left.set_title("equal steps, mean of the seeds")
    for axes in rest:
        for variant in long_variants:
            for run in runs_of(found, variant, stage="long"):
                line = "-" if run["rate"] == LONG_RATE else "--"
                axes.plot(*zip(*run["curve"], strict=True), linestyle=line, color=colours[variant])
        axes.set_title(f"long runs, one seed, rate {LONG_RATE:g} (dashed: another)")
    for axes in (left, *rest):
        axes.axhline(found["floor"]["mlm_loss"], color="grey", linestyle=":", linewidth=1)
        axes.set_xlabel("optimiser steps of 2,048 tokens")
        axes.set_ylabel("validation MLM loss (nats)")
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python examples/replication_report.py")
    parser.add_argument("--output", type=Path, default=Path("runs/replication"), help="folder of the runs")
    parser.add_argument("--report", type=Path, default=Path("docs/replication"), help="folder to write to")
    arguments = parser.parse_args()
    stored = arguments.report / "replication.json"
    found = collect(arguments.output)
    if found["pretraining"]:
        text = tables(found)
        arguments.report.mkdir(parents=True, exist_ok=True)
        write_json(stored, found)
    elif stored.is_file():
        print(f"There is no finished run in {arguments.output}; these are the tables of {stored}.", file=sys.stderr)
        found = read_json(stored)
        text = tables(found)
    else:
        parser.error(f"there is no finished run in {arguments.output}, and no {stored}.")
    write_text(arguments.report / "tables.md", text)
    plot(found, arguments.report / "curves.png")
    print(text)


if __name__ == "__main__":
    main()
