# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""One fine-tuning run: everything is read and checked, then trained, then written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoTokenizer,
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from modeling_convbert_composite import records
from modeling_convbert_composite.checkpoints import find_model
from modeling_convbert_composite.finetuning.examples import Examples
from modeling_convbert_composite.finetuning.settings import FinetuningSettings
from modeling_convbert_composite.finetuning.tables import Table, read_tables
from modeling_convbert_composite.finetuning.tasks import (
    MultiLabel,
    MultipleChoice,
    Prediction,
    Regression,
    SentencePair,
    Task,
    TextClassification,
)
from modeling_convbert_composite.finetuning.windowed_tasks import QuestionAnswering, TokenClassification
from modeling_convbert_composite.optimization import CompositeTrainer, KernelRates, position_limit, shared_arguments
from modeling_convbert_composite.run_folders import RESULTS, RunFolder
from modeling_convbert_composite.settings import as_command, plain


TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        TextClassification,
        SentencePair,
        MultiLabel,
        Regression,
        TokenClassification,
        QuestionAnswering,
        MultipleChoice,
    )
}

# Settings that may change between a run and its resumption.
MAY_DIFFER = frozenset({"resume", "overwrite", "save_model", "keep_checkpoints", "output", "tensorboard"})


@dataclass(frozen=True)
class FinetuningResult:
    """What a run found; `results.json` holds it all."""

    output: Path
    metrics: dict[str, dict[str, float]]
    history: list[dict[str, float]]
    notes: list[str]


@dataclass(frozen=True)
class Run:
    """All that is ready before training: the model with its tokenizer, and every split as examples and as features."""

    settings: FinetuningSettings
    task: Task
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    splits: dict[str, Examples]
    features: dict[str, Dataset]


def finetune(settings: FinetuningSettings, tables: dict[str, Table] | None = None) -> FinetuningResult:
    """
    Fine-tunes a checkpoint and writes the model, its results and its predictions to `settings.output`.

    Args:
        tables: the splits, if they do not come from the files or the dataset that `settings` name.

    Raises:
        ValueError: data, labels or settings that do not fit, before anything is trained or written.
        FileExistsError: an earlier result in the folder. OSError: files that are not there.
    """
    folder = RunFolder(settings, MAY_DIFFER, saves_model=settings.save_model)
    folder.check()
    earlier = folder.finished_results()
    if earlier is not None:
        return FinetuningResult(
            settings.output, earlier["metrics"], earlier["history"], ["The run had come to its end already."]
        )
    tables = tables or read_tables(settings)
    task = TASKS[settings.task](settings)
    splits = task.read(tables)
    set_seed(settings.seed)
    tokenizer = load_tokenizer(settings)
    model = load_model(settings, task)
    check_length(settings, model)
    features = {name: task.encode(tokenizer, examples) for name, examples in splits.items()}
    run = Run(settings, task, model, tokenizer, splits, features)
    trainer = build_trainer(run)
    folder.prepare()
    trainer.train_from(folder.last_checkpoint())
    result = finish(run, trainer)
    folder.close()
    return result


def load_tokenizer(settings: FinetuningSettings) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(**source_of(settings))


def source_of(settings: FinetuningSettings) -> dict[str, Any]:
    """What `from_pretrained` is told about the checkpoint."""
    return {
        "pretrained_model_name_or_path": find_model(settings.model),
        "revision": settings.revision or "main",
        "trust_remote_code": settings.trust_remote_code,
    }


def load_model(settings: FinetuningSettings, task: Task) -> PreTrainedModel:
    """The checkpoint with the task's head; the head is fresh unless it was trained on the same labels."""
    source = source_of(settings)
    config = AutoConfig.from_pretrained(**source)
    fields = task.config_fields()
    is_same_head = all(
        getattr(config, name, None) == value for name, value in fields.items() if name != "problem_type"
    )
    for name, value in fields.items():
        setattr(config, name, value)
    if settings.dropout is not None:
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            setattr(config, name, settings.dropout)
    if settings.attention is not None:
        source["attn_implementation"] = settings.attention
    model = task.auto_class.from_pretrained(config=config, ignore_mismatched_sizes=True, dtype=torch.float32, **source)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if not is_same_head:
        renew_classifier(model)
    return model


def renew_classifier(model: PreTrainedModel) -> None:
    """Start values for a head that was trained on other labels, even if there were equally many."""
    head = getattr(model, "classifier", None)
    if head is None:
        return
    for module in head.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=model.config.initializer_range)
            torch.nn.init.zeros_(module.bias)


def check_length(settings: FinetuningSettings, model: PreTrainedModel) -> None:
    """Refuses inputs that are longer than the model's position table."""
    limit = position_limit(model.config)
    if limit is not None and settings.max_length > limit:
        raise ValueError(f"--max-length {settings.max_length} is more than the {limit} positions of {settings.model}.")


def build_trainer(run: Run) -> CompositeTrainer:
    settings, task = run.settings, run.task
    validation = run.splits["validation"]

    def compute_metrics(outputs: EvalPrediction) -> dict[str, float]:
        predictions = task.decode(outputs.predictions, run.features["validation"], validation)
        return task.score(predictions, validation.labels or [])

    callbacks: list[TrainerCallback] = []
    if settings.patience is not None:
        callbacks.append(EarlyStoppingCallback(settings.patience))
    train = run.features["train"]
    return CompositeTrainer(
        model=run.model,
        args=training_arguments(settings, task),
        train_dataset=train,
        eval_dataset=run.features["validation"],
        data_collator=task.collator(run.tokenizer),
        processing_class=run.tokenizer,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=task.keep,
        callbacks=callbacks,
        kernels=KernelRates(settings.kernel_learning_rate, weight_decay=settings.kernel_weight_decay),
        lengths=[length_of(ids) for ids in train["input_ids"]] if settings.group_by_length else None,
    )


def length_of(ids: list[Any]) -> int:
    """Tokens of a feature; of a list of choices, those of the longest."""
    return max(map(len, ids)) if ids and isinstance(ids[0], list) else len(ids)


def training_arguments(settings: FinetuningSettings, task: Task) -> TrainingArguments:
    metric = settings.best_metric or task.best_metric
    strategy = {"epoch": "epoch", "steps": "steps", "end": "no"}[settings.evaluate]
    keeps_best = settings.best_checkpoint and strategy != "no"
    return TrainingArguments(
        **shared_arguments(settings),
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        eval_strategy=strategy,
        # With evaluation only at the end, checkpoints are there to resume from.
        save_strategy="steps" if strategy == "no" else strategy,
        save_steps=settings.eval_steps,
        save_total_limit=1,
        logging_steps=min(50, settings.eval_steps),
        load_best_model_at_end=keeps_best,
        metric_for_best_model=metric,
        greater_is_better=metric not in ("loss", "mse"),
    )


def finish(run: Run, trainer: CompositeTrainer) -> FinetuningResult:
    """Evaluates, predicts and writes; `results.json` comes last, so that its presence says that all is found."""
    settings = run.settings
    scores: dict[str, dict[str, float]] = {}
    predictions: dict[str, list[Prediction]] = {}
    for name, examples in run.splits.items():
        if name != "train":
            features = run.features[name]
            outputs = trainer.predict(features.remove_columns(label_columns(features)))
            predictions[name] = run.task.decode(outputs.predictions, features, examples)
            if examples.labels is not None:
                scores[name] = run.task.score(predictions[name], examples.labels)
    history = [entry for entry in trainer.state.log_history if "step" in entry]
    notes: list[str] = []
    if trainer.is_world_process_zero():
        write_results(run, trainer, scores, predictions, history, notes)
    return FinetuningResult(settings.output, scores, history, notes)


def write_results(
    run: Run,
    trainer: CompositeTrainer,
    scores: dict[str, dict[str, float]],
    predictions: dict[str, list[Prediction]],
    history: list[dict[str, float]],
    notes: list[str],
) -> None:
    settings, output = run.settings, run.settings.output
    if settings.save_model:
        # Not Trainer.save_model: it adds a pickle of the arguments, which results.json has as well.
        run.model.save_pretrained(output)
        run.tokenizer.save_pretrained(output)
    for name, items in predictions.items():
        rows = run.splits[name].table.rows
        lines = [{"row": row, **item} for row, item in zip(rows, items, strict=True)]
        records.write_lines(output / f"predictions-{name}.jsonl", lines)
    records.write_text(output / "results.md", results_table(scores))
    if not records.plot_history(history, output / "training.png", f"{settings.task}: {settings.model}"):
        notes.append("No plot: it needs the extra `plot` (matplotlib).")
    records.write_json(output / RESULTS, results(run, trainer.state.global_step, scores, history))


def label_columns(features: Dataset) -> list[str]:
    """Labels are not for the model when it predicts: our own scores need none of its losses."""
    return [name for name in ("label", "labels", "start_positions", "end_positions") if name in features.column_names]


def results(
    run: Run, steps: int, scores: dict[str, dict[str, float]], history: list[dict[str, float]]
) -> dict[str, Any]:
    """All that is known about the run."""
    settings, train = run.settings, run.splits["train"]
    tables = {name: examples.table for name, examples in run.splits.items()}
    return {
        "task": settings.task,
        "base_model": settings.model,
        "command": as_command("finetune", settings),
        "dataset": {
            "name": settings.dataset or train.table.source,
            "hub_id": train.table.repository,
            "files": {name: table.source for name, table in tables.items()},
            "fingerprint": {name: table.digest for name, table in tables.items()},
            "counts": {name: len(table) for name, table in tables.items()},
            "columns": [train.columns.text, train.columns.second, *train.columns.choices, *train.columns.label],
        },
        "labels": run.task.labels,
        "metrics": scores,
        "best_metric": settings.best_metric or run.task.best_metric,
        "steps": steps,
        "parameters": run.model.num_parameters(),
        "seed": settings.seed,
        "settings": plain(settings),
        "environment": records.environment(),
        "history": history,
    }


def results_table(found: dict[str, dict[str, float]]) -> str:
    return records.markdown_table(["metric", *found], records.score_rows(found))
