# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The checkpoint that the package ships: `mini`, composite attention without positions, pre-trained on public-domain
prose, the speeches on the state of the union and Moby-Dick.

    python examples/mini_checkpoint.py --output runs/mini

takes about an hour on two cores. It goes on where it was killed, and ends with the folder `checkpoint` as shipped and
the table of what it reaches on documents that it has not seen.
"""

import argparse
from pathlib import Path

from real_data import prepare_prose, public_domain_prose

from modeling_convbert_composite.pretraining.run import pretrain
from modeling_convbert_composite.pretraining.settings import PretrainingSettings, TokenizerSettings
from modeling_convbert_composite.pretraining.tokenizers import train_tokenizer


# Passages of 1 to 8 sentences, so that short texts are known as well as long ones.
LONGEST_PASSAGE = 8


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
        eval_lengths=(64, 128, 256, 512),
        bf16=True,
        attention="composite_cpu",
        resume=output.is_dir(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python examples/mini_checkpoint.py")
    parser.add_argument("--output", type=Path, default=Path("runs/mini"), help="folder for text, run and checkpoint")
    parser.add_argument("--steps", type=int, default=9000, help="optimiser steps, for a quick look")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    pretrain(settings(arguments.output, arguments.steps))
    print((arguments.output / "pretrained" / "results.md").read_text())


if __name__ == "__main__":
    main()
