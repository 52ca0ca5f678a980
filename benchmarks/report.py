# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Results as a Markdown page and a plot, and what is compared: with required figures, and with an earlier run."""

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch


Results = dict[str, Any]

# Case -> contender -> the largest ratio that counts as reached.
PURE, NATIVE = "composite, pure torch", "composite, native kernel"
REQUIRED: dict[str, dict[str, float]] = {
    "attention, inference, 32x128, float32": {PURE: 2.0, NATIVE: 1.10},
    "attention, inference, 8x512, float32": {PURE: 2.7, NATIVE: 1.10},
    "attention, inference, 2x2048, float32": {PURE: 1.6, NATIVE: 1.10},
    "attention, inference, 32x128, bfloat16": {PURE: 2.3, NATIVE: 1.25},
    "attention, inference, 8x512, bfloat16": {PURE: 3.5, NATIVE: 1.15},
    "attention, inference, 2x2048, bfloat16": {PURE: 2.5, NATIVE: 1.15},
    "attention, training, 32x128, float32, dropout 0.0": {PURE: 1.5, NATIVE: 1.15},
    "attention, training, 8x512, float32, dropout 0.0": {PURE: 2.2, NATIVE: 1.20},
    "attention, training, 32x128, float32, dropout 0.1": {PURE: 1.2, NATIVE: 0.6},
    "attention, training, 8x512, float32, dropout 0.1": {PURE: 1.2, NATIVE: 0.5},
    "model, inference, 8x128, float32, 12 layers": {PURE: 1.10, NATIVE: 1.05},
    "model, inference, 2x512, float32, 12 layers": {PURE: 1.25, NATIVE: 1.05},
}
REQUIRED_MEMORY: dict[str, dict[str, float]] = {
    "attention, inference, 2x2048, float32": {PURE: 4.0, NATIVE: 1.6},
}
# Differences below this share are the machine's.
NOISE = 0.10


def machine(device: str) -> str:
    """What it was measured on."""
    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    if device == "cuda":
        name = torch.cuda.get_device_name()
    capability = torch.backends.cpu.get_cpu_capability()
    threads = torch.get_num_threads()
    clock = "1 thread, CPU time" if threads == 1 else f"{threads} threads, wall time"
    return (
        f"{name}, {os.cpu_count()} cores, {capability}, {clock}, torch {torch.__version__}, Python "
        f"{platform.python_version()}"
    )


def cells(values: list[str]) -> str:
    return f"| {' | '.join(values)} |"


def ratio_table(results: Results, scope: str) -> list[str]:
    """One row a contender, one column a case: the median ratio, in brackets the baseline's milliseconds."""
    cases = [case for case in results["ratios"] if case.startswith(scope)]
    if not cases:
        return []
    names = list(dict.fromkeys(name for case in cases for name in results["ratios"][case]))
    lines = [cells(["", *(case.removeprefix(f"{scope}, ") for case in cases)]), cells(["---"] * (len(cases) + 1))]
    for name in names:
        row = []
        for case in cases:
            found = results["ratios"][case].get(name)
            row.append("-" if found is None else f"{found['ratio']:.2f}")
            if found and found["ratio"] == 1 and name.startswith("plain sdpa"):
                row[-1] = f"1 ({found['ms']:.1f} ms)"
        lines.append(cells([name, *row]))
    return ["", f"### {scope.capitalize()}: time / plain sdpa", "", *lines]


def memory_table(results: Results) -> list[str]:
    lines = []
    for case, found in results["memory"].items():
        lines += ["", f"### Extra peak memory, MiB: {case}", "", cells(["", "MiB"]), cells(["---", "---"])]
        lines += [cells([name, f"{mib:.0f}"]) for name, mib in found.items() if mib is not None]
    return lines


def growth_table(results: Results) -> list[str]:
    growth = results["growth"]
    if not growth:
        return []
    names = list(dict.fromkeys(name for row in growth.values() for name in row))
    lines = [cells(["length", *names]), cells(["---"] * (len(names) + 1))]
    for length, row in growth.items():
        lines.append(cells([length, *(f"{row[name]:.0f}" if name in row else "-" for name in names)]))
    return ["", "### Growth: milliseconds of attention alone, float32 inference, one text", "", *lines]


def required_table(results: Results) -> list[str]:
    """Measured against required."""
    rows = []
    for kind, table, unit in (("time", REQUIRED, "ratios"), ("memory", REQUIRED_MEMORY, "memory")):
        for case, limits in table.items():
            for name, limit in limits.items():
                found = measured(results, unit, case, name)
                if found is not None:
                    rows.append(
                        cells([f"{case} ({kind})", name, f"{limit:.2f}", f"{found:.2f}", verdict(found, limit)])
                    )
    head = [cells(["case", "contender", "at most", "measured", ""]), cells(["---"] * 5)]
    return ["", "### Required figures", "", *head, *rows] if rows else []


def measured(results: Results, unit: str, case: str, name: str) -> float | None:
    """A ratio to plain sdpa, of time or of memory."""
    found = results[unit].get(case, {})
    if unit == "ratios":
        return found[name]["ratio"] if name in found else None
    base, mib = found.get("plain sdpa"), found.get(name)
    return mib / base if base and mib is not None else None


def verdict(found: float, limit: float) -> str:
    if found <= limit:
        return "reached"
    return "within noise" if found <= limit * (1 + NOISE) else "NOT reached"


def markdown(results: Results) -> str:
    lines = [f"Measured on {results['machine']}, by `{results['command']}`, {results['rounds']} rounds."]
    lines += ratio_table(results, "attention") + ratio_table(results, "model")
    lines += memory_table(results) + growth_table(results) + required_table(results)
    return "\n".join(lines) + "\n"


def plot(results: Results, path: Path) -> None:
    """Bars of all ratios, one panel a scope."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    scopes = [scope for scope in ("attention", "model") if any(case.startswith(scope) for case in results["ratios"])]
    figure, axes = plt.subplots(len(scopes), 1, figsize=(12, 5 * len(scopes)), squeeze=False)
    for axis, scope in zip(axes[:, 0], scopes, strict=True):
        cases = [case for case in results["ratios"] if case.startswith(scope)]
        names = list(dict.fromkeys(name for case in cases for name in results["ratios"][case]))
        width = 0.8 / len(names)
        for number, name in enumerate(names):
            found = [results["ratios"][case].get(name, {}).get("ratio", float("nan")) for case in cases]
            axis.bar([place + number * width for place in range(len(cases))], found, width, label=name)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_ylabel(f"{scope}: time / plain sdpa")
        ticks = [place + 0.4 for place in range(len(cases))]
        axis.set_xticks(ticks, [case.removeprefix(f"{scope}, ").replace(", ", "\n") for case in cases], fontsize=7)
        axis.legend(fontsize=7, ncols=3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def slower(before: Results, after: Results) -> list[str]:
    """Every path of ours that became slower than in the earlier run by more than noise."""
    found = []
    for case, row in after["ratios"].items():
        for name, now in row.items():
            old = before["ratios"].get(case, {}).get(name)
            is_ours = name.startswith(("composite", "with")) and "original" not in name
            if not (is_ours and old):
                continue
            # Overlapping quartiles are noise whatever the medians say.
            if now["ratio"] > old["ratio"] * (1 + NOISE) and now["low"] > old["high"]:
                found.append(f"{case}: {name} {old['ratio']:.2f} -> {now['ratio']:.2f}")
    return found


def load(path: Path) -> Results:
    return json.loads(path.read_text(encoding="utf-8"))
