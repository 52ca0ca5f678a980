# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What pre-training and the training of a tokenizer can be told. The fields are the flags of their verbs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modeling_convbert_composite.settings import at_least, setting


# The shortest input: two texts of a token with their special ones.
SHORTEST = 5
KERNEL_SETTINGS = ("kernel_learning_rate", "fixed_kernel_learning_rate", "kernel_weight_decay")


@dataclass(frozen=True)
class PretrainingSettings:
    """One pre-training run. The paper's recipe is the default. Lengths are in tokens, rates per optimiser step."""

    output: Path = setting(help="Folder to write the model and its results to.")

    tokenizer: Path | None = setting(None, help="Folder of the tokenizer; default: that of --initial.")
    architecture: str | None = setting(
        None, help="What to train from random weights: a preset, or a folder with the config.json of any model."
    )
    initial: str | None = setting(
        None, help="In its place: a checkpoint to go on from, a folder, a repository id, or `mini`, which is shipped."
    )
    data: tuple[Path, ...] = setting((), help="Files of text: .txt (one sentence a line, blank lines between texts), "
                                              ".jsonl or .parquet (one text a row).")  # fmt: skip
    dataset: str | None = setting(None, help="In place of files: a folder of datasets' save_to_disk, or a name.")
    dataset_config: str | None = setting(None, help="Configuration of a dataset by name.")
    dataset_split: str = setting("train", help="Split of --dataset.")
    streaming: bool = setting(False, help="Read --dataset as a stream, without downloading it whole.")
    text_column: str = setting("text", help="Column of the text.")
    validation: tuple[Path, ...] = setting((), help="Files to validate on; default: a share of the texts.")
    validation_share: float = setting(
        0.01, help="Share of the texts to validate on where there are no files for it: one of so many, at most 0.5."
    )
    errors: Literal["strict", "replace"] = setting("strict", help="What to do with bytes that are not UTF-8.")
    format: Literal["packed", "pairs", "ids"] = setting(
        "packed",
        help="Examples: blocks filled across texts, pairs of lines as in the paper, or its files of ids.",
    )
    prepared: Path | None = setting(None, help="Folder of the prepared examples, to share; default: OUTPUT/data.")
    limit: int | None = setting(None, help="Use at most so many texts.")

    max_length: int = setting(128, help="Longest input.")
    fixed_length: bool = setting(False, help="Pad every input to --max-length, as the paper's code does.")
    mlm_probability: float = setting(0.15, help="Share of the tokens to predict.")
    whole_words: bool = setting(False, help="Mask whole words.")
    sentence_order: bool = setting(False, help="Predict as well whether the two lines of a pair were swapped.")

    fields: tuple[str, ...] = setting((), help="Config fields to change: name=value,name=value.")
    max_steps: int = setting(1_000_000, help="Optimiser steps; 0 measures without training.")
    batch_size: int = setting(32, help="Inputs per optimiser step, over all processes and accumulated batches.")
    accumulate: int = setting(1, help="Forward passes that an optimiser step is divided into.")
    eval_batch_size: int = setting(64, help="Inputs per batch in evaluation, over all processes.")
    learning_rate: float = setting(1e-4, help="Peak learning rate.")
    kernel_learning_rate: float | None = setting(
        None, help="Peak rate of fixed, query and key kernels; default: as the rest."
    )
    fixed_kernel_learning_rate: float | None = setting(None, help="Peak rate of the fixed kernels alone.")
    weight_decay: float = setting(0.01, help="Weight decay of all but biases and LayerNorms.")
    kernel_weight_decay: float | None = setting(None, help="Weight decay of the kernels; default: as the rest.")
    warmup: float = setting(10_000, help="Steps of warm-up, or below 1 their share of all steps.")
    schedule: str = setting("linear", help="Schedule of the learning rate after the warm-up.")
    adam_epsilon: float = setting(1e-6, help="Epsilon of AdamW.")
    clip: float = setting(1.0, help="Largest norm of the gradient.")
    dropout: float | None = setting(None, help="Dropout in place of the config's own.")

    eval_steps: int = setting(5_000, help="Steps between evaluations.")
    save_steps: int = setting(25_000, help="Steps between checkpoints.")
    log_steps: int = setting(100, help="Steps between lines of the log.")
    eval_lengths: tuple[int, ...] = setting((), help="At the end, the loss at these lengths: 64,128,256.")
    seed: int = setting(42, help="Seed of the weights, the order of the data, the masks and dropout.")
    bf16: bool = setting(False, help="Compute in bfloat16 where that is safe (autocast).")
    attention: str | None = setting(None, help="Attention backend; default: sdpa.")
    gradient_checkpointing: bool = setting(False, help="Less memory for more time.")
    compile: bool = setting(False, help="Use torch.compile.")
    workers: int = setting(0, help="Processes that make batches.")
    tensorboard: bool = setting(False, help="Log to TensorBoard, into OUTPUT/tensorboard.")
    resume: bool = setting(False, help="Go on from the last checkpoint in OUTPUT.")
    overwrite: bool = setting(False, help="Replace an earlier result in OUTPUT.")
    keep_checkpoints: bool = setting(False, help="Keep the last checkpoints in OUTPUT/checkpoints.")

    def __post_init__(self) -> None:
        if (not self.data) == (self.dataset is None):
            raise ValueError("Give the text as --data FILES or as --dataset FOLDER-OR-NAME, one of the two.")
        if (self.architecture is None) == (self.initial is None):
            raise ValueError("Give --architecture for random weights or --initial for a checkpoint, one of the two.")
        if self.tokenizer is None and self.initial is None:
            raise ValueError("--tokenizer is missing: train-tokenizer makes one.")
        at_least(self, ("max_steps",), 0)
        sizes = ("batch_size", "accumulate", "eval_batch_size", "eval_steps", "save_steps", "log_steps", "limit")
        at_least(self, sizes, 1)
        at_least(self, ("max_length",), SHORTEST)
        at_least(self, ("learning_rate", *KERNEL_SETTINGS, "weight_decay", "warmup", "clip"), 0)
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"--mlm-probability must lie between 0 and 1, got {self.mlm_probability}.")
        if not 0 < self.validation_share <= 0.5:
            raise ValueError(f"--validation-share must lie between 0 and 0.5, got {self.validation_share}.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout must be at least 0 and below 1, got {self.dropout}.")
        if any(length < SHORTEST for length in self.eval_lengths):
            raise ValueError(f"--eval-lengths must be at least {SHORTEST} each, got {min(self.eval_lengths)}.")
        if self.format == "ids" and self.dataset is not None:
            raise ValueError("--format ids reads files of ids: give them as --data.")
        if self.sentence_order and self.format == "packed":
            raise ValueError("--sentence-order needs pairs of lines: --format pairs.")
        if self.batch_size % self.accumulate:
            raise ValueError(f"--accumulate {self.accumulate} must divide --batch-size {self.batch_size}.")


@dataclass(frozen=True)
class TokenizerSettings:
    """The training of a tokenizer. The paper's is the default: SentencePiece unigram with 30,000 pieces."""

    data: tuple[Path, ...] = setting(help="Files of text: .txt, .jsonl or .parquet.")
    output: Path = setting(help="Folder to write tokenizer.json to.")
    kind: Literal["sentencepiece", "wordpiece", "bpe"] = setting("sentencepiece", help="Kind of tokenizer.")
    vocab_size: int = setting(30_000, help="Pieces; of sentencepiece without the four special tokens that are added.")
    cased: bool = setting(False, help="Keep upper case and accents.")
    text_column: str = setting("text", help="Column of the text in .jsonl and .parquet.")
    errors: Literal["strict", "replace"] = setting("strict", help="What to do with bytes that are not UTF-8.")
    sample: int = setting(10_000_000, help="Lines to train on, at most; a random sample.")
    model_max_length: int | None = setting(None, help="Longest input that the tokenizer announces.")
    seed: int = setting(42, help="Seed of the sample.")
    overwrite: bool = setting(False, help="Replace an earlier tokenizer in OUTPUT.")

    def __post_init__(self) -> None:
        at_least(self, ("sample", "vocab_size", "model_max_length"), 1)
