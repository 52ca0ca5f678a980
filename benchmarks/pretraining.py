# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Tokens per second of pre-training, ours beside transformers' BERT of the same size on the same path of data, and the
share of that time in which the model waits for its next batch.
"""

import contextlib
import io
import random
import statistics
import tempfile
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig
from transformers.utils import logging

from modeling_convbert_composite.pretraining.measures import StepTimes
from modeling_convbert_composite.pretraining.prepared import prepare
from modeling_convbert_composite.pretraining.run import (
    Run,
    build_config,
    build_model,
    build_trainer,
    training_arguments,
)
from modeling_convbert_composite.pretraining.settings import PretrainingSettings, TokenizerSettings
from modeling_convbert_composite.pretraining.tokenizers import train_tokenizer


BERT = "BERT of transformers"
SIZE = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
# Name -> architecture (None: transformers' BERT) and attention.
CONTENDERS: dict[str, tuple[str | None, str | None]] = {
    BERT: (None, None),
    "composite, pure torch": ("mini", None),
    "composite, native kernel": ("mini", "composite_cpu"),
    "absolute, native kernel": ("bert-small-absolute", "composite_cpu"),
}
STEPS, WARM_UP = 12, 4
VOCABULARY = 8000


def write_text(path: Path, words: int) -> None:
    """Text of made-up words, frequent and rare ones, in texts of some sentences."""
    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(3 * VOCABULARY)]
    weights = [1 / rank for rank in range(1, len(vocabulary) + 1)]
    chosen = draw.choices(vocabulary, weights, k=words)
    lines = []
    while chosen:
        size = draw.randint(5, 30)
        lines.append(" ".join(chosen[:size]) + ("\n" if draw.random() < 0.2 else ""))
        chosen = chosen[size:]
    path.write_text("\n".join(lines))


def settings(folder: Path, name: str, batch: int, length: int) -> PretrainingSettings:
    architecture, attention = CONTENDERS[name]
    fields = {"embedding_size": SIZE["hidden_size"]} | SIZE
    return PretrainingSettings(
        architecture=architecture or str(folder / "bert"),
        fields=tuple(f"{field}={value}" for field, value in fields.items()) if architecture else (),
        attention=attention,
        tokenizer=folder / "tokenizer",
        output=folder / "run",
        prepared=folder / "examples",
        data=(folder / "text.txt",),
        max_length=length,
        batch_size=batch,
        max_steps=STEPS,
        warmup=0.1,
        eval_steps=10**6,
        save_steps=10**6,
        log_steps=10**6,
        dropout=0.1,
        bf16=True,
    )


def train(chosen: PretrainingSettings) -> StepTimes:
    """Some steps of a run, timed; the first ones are left out."""
    tokenizer = AutoTokenizer.from_pretrained(chosen.tokenizer)
    model = build_model(chosen, build_config(chosen, tokenizer))
    run = Run(chosen, tokenizer, model, prepare(chosen, tokenizer))
    trainer = build_trainer(run, training_arguments(chosen))
    times = StepTimes()
    trainer.add_callback(times)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    times.steps, times.waits = times.steps[WARM_UP:], times.waits[WARM_UP - 1 :]
    return times


def measure(rounds: int, batch: int = 32, length: int = 128, words: int = 200_000) -> dict[str, dict[str, float]]:
    """By contender: tokens per second, their ratio to BERT's in the same run, the share of waiting for data."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    found = {name: StepTimes() for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_text(folder / "text.txt", words)
        train_tokenizer(TokenizerSettings((folder / "text.txt",), folder / "tokenizer", "wordpiece", VOCABULARY))
        BertConfig(**SIZE, max_position_embeddings=length).save_pretrained(folder / "bert")
        for _ in range(rounds):
            for name in CONTENDERS:
                times = train(settings(folder, name, batch, length))
                found[name].steps += times.steps
                found[name].waits += times.waits
    return {
        name: {
            "tokens per second": batch * length / times.typical,
            "ratio": found[BERT].typical / times.typical,
            "waiting for data": statistics.median(times.waits) / times.typical,
        }
        for name, times in found.items()
    }


def table(found: dict[str, dict[str, float]]) -> str:
    """Markdown."""
    lines = [f"| pre-training, {torch.get_num_threads()} threads | tokens / s | to BERT | waiting for data |"]
    lines += ["| --- | --- | --- | --- |"]
    lines += [
        f"| {name} | {row['tokens per second']:,.0f} | {row['ratio']:.2f} | {row['waiting for data']:.1%} |"
        for name, row in found.items()
    ]
    return "\n".join(lines)
