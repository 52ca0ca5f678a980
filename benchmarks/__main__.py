# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
`python -m benchmarks run [--quick]` measures and writes JSON, Markdown and a plot; `compare` sets two runs side by
side and fails if a path of ours became slower by more than noise. All ratios are to plain sdpa in the same run.
`pretraining` prints tokens per second beside transformers' BERT.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from . import report
from .contenders import CONTENDERS, Case
from .measure import peak, peak_here, ratios


SHAPES = ((32, 128), (8, 512), (2, 2048), (1, 128))
BASELINE_FILE = Path(__file__).with_name("baseline.json")


def full_cases() -> list[Case]:
    """Attention alone in every setting; whole models where they fit in minutes."""
    cases = [Case("attention", "inference", *shape, dtype) for dtype in ("float32", "bfloat16") for shape in SHAPES]
    for dtype in ("float32", "bfloat16"):
        cases += [
            Case("attention", "training", *shape, dtype, dropout) for dropout in (0.0, 0.1) for shape in SHAPES[:2]
        ]
    cases += [Case("attention", "training", 1, 2048, "float32", dropout) for dropout in (0.0, 0.1)]
    for dtype in ("float32", "bfloat16"):
        cases += [Case("model", "inference", *shape, dtype) for shape in ((8, 128), (2, 512))]
    cases += [Case("model", "inference", 1, 128), Case("model", "inference", 1, 2048, layers=4)]
    cases += [
        Case("model", "training", *shape, "float32", dropout, layers=4)
        for dropout in (0.0, 0.1)
        for shape in ((16, 128), (4, 512))
    ]
    return cases


def quick_cases() -> list[Case]:
    """A few minutes: one case of each kind."""
    return [
        Case("attention", "inference", 32, 128),
        Case("attention", "inference", 8, 512),
        Case("attention", "inference", 8, 512, "bfloat16"),
        Case("attention", "training", 8, 512),
        Case("attention", "training", 8, 512, dropout=0.1),
        Case("model", "inference", 8, 128, layers=2),
    ]


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    cases = quick_cases() if options.quick else full_cases()
    if options.only:
        cases = [case for case in cases if options.only in case.name]
    rounds = options.rounds or (7 if options.quick else 11)
    command = "make bench" + (" QUICK=1" if options.quick else "")
    results: dict[str, Any] = {"machine": report.machine(options.device), "command": command, "rounds": rounds}
    results |= {"ratios": {}, "memory": {}, "growth": {}}
    if options.keep and (options.output / "results.json").exists():
        results = report.load(options.output / "results.json")
    for case in cases:
        case = Case(**(vars(case) | {"device": options.device}))
        print(case.name, flush=True)
        # Whole models of twelve layers are judged by a median of 25.
        turns = 25 if case.scope == "model" and case.layers == 12 and not options.rounds else rounds
        row = ratios(case, turns, options.contenders)
        results["ratios"][case.name] = results["ratios"].get(case.name, {}) | row
        for name, found in row.items():
            print(f"  {found['ratio']:6.2f} ({found['low']:.2f} - {found['high']:.2f})  {name}", flush=True)
        save(results, options.output)
    if not options.only or options.only == "memory":
        measure_memory(results, options)
    if not options.quick and (not options.only or options.only == "growth"):
        measure_growth(results, options)
    save(results, options.output)
    print(report.markdown(results))


def measure_memory(results: dict[str, Any], options: argparse.Namespace) -> None:
    cases = [Case("attention", "inference", 2, 2048, device=options.device)]
    cases += [] if options.quick else [Case("attention", "training", 2, 2048, device=options.device)]
    for case in cases:
        print(f"memory: {case.name}", flush=True)
        results["memory"].setdefault(case.name, {}).update(
            (name, peak(case, name))
            for name in CONTENDERS["attention"]
            if options.contenders is None or name in ("plain sdpa", *options.contenders)
        )


def measure_growth(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Without those that build (B, H, L, L) tensors where these take gigabytes."""
    for length in (512, 1024, 2048, 4096, 8192):
        lean = [report.PURE, report.NATIVE]
        names = options.contenders or (None if length <= 2048 else lean)
        case = Case("attention", "inference", 1, length, device=options.device)
        print(f"growth: {length}", flush=True)
        results["growth"][str(length)] = {name: found["ms"] for name, found in ratios(case, 3, names).items()}


def save(results: dict[str, Any], output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (output / "results.md").write_text(report.markdown(results), encoding="utf-8")
    try:
        report.plot(results, output / "results.png")
    except ImportError:
        print("No plot: matplotlib is missing (pip install 'convbert-composite[plot]').")


def compare(options: argparse.Namespace) -> None:
    before, after = report.load(options.before), report.load(options.after)
    if before["machine"] != after["machine"]:
        print(f"Not of one machine or setting: {before['machine']}; {after['machine']}.")
    slower = report.slower(before, after)
    for line in slower:
        print(f"slower: {line}")
    print(f"{len(slower)} slower by more than {report.NOISE:.0%} and beyond the quartiles.")
    sys.exit(1 if slower else 0)


def pretraining(options: argparse.Namespace) -> None:
    from .pretraining import measure, table

    torch.set_num_threads(options.threads)
    print(report.machine("cpu"))
    print(table(measure(options.rounds)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("run", help="measure")
    verb.add_argument("--quick", action="store_true", help="a few cases, in minutes")
    verb.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    verb.add_argument("--threads", type=int, default=torch.get_num_threads())
    verb.add_argument("--rounds", type=int, default=0, help="pairs of timings a contender; default 11, quick 7")
    verb.add_argument("--only", default="", help="only cases whose name has this in it; or `memory`, `growth`")
    verb.add_argument("--contenders", nargs="*", help="only these, by name")
    verb.add_argument("--keep", action="store_true", help="add to the results that the folder holds")
    verb.add_argument("--output", type=Path, default=Path("build/benchmarks"), help="folder for the results")
    verb.set_defaults(function=run)
    verb = verbs.add_parser("compare", help="is anything of ours slower than in an earlier run?")
    verb.add_argument("before", type=Path, nargs="?", default=BASELINE_FILE)
    verb.add_argument("after", type=Path, nargs="?", default=Path("build/benchmarks/results.json"))
    verb.set_defaults(function=compare)
    verb = verbs.add_parser("pretraining", help="tokens per second beside transformers' BERT, and waits for data")
    verb.add_argument("--threads", type=int, default=torch.get_num_threads())
    verb.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    verb.set_defaults(function=pretraining)
    verb = verbs.add_parser("peak", help="(used by `run`) peak bytes of one contender in this process")
    verb.add_argument("name")
    verb.add_argument("case", type=json.loads)
    verb.set_defaults(function=lambda options: print(peak_here(Case(**options.case), options.name)))
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
