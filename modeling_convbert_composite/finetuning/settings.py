# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What a fine-tuning run can be told. The fields are the flags of `convbert-composite finetune`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modeling_convbert_composite.settings import at_least, setting


# The classes are in tasks.py, which needs the extra `train`; these names are what `--help` can show without it.
TASK_NAMES = (
    "text-classification",
    "sentence-pair",
    "multi-label",
    "regression",
    "token-classification",
    "question-answering",
    "multiple-choice",
)


@dataclass(frozen=True)
class FinetuningSettings:
    """One fine-tuning run. Lengths are in tokens, rates per optimiser step, batches texts per optimiser step."""

    model: str = setting(help="Checkpoint to start from: a folder, a repository id, or `mini`, which is shipped.")
    output: Path = setting(help="Folder to write the model, its results and predictions to.")
    task: str = setting(help=f"One of {', '.join(TASK_NAMES)}.")

    train: Path | None = setting(None, help="Training file: .csv, .tsv, .jsonl (.json) or .parquet.")
    validation: Path | None = setting(None, help="Validation file; default: a share of the training data.")
    test: Path | None = setting(None, help="File to predict, with labels or without.")
    dataset: str | None = setting(None, help="In place of files: a folder of datasets' save_to_disk, or a name.")
    dataset_config: str | None = setting(None, help="Configuration of a dataset by name.")
    train_split: str = setting("train", help="Training split of --dataset.")
    validation_split: str | None = setting(None, help="Validation split of --dataset; default: validation or dev.")
    test_split: str | None = setting(None, help="Split of --dataset to predict; default: test.")
    validation_share: float = setting(0.1, help="Share of the training data to validate on where there is none.")
    limit: int | None = setting(None, help="Use at most so many rows of each split.")

    text_column: str | None = setting(None, help="Column of the text (tokens, question); default: guessed.")
    second_column: str | None = setting(None, help="Column of the second text (context of a question).")
    label_column: str | None = setting(None, help="Column of the label; of several 0/1 labels: a,b,c.")
    choice_columns: tuple[str, ...] = setting((), help="Columns of the choices: a,b,c; default: choices, or guessed.")
    labels: tuple[str, ...] = setting((), help="All labels in order: a,b,c; default: those of the training data.")
    max_characters: int = setting(500_000, help="Refuse longer texts: most often a quote that is never closed.")

    max_length: int = setting(128, help="Tokens of an input; longer ones are cut or, for tags and answers, windowed.")
    stride: int = setting(64, help="Tokens that windows of a long context share, in question answering.")
    epochs: float = setting(3.0, help="Passes over the training data.")
    max_steps: int | None = setting(None, help="Optimiser steps, in place of --epochs.")
    batch_size: int = setting(32, help="Texts per optimiser step, over all processes and accumulated batches.")
    accumulate: int = setting(1, help="Forward passes that an optimiser step is divided into.")
    eval_batch_size: int = setting(64, help="Texts per batch in evaluation, over all processes.")
    learning_rate: float = setting(5e-5, help="Peak learning rate.")
    kernel_learning_rate: float | None = setting(
        None, help="Peak rate of fixed, query and key kernels; default: as the rest."
    )
    weight_decay: float = setting(0.01, help="Weight decay of all but biases and LayerNorms.")
    kernel_weight_decay: float | None = setting(
        None, help="Weight decay of fixed, query and key kernels; default: as the rest, as in the paper's code."
    )
    warmup: float = setting(0.1, help="Steps of warm-up, or below 1 their share of all steps.")
    schedule: str = setting(
        "linear", help="Schedule of the learning rate after the warm-up: linear, cosine, constant."
    )
    adam_epsilon: float = setting(1e-8, help="Epsilon of AdamW.")
    clip: float = setting(1.0, help="Largest norm of the gradient.")
    group_by_length: bool = setting(True, help="Fill batches with texts of about equal length.")
    dropout: float | None = setting(None, help="Dropout in place of the model's own.")

    evaluate: Literal["epoch", "steps", "end"] = setting("epoch", help="When to evaluate.")
    eval_steps: int = setting(500, help="Steps between evaluations with --evaluate steps, and between checkpoints.")
    best_checkpoint: bool = setting(True, help="End with the best checkpoint instead of the last one.")
    best_metric: str | None = setting(None, help="Metric that decides which is best; default: the task's.")
    patience: int | None = setting(None, help="Stop after so many evaluations without a better one.")

    seed: int = setting(42, help="Seed of the new head, the order of the data and dropout.")
    bf16: bool = setting(False, help="Compute in bfloat16 where that is safe (autocast).")
    attention: str | None = setting(None, help="Attention backend; default: sdpa.")
    gradient_checkpointing: bool = setting(False, help="Less memory for more time.")
    compile: bool = setting(False, help="Use torch.compile.")
    tensorboard: bool = setting(False, help="Log to TensorBoard, into OUTPUT/tensorboard.")
    revision: str | None = setting(None, help="Branch, tag or commit of a repository.")
    trust_remote_code: bool = setting(False, help="Run a checkpoint's own code where no installed class fits it.")
    resume: bool = setting(False, help="Go on from the last checkpoint in OUTPUT.")
    overwrite: bool = setting(False, help="Replace an earlier result in OUTPUT.")
    save_model: bool = setting(True, help="Write the model, not only its results and predictions.")
    keep_checkpoints: bool = setting(False, help="Keep the checkpoints of the run in OUTPUT/checkpoints.")

    def __post_init__(self) -> None:
        """Refuses what cannot be meant, before anything is read."""
        if self.task not in TASK_NAMES:
            raise ValueError(f"--task must be one of {', '.join(TASK_NAMES)}, got {self.task!r}.")
        if (self.train is None) == (self.dataset is None):
            raise ValueError("Give the data as --train FILE or as --dataset FOLDER-OR-NAME, one of the two.")
        sizes = ("max_length", "batch_size", "accumulate", "eval_batch_size", "eval_steps", "max_characters")
        at_least(self, (*sizes, "limit", "max_steps", "patience"), 1)
        rates = ("epochs", "learning_rate", "weight_decay", "warmup", "clip", "kernel_learning_rate")
        at_least(self, (*rates, "stride"), 0)
        if not 0 < self.validation_share < 1:
            raise ValueError(f"--validation-share must lie between 0 and 1, got {self.validation_share}.")
        if self.batch_size % self.accumulate:
            raise ValueError(f"--accumulate {self.accumulate} must divide --batch-size {self.batch_size}.")
