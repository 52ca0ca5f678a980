# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The paper's comparison at a small scale: attention with and without convolutions and positions, pre-trained from
scratch on the same text, steps and seeds, then fine-tuned on two real tasks.

    python examples/replication.py --output runs/replication --jobs 2
    python examples/replication_report.py --output runs/replication

Every run is a command of its own on one thread. One that is finished is not repeated, one that was killed goes on, so
that the comparison can be interrupted at any time. `--stages` and `--only` choose a part of it.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real_data import TAGS, brown_prose, prepare, prepare_prose, public_domain_prose, sentiment_splits, tag_splits
from tqdm import tqdm
from transformers import AutoTokenizer, BertConfig

from modeling_convbert_composite.finetuning.settings import FinetuningSettings
from modeling_convbert_composite.pretraining.prepared import prepare as prepare_examples
from modeling_convbert_composite.pretraining.settings import PretrainingSettings, TokenizerSettings
from modeling_convbert_composite.pretraining.tokenizers import train_tokenizer
from modeling_convbert_composite.records import read_json
from modeling_convbert_composite.settings import as_command


# Every model: 4 layers, 128 wide, 4 heads; kernels of 17 slots, as the paper's.
SIZE = {
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
VOCABULARY, LENGTH, BATCH = 4000, 64, 32
# 1,500 steps of 32 x 64 tokens are 3.07 million.
STEPS, LONG_STEPS = 1500, 20_000
SPEED_STEPS, SPEED_ROUNDS = 40, 3
# The first rate is that of the first stage.
RATES, SEEDS = (1e-3, 2e-3, 5e-4, 4e-3), (0, 1, 2)
FIXED_KERNEL_RATE = 1e-2
# The allocator of glibc keeps large blocks: else every evaluation spends a third of its time on getting new pages.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
}


@dataclass(frozen=True)
class Variant:
    """One row of the comparison: a preset of the paper's code (None: transformers' BERT) and what differs from it."""

    preset: str | None
    fields: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


OWN_RATE = {"fixed_kernel_learning_rate": FIXED_KERNEL_RATE}
VARIANTS = {
    "none": Variant("bert-small-none"),
    "absolute": Variant("bert-small-absolute"),
    "absolute (BERT of transformers)": Variant(None),
    "fixed": Variant("bert-small-fixed"),
    "fixed, kernel rate 1e-2": Variant("bert-small-fixed", settings=OWN_RATE),
    "dynamic": Variant("bert-small-query"),
    "composite": Variant("bert-small-composite"),
    "composite, kernel rate 1e-2": Variant("bert-small-composite", settings=OWN_RATE),
    "composite + absolute": Variant("bert-small-composite", {"position_embedding_type": "absolute"}),
    "depthwise": Variant("bert-small-depthwise"),
    "value convolution": Variant("bert-small-value-convolution"),
    "query/key convolution": Variant("bert-small-qk-convolution"),
    "ConvBERT (span)": Variant("bert-small-convbert", {"dynamic_convolution_mode": "span"}),
}
# At 2e-3, the best for most in short runs, a long one of `absolute` broke down after 8,500 steps.
LONG_RATE = 1e-3
# These train until the models with positions have left their plateau.
LONG = ("absolute", "composite", "composite + absolute", "none")


@dataclass(frozen=True)
class Files:
    """What all runs share, in the output folder."""

    tokenizer: Path
    train: Path
    validation: Path
    prepared: Path
    bert: Path


@dataclass(frozen=True)
class Run:
    """A command that leaves `results.json` in its folder."""

    verb: str
    settings: Any


def is_finished(folder: Path) -> bool:
    return (folder / "results.json").is_file()


def run_folder(root: Path, stage: str, variant: str, *parts: str) -> Path:
    name = "".join(letter if letter.isalnum() else "-" for letter in variant.lower()).strip("-")
    return root.joinpath(stage, name.replace("--", "-"), *parts)


def shared_files(root: Path) -> Files:
    """Text, tokenizer and examples, made once."""
    prose = prepare_prose(root / "prose", lambda: [*public_domain_prose(), *brown_prose()], every=40)
    files = Files(root / "tokenizer", prose["train"], prose["validation"], root / "examples", root / "bert")
    if not files.tokenizer.is_dir():
        train_tokenizer(TokenizerSettings((files.train,), files.tokenizer, kind="wordpiece", vocab_size=VOCABULARY))
    BertConfig(**SIZE, max_position_embeddings=128).save_pretrained(files.bert)
    prepare_examples(
        pretraining(files, root / "unused", "composite", rate=0, seed=0),
        AutoTokenizer.from_pretrained(files.tokenizer),
    )
    return files


def pretraining(
    files: Files, output: Path, variant: str, rate: float, seed: int, steps: int = STEPS
) -> PretrainingSettings:
    chosen = VARIANTS[variant]
    own = {"embedding_size": SIZE["hidden_size"]} | SIZE | chosen.fields
    return PretrainingSettings(
        architecture=chosen.preset or str(files.bert),
        fields=tuple(f"{name}={value}" for name, value in own.items()) if chosen.preset else (),
        tokenizer=files.tokenizer,
        data=(files.train,),
        validation=(files.validation,),
        prepared=files.prepared,
        output=output,
        max_length=LENGTH,
        batch_size=BATCH,
        eval_batch_size=128,
        max_steps=steps,
        learning_rate=rate,
        warmup=0.1,
        dropout=0.0,
        # Checkpoints and evaluations are the same share of every run.
        eval_steps=min(125, steps) if steps <= STEPS else steps // 40,
        save_steps=max(1, steps // 5),
        log_steps=25,
        seed=seed,
        bf16=True,
        attention="composite_cpu" if chosen.preset else None,
        **chosen.settings,
    )


# Stages


@dataclass(frozen=True)
class Plan:
    root: Path
    files: Files
    variants: tuple[str, ...]
    steps: int
    long_steps: int
    limit: int | None

    def pretrained(self, variant: str, rate: float, seed: int) -> Path:
        return run_folder(self.root, "pretraining", variant, f"rate-{rate:g}", f"seed-{seed}")

    def best_rate(self, variant: str) -> float:
        """Of the rates that have been tried the one with the lowest validation loss under the first seed."""
        folders = {rate: self.pretrained(variant, rate, SEEDS[0]) for rate in RATES}
        losses = {rate: validation_loss(folder) for rate, folder in folders.items() if is_finished(folder)}
        if not losses:
            raise SystemExit(f"{variant!r} has no finished run yet: --stages first comes before the others.")
        return min(losses, key=lambda rate: losses[rate])


def validation_loss(folder: Path) -> float:
    return read_json(folder / "results.json")["metrics"]["validation"]["mlm_loss"]


def first(plan: Plan) -> list[Run]:
    """Every variant at the same learning rate, all seeds."""
    return [pretraining_run(plan, variant, RATES[0], seed) for seed in SEEDS for variant in plan.variants]


def rates(plan: Plan) -> list[Run]:
    """Every variant at the other learning rates, one seed."""
    return [pretraining_run(plan, variant, rate, SEEDS[0]) for rate in RATES[1:] for variant in plan.variants]


def best(plan: Plan) -> list[Run]:
    """Every variant at its best rate, all seeds."""
    return [
        pretraining_run(plan, variant, plan.best_rate(variant), seed) for seed in SEEDS for variant in plan.variants
    ]


def pretraining_run(plan: Plan, variant: str, rate: float, seed: int) -> Run:
    output = plan.pretrained(variant, rate, seed)
    return Run("pretrain", pretraining(plan.files, output, variant, rate, seed, plan.steps))


def long(plan: Plan) -> list[Run]:
    """Some variants for many more steps, one seed."""
    return [
        Run(
            "pretrain",
            pretraining(
                plan.files,
                run_folder(plan.root, "long", variant, f"rate-{LONG_RATE:g}", f"seed-{SEEDS[0]}"),
                variant,
                LONG_RATE,
                SEEDS[0],
                plan.long_steps,
            ),
        )
        for variant in LONG
        if variant in plan.variants
    ]


def speed(plan: Plan) -> list[Run]:
    """Every variant for some steps, in turns, for the tokens per second alone; quiet beside `jobs` of its like."""
    steps = min(SPEED_STEPS, plan.steps)
    return [
        Run(
            "pretrain",
            pretraining(
                plan.files,
                run_folder(plan.root, "speed", variant, f"round-{number}"),
                variant,
                RATES[0],
                SEEDS[0],
                steps,
            ),
        )
        for number in range(SPEED_ROUNDS)
        for variant in plan.variants
    ]


# task -> its data, what `finetune` is told, and the metric of the report. One recipe for all variants.
TASKS: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Any], str]] = {
    "sentiment": (sentiment_splits, {"task": "text-classification", "epochs": 4}, "accuracy"),
    "parts of speech": (tag_splits, {"task": "token-classification", "labels": TAGS, "epochs": 3}, "accuracy"),
}


def downstream(plan: Plan) -> list[Run]:
    """Every variant and seed, fine-tuned on every task."""
    found = []
    for task, (splits, recipe, _) in TASKS.items():
        data = prepare(plan.root / "tasks" / task.replace(" ", "-"), splits)
        for seed in SEEDS:
            for variant in plan.variants:
                rate = plan.best_rate(variant)
                folder = run_folder(plan.root, "downstream", variant, f"rate-{rate:g}", task.replace(" ", "-"))
                settings = FinetuningSettings(
                    model=str(plan.pretrained(variant, rate, seed)),
                    output=folder / f"seed-{seed}",
                    **data,
                    **recipe,
                    max_length=LENGTH,
                    learning_rate=1e-3,
                    dropout=0.1,
                    bf16=True,
                    attention="composite_cpu" if VARIANTS[variant].preset else None,
                    save_model=False,
                    seed=seed,
                    limit=plan.limit,
                )
                found.append(Run("finetune", settings))
    return found


STAGES: dict[str, Callable[[Plan], list[Run]]] = {
    "first": first,
    "rates": rates,
    "best": best,
    "downstream": downstream,
    "long": long,
    "speed": speed,
}


def execute(run: Run) -> None:
    """Runs a command on one thread, or goes on with it; its output goes to a file beside its folder."""
    output = run.settings.output
    output.parent.mkdir(parents=True, exist_ok=True)
    command = shlex.split(as_command(run.verb, run.settings))[1:] + (["--resume"] if output.is_dir() else [])
    environment = {**os.environ, **ONE_THREAD}
    with output.with_name(output.name + ".log").open("w") as log:
        result = subprocess.run(
            [sys.executable, "-m", "modeling_convbert_composite", *command], stdout=log, stderr=log, env=environment
        )
    if result.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed; see {log.name}.")


def execute_all(runs: Iterable[Run], jobs: int, title: str) -> None:
    todo = [run for run in runs if not is_finished(run.settings.output)]
    with ThreadPoolExecutor(jobs) as pool:
        list(tqdm(pool.map(lambda run: execute(run), todo), total=len(todo), desc=title, unit="run"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python examples/replication.py")
    parser.add_argument("--output", type=Path, default=Path("runs/replication"), help="folder for all runs")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time, one thread each")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="variants", metavar="NAME")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimiser steps of a run, for a quick look")
    parser.add_argument("--long-steps", type=int, default=LONG_STEPS, help="of those of the stage long")
    parser.add_argument("--limit", type=int, help="rows of the tasks, for a quick look")
    arguments = parser.parse_args()
    files = shared_files(arguments.output)
    plan = Plan(arguments.output, files, tuple(arguments.only), arguments.steps, arguments.long_steps, arguments.limit)
    for stage in arguments.stages:
        execute_all(STAGES[stage](plan), arguments.jobs, stage)


if __name__ == "__main__":
    main()
