# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""`convbert-composite finetune`: data in, model, results and predictions out; its errors, and its training."""

import csv
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from helpers import HEADS, assert_states_equal, state_copy, tiny_config
from safetensors.torch import load_file
from test_losses import is_about_keys, transformers_log  # noqa: F401
from test_pipelines import WORDS, word_tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel, pipeline

from modeling_convbert_composite import ConvBertCompositeForSequenceClassification
from modeling_convbert_composite.cli import main
from modeling_convbert_composite.finetuning import metrics
from modeling_convbert_composite.finetuning.run import TASKS, finetune
from modeling_convbert_composite.finetuning.settings import TASK_NAMES, FinetuningSettings
from modeling_convbert_composite.finetuning.tables import held_out, read_file, table
from modeling_convbert_composite.finetuning.windowed_tasks import answer_tokens, cut
from modeling_convbert_composite.optimization import CompositeTrainer, EpochSampler, KernelRates, parameter_groups
from modeling_convbert_composite.records import read_json, read_lines
from modeling_convbert_composite.settings import as_command


Rows = list[dict[str, Any]]
PLAIN_WORDS = WORDS[5:32]


def text(draw: random.Random, extra: str = "", low: int = 3, high: int = 9) -> str:
    words = [draw.choice(PLAIN_WORDS) for _ in range(draw.randint(low, high))]
    if extra:
        words.insert(draw.randrange(len(words) + 1), extra)
    return " ".join(words)


def text_row(draw: random.Random) -> dict[str, Any]:
    label = draw.choice(["bad", "good"])
    return {"text": text(draw, label), "label": {"bad": "negative", "good": "positive"}[label]}


def pair_row(draw: random.Random) -> dict[str, Any]:
    first, second = draw.choice(["bad", "good"]), draw.choice(["bad", "good"])
    return {"sentence1": text(draw, first), "sentence2": text(draw, second), "label": int(second == "good")}


def many_row(draw: random.Random) -> dict[str, Any]:
    labels = [label for label in ("sport", "politics") if draw.random() < 0.5]
    return {"text": f"{text(draw)} {' '.join(labels)}", "labels": labels}


def score_row(draw: random.Random) -> dict[str, Any]:
    label = draw.choice(["bad", "good"])
    return {"text": text(draw, label), "score": round(draw.uniform(0, 2) + 3 * (label == "good"), 3)}


def tag_row(draw: random.Random) -> dict[str, Any]:
    words = text(draw).split()
    return {"tokens": words, "tags": ["B-animal" if word in ("cat", "dog") else "O" for word in words]}


def answer_row(draw: random.Random) -> dict[str, Any]:
    before, after = text(draw), text(draw)
    context = f"{before} big house {after}"
    answers = {"text": ["big house"], "answer_start": [len(before) + 1]}
    return {"question": "where is the cat", "context": context, "answers": answers}


def choice_row(draw: random.Random) -> dict[str, Any]:
    label = draw.randrange(3)
    choices = [text(draw, "good" if index == label else "bad", 1, 4) for index in range(3)]
    return {"text": text(draw), "choices": choices, "label": label}


ROWS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "text-classification": text_row,
    "sentence-pair": pair_row,
    "multi-label": many_row,
    "regression": score_row,
    "token-classification": tag_row,
    "question-answering": answer_row,
    "multiple-choice": choice_row,
}


def rows_of(task: str, count: int, seed: int = 0) -> Rows:
    draw = random.Random(seed)
    return [ROWS[task](draw) for _ in range(count)]


def flat(value: Any) -> str:
    """A value as a CSV file holds it."""
    if isinstance(value, list) and all(" " not in item for item in value):
        return " ".join(value)
    return value if isinstance(value, str) else json.dumps(value)


def write(path: Path, rows: Rows) -> Path:
    """Rows in the format of the file's ending."""
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [list(rows[0]), *([flat(value) for value in row.values()] for row in rows)]
        if path.suffix == ".tsv":
            path.write_text("".join("\t".join(line) + "\n" for line in lines))
        else:
            with path.open("w", newline="") as file:
                csv.writer(file).writerows(lines)
    return path


@pytest.fixture
def make(checkpoint: Path, tmp_path: Path) -> Callable[..., FinetuningSettings]:
    """Settings of a small run on rows of a task."""

    def settings(task: str, **changes: Any) -> FinetuningSettings:
        train = tmp_path / f"{task}.jsonl"
        if not train.exists():
            write(train, rows_of(task, 24))
        values: dict[str, Any] = {
            "model": str(checkpoint),
            "output": tmp_path / "out",
            "task": task,
            "train": train,
            "validation": train,
            "epochs": 1,
            "batch_size": 8,
            "max_length": 32,
            "learning_rate": 1e-3,
        }
        return FinetuningSettings(**(values | changes))

    return settings


# What a run reads and writes


# Every task from one kind of text file and one with types; every kind of file.
FORMATS = [(task, (".csv", ".tsv")[index % 2]) for index, task in enumerate(TASK_NAMES)]
FORMATS += [(task, (".jsonl", ".parquet")[index % 2]) for index, task in enumerate(TASK_NAMES)]


@pytest.mark.parametrize(("task", "ending"), FORMATS)
def test_every_task_from_every_format(task: str, ending: str, checkpoint: Path, tmp_path: Path) -> None:
    rows = rows_of(task, 20)
    if ending in (".csv", ".tsv"):
        # What has no name for several labels in a cell is written with commas, answers as JSON.
        for row in rows:
            if "labels" in row:
                row["labels"] = ",".join(row["labels"])
            if "choices" in row:
                row |= {f"choice{index}": choice for index, choice in enumerate(row.pop("choices"))}
    train, test = write(tmp_path / f"train{ending}", rows), write(tmp_path / f"test{ending}", rows[:5])
    settings = FinetuningSettings(
        model=str(checkpoint), output=tmp_path / "out", task=task, train=train, test=test, epochs=1, max_length=32
    )
    result = finetune(settings)
    assert result.metrics["validation"][TASKS[task].best_metric] is not None
    assert len(read_lines(tmp_path / "out" / "predictions-test.jsonl")) == 5
    results = read_json(tmp_path / "out" / "results.json")
    assert results["dataset"]["counts"] == {"train": 18, "validation": 2, "test": 5}
    assert results["metrics"] == result.metrics
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names > {
        "model.safetensors",
        "tokenizer.json",
        "results.md",
        "training.png",
        "attention_convbert_composite.py",
    }
    assert not names & {"checkpoints", "training_args.bin"}
    for text in ("metric", *result.metrics["test"]):
        assert text in (tmp_path / "out" / "results.md").read_text()
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| test | {TASKS[task].best_metric} |" in card


LEARNT = {
    "text-classification": ("accuracy", 0.85),
    "sentence-pair": ("accuracy", 0.75),
    "multi-label": ("micro_f1", 0.8),
    "regression": ("pearson", 0.75),
    "token-classification": ("f1", 0.8),
    "question-answering": ("exact_match", 0.8),
    "multiple-choice": ("accuracy", 0.7),
}


@pytest.mark.parametrize("task", TASK_NAMES)
def test_every_task_is_learnt(task: str, make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    """On 160 texts with a plain rule; the saved model with the saved predictions agrees with the metric."""
    train, test = (
        write(tmp_path / "t.jsonl", rows_of(task, 160)),
        write(tmp_path / "e.jsonl", rows_of(task, 40, seed=1)),
    )
    name, floor = LEARNT[task]
    settings = make(task, train=train, validation=train, test=test, epochs=12, batch_size=16, learning_rate=5e-3)
    assert finetune(settings).metrics["test"][name] >= floor


def test_a_dataset_folder(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["worst", "best"])}
    )
    rows = [
        {"text": row["text"], "label": int(row["label"] == "positive")} for row in rows_of("text-classification", 20)
    ]
    whole = datasets.Dataset.from_list(rows, features=features)
    datasets.DatasetDict({"train": whole, "dev": whole}).save_to_disk(str(tmp_path / "data"))
    result = finetune(make("text-classification", train=None, validation=None, dataset=str(tmp_path / "data")))
    results = read_json(result.output / "results.json")
    # The names of the dataset in its order, not the alphabet's.
    assert results["labels"] == ["worst", "best"]
    assert results["dataset"]["counts"] == {"train": 20, "validation": 20}
    config = json.loads((result.output / "config.json").read_text())
    assert config["id2label"] == {"0": "worst", "1": "best"}


def test_the_result_works_in_a_pipeline(make: Callable[..., FinetuningSettings]) -> None:
    settings = make("text-classification", epochs=2)
    finetune(settings)
    texts = [row["text"] for row in read_lines(settings.validation)]  # type: ignore[arg-type]
    answers = pipeline("text-classification", model=str(settings.output))(texts)
    predictions = read_lines(settings.output / "predictions-validation.jsonl")
    assert [answer["label"] for answer in answers] == [item["prediction"] for item in predictions]
    for answer, item in zip(answers, predictions, strict=True):
        assert answer["score"] == pytest.approx(item["score"], abs=1e-4)


@pytest.mark.parametrize("form", ["none", "empty", "minus one"])
@pytest.mark.parametrize("task", ["text-classification", "regression"])
def test_a_test_file_without_labels(
    task: str, form: str, make: Callable[..., FinetuningSettings], tmp_path: Path
) -> None:
    """R68: predictions are written, one line an input, and no metric."""
    column = {"text-classification": "label", "regression": "score"}[task]
    rows = rows_of(task, 6)
    for row in rows:
        if form == "none":
            del row[column]
        else:
            row[column] = "" if form == "empty" else -1
    result = finetune(make(task, test=write(tmp_path / "test.csv", rows)))
    assert "test" not in result.metrics
    assert [item["row"] for item in read_lines(result.output / "predictions-test.jsonl")] == list(range(1, 7))


def test_scores_written_as_text(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    """R68: a number in quotes is a number, and one output, not a class a value."""
    rows = [{**row, "score": str(row["score"])} for row in rows_of("regression", 20)]
    train = write(tmp_path / "scores.jsonl", rows)
    result = finetune(make("regression", train=train, validation=train))
    model = AutoModelForSequenceClassification.from_pretrained(result.output)
    assert (model.config.num_labels, model.config.problem_type) == (1, "regression")
    assert len(read_json(result.output / "results.json")["metrics"]["validation"]) == 4


def test_labels_of_several_columns(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    rows = [
        {"text": row["text"], "sport": int("sport" in row["labels"]), "politics": int("politics" in row["labels"])}
        for row in rows_of("multi-label", 20)
    ]
    train = write(tmp_path / "flags.csv", rows)
    result = finetune(make("multi-label", train=train, validation=train, label_column="sport,politics"))
    assert read_json(result.output / "results.json")["labels"] == ["sport", "politics"]


def test_labels_in_a_given_order(make: Callable[..., FinetuningSettings]) -> None:
    result = finetune(make("text-classification", labels=("positive", "negative", "neutral")))
    config = json.loads((result.output / "config.json").read_text())
    assert list(config["id2label"].values()) == ["positive", "negative", "neutral"]


def test_numbers_as_labels_stand_in_their_order(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    rows = [{"text": f"the {word}", "label": index} for index, word in enumerate(PLAIN_WORDS[:11])]
    train = write(tmp_path / "numbers.csv", rows)
    result = finetune(make("text-classification", train=train, validation=train))
    assert read_json(result.output / "results.json")["labels"] == [str(index) for index in range(11)]


# Heads


def test_a_head_is_kept_for_the_same_labels_only(
    make: Callable[..., FinetuningSettings], tmp_path: Path, checkpoint: Path
) -> None:
    first = finetune(make("text-classification", epochs=1)).output
    trained = load_file(first / "model.safetensors")["classifier.weight"]
    same = finetune(make("text-classification", model=str(first), output=tmp_path / "b", learning_rate=0.0)).output
    assert torch.equal(load_file(same / "model.safetensors")["classifier.weight"], trained)
    rows = [{**row, "label": row["label"] + "!"} for row in rows_of("text-classification", 20)]
    train = write(tmp_path / "others.jsonl", rows)
    other = make("text-classification", model=str(first), output=tmp_path / "c", learning_rate=0.0)
    weight = load_file(finetune(replace(other, train=train, validation=train)).output / "model.safetensors")
    assert not torch.allclose(weight["classifier.weight"], trained)
    assert weight["classifier.weight"].std() == pytest.approx(0.02, rel=0.4)
    pooler = next(name for name in weight if "pooler" in name and name.endswith("weight"))
    assert torch.equal(weight[pooler], load_file(first / "model.safetensors")[pooler])


def test_a_regression_after_a_classification(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    """R57: the problem type of the earlier run does not stay."""
    first = finetune(make("text-classification")).output
    result = finetune(make("regression", model=str(first), output=tmp_path / "b"))
    config = json.loads((result.output / "config.json").read_text())
    assert config["problem_type"] == "regression"
    assert config["id2label"] == {"0": "score"}


def test_models_of_transformers_take_the_same_path(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(tmp_path / "bert")
    word_tokenizer().save_pretrained(tmp_path / "bert")
    result = finetune(make("text-classification", model=str(tmp_path / "bert")))
    assert "accuracy" in result.metrics["validation"]


# Training


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("task", TASK_NAMES)
def test_accumulation_gives_the_same_step(task: str, make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    """R55: 8 x 1 and 2 x 4, uneven texts and labels, one step."""
    fields: dict[str, Any] = {"max_steps": 1, "dropout": 0.0, "evaluate": "end", "warmup": 0, "adam_epsilon": 1e-3}
    whole = finetune(make(task, output=tmp_path / "whole", **fields)).output
    parts = finetune(make(task, output=tmp_path / "parts", accumulate=4, **fields)).output
    start = finetune(make(task, output=tmp_path / "start", **{**fields, "learning_rate": 0.0})).output
    moved = max(
        float((a - b).abs().max()) for a, b in zip(weights(whole).values(), weights(start).values(), strict=True)
    )
    assert moved > 1e-4
    for name, tensor in weights(whole).items():
        assert torch.allclose(tensor, weights(parts)[name], atol=2e-6), name


@pytest.mark.parametrize("group_by_length", [True, False])
def test_resuming_equals_not_stopping(
    group_by_length: bool,
    make: Callable[..., FinetuningSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    transformers_log: list[str],  # noqa: F811
) -> None:
    """Stopped in the second epoch, with dropout on; nothing is said about missing weights (R17)."""
    fields: dict[str, Any] = {
        "epochs": 3,
        "evaluate": "steps",
        "eval_steps": 2,
        "group_by_length": group_by_length,
        "dropout": 0.1,
        "keep_checkpoints": True,
    }
    # From a model with this head, so that no load has anything to say.
    fields["model"] = str(finetune(make("text-classification", output=tmp_path / "start")).output)
    transformers_log.clear()
    whole = finetune(make("text-classification", output=tmp_path / "whole", **fields))

    step = CompositeTrainer.training_step

    def stop(self: CompositeTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.state.global_step == 5:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(CompositeTrainer, "training_step", stop)
    parts = make("text-classification", output=tmp_path / "parts", **fields)
    with pytest.raises(KeyboardInterrupt):
        finetune(parts)
    monkeypatch.undo()
    # A checkpoint that was being written when the run died is passed over.
    (tmp_path / "parts" / "checkpoints" / "checkpoint-6").mkdir()
    resumed = finetune(replace(parts, resume=True))
    assert_states_equal(weights(resumed.output), weights(whole.output))
    losses = [[entry["loss"] for entry in result.history if "loss" in entry] for result in (whole, resumed)]
    assert losses[0] == losses[1]
    assert resumed.metrics == whole.metrics
    assert not [message for message in transformers_log if is_about_keys(message)]


def test_resuming_with_other_settings_is_refused(make: Callable[..., FinetuningSettings]) -> None:
    settings = make("text-classification", keep_checkpoints=True)
    result = finetune(settings)
    with pytest.raises(ValueError, match=r"learning_rate was 0\.001, is 0\.5"):
        finetune(replace(settings, resume=True, learning_rate=0.5))
    (result.output / "results.json").unlink()
    with pytest.raises(ValueError, match=r"learning_rate was 0\.001, is 0\.5"):
        finetune(replace(settings, resume=True, learning_rate=0.5))


def test_resuming_a_finished_run_gives_its_result(
    make: Callable[..., FinetuningSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make("text-classification")
    result = finetune(settings)
    monkeypatch.setattr(CompositeTrainer, "train", lambda *args, **kwargs: pytest.fail("it was trained again"))
    again = finetune(replace(settings, resume=True))
    assert (again.metrics, again.history) == (result.metrics, result.history)
    assert again.notes == ["The run had come to its end already."]


def test_resuming_a_run_that_stopped_early(
    make: Callable[..., FinetuningSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its last checkpoint and before its results, it does not train on."""
    settings = make("text-classification", learning_rate=0.0, epochs=5, patience=1, keep_checkpoints=True)
    whole = finetune(settings)
    assert sum("eval_loss" in entry for entry in whole.history) == 2

    def kill(self: CompositeTrainer) -> None:
        raise KeyboardInterrupt

    settings = replace(settings, output=settings.output.with_name("killed"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CompositeTrainer, "_load_best_model", kill)
        finetune(settings)
    monkeypatch.setattr(CompositeTrainer, "train", lambda *args, **kwargs: pytest.fail("it was trained again"))
    again = finetune(replace(settings, resume=True))
    assert again.metrics == whole.metrics
    assert_states_equal(weights(again.output), weights(whole.output))


def test_a_finished_folder_is_not_written_into(make: Callable[..., FinetuningSettings]) -> None:
    settings = make("text-classification")
    finetune(settings)
    with pytest.raises(FileExistsError, match="--overwrite"):
        finetune(settings)
    assert finetune(replace(settings, overwrite=True, seed=7)).metrics


def test_bfloat16_is_close_to_float32(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    fields: dict[str, Any] = {"epochs": 2, "dropout": 0.0}
    losses = []
    for bf16 in (False, True):
        result = finetune(make("text-classification", output=tmp_path / str(bf16), bf16=bf16, **fields))
        losses.append([entry["eval_loss"] for entry in result.history if "eval_loss" in entry])
        assert all(tensor.dtype == torch.float32 for tensor in weights(result.output).values())
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


@pytest.mark.parametrize("task", TASK_NAMES)
def test_hidden_states_do_not_break_metrics(
    task: str,
    make: Callable[..., FinetuningSettings],
    tmp_path: Path,
    transformers_log: list[str],  # noqa: F811
) -> None:
    """R62, and nothing is warned of when the best checkpoint is loaded (R17)."""
    torch.manual_seed(0)
    model = HEADS["base"].build(vocab_size=len(WORDS), pad_token_id=0)
    model.config.output_hidden_states = True
    model.save_pretrained(tmp_path / "verbose")
    word_tokenizer().save_pretrained(tmp_path / "verbose")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Of transformers itself, about its own future.
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        result = finetune(make(task, model=str(tmp_path / "verbose"), epochs=2))
    assert TASKS[task].best_metric in result.metrics["validation"]
    loaded = [message for message in transformers_log if is_about_keys(message)]
    assert len(loaded) <= 1, "only the first load, of an encoder without this head, may say so"


def test_the_best_checkpoint_counts(make: Callable[..., FinetuningSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    """With metrics that are forced, the weights of the second of four evaluations are saved; patience ends the run."""
    values = iter([0.5, 0.9, 0.1, 0.2, 0.3, 0.4])
    monkeypatch.setattr(
        TASKS["text-classification"], "score", lambda self, predictions, labels: {"accuracy": next(values)}
    )
    result = finetune(make("text-classification", epochs=6, patience=2, keep_checkpoints=True))
    accuracies = [entry["eval_accuracy"] for entry in result.history if "eval_accuracy" in entry]
    assert accuracies == [0.5, 0.9, 0.1, 0.2]
    best = next((result.output / "checkpoints").glob("checkpoint-6"))
    assert_states_equal(weights(result.output), load_file(best / "model.safetensors"))


def test_tensorboard(make: Callable[..., FinetuningSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    result = finetune(make("text-classification", tensorboard=True))
    assert list((result.output / "tensorboard").glob("events*"))


# Optimiser and order of the data


def original_decays(name: str) -> bool:
    """The rule of the paper's code, on names."""
    return not any(part in name for part in ("bias", "LayerNorm.weight"))


@pytest.mark.parametrize("option", [{}, {"depthwise_kernel": True}, {"key_kernel": True, "kernels_per_head": True}])
def test_decay_is_that_of_the_papers_code(option: dict[str, Any]) -> None:
    model = ConvBertCompositeForSequenceClassification(tiny_config(**option))
    decay = {
        id(parameter): group["weight_decay"]
        for group in parameter_groups(model, weight_decay=0.1)
        for parameter in group["params"]
    }
    for name, parameter in model.named_parameters():
        assert decay.pop(id(parameter)) == (0.1 if original_decays(name) else 0.0), name
    assert not decay


def test_kernels_have_a_rate_and_a_decay_of_their_own() -> None:
    model = ConvBertCompositeForSequenceClassification(tiny_config(key_kernel=True))
    groups = parameter_groups(model, 0.1, KernelRates(rate=0.01, fixed_rate=0.02, weight_decay=0.0))
    rates = {id(parameter): group.get("lr") for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        expected = {"fixed_kernel": 0.02, "query_kernel": 0.01, "key_kernel": 0.01}.get(name.rpartition(".")[2])
        assert rates[id(parameter)] == expected, name
    assert all(group["weight_decay"] == 0.0 for group in groups if "lr" in group)
    assert sum(rate is not None for rate in rates.values()) == 3 * 2


def test_the_kernel_rate_moves_kernels(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    moved = []
    for rate in (None, 1e-1):
        output = tmp_path / str(rate)
        result = finetune(make("text-classification", output=output, kernel_learning_rate=rate, learning_rate=1e-4))
        before, after = weights(Path(make("text-classification").model)), weights(result.output)
        (old, *_), (new, *_) = (
            [tensor for name, tensor in sorted(tensors.items()) if name.endswith("fixed_kernel")]
            for tensors in (before, after)
        )
        moved.append(float((old - new).abs().max()))
    assert moved[1] > 50 * moved[0]


@pytest.mark.parametrize("size", [1, 7, 8, 100, 1234])
@pytest.mark.parametrize("is_grouped", [False, True])
def test_the_order_of_an_epoch(size: int, is_grouped: bool) -> None:
    lengths = np.random.default_rng(0).integers(3, 90, size).tolist()
    sampler = EpochSampler(size, seed=3, batch_size=8, lengths=lengths if is_grouped else None)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert sorted(orders[0]) == list(range(size))
    assert orders[0] == orders[2]
    if size > 8:
        assert orders[0] != orders[1]
    if is_grouped and size == 1234:
        first = [lengths[index] for index in orders[0]]
        batches = [first[start : start + 8] for start in range(0, size, 8)]
        assert max(batches[0]) == max(lengths)
        spread = [max(batch) - min(batch) for batch in batches]
        assert sum(spread) / len(spread) < 5


@pytest.mark.parametrize("size", [1, 5, 8, 21])
def test_visits_fill_the_last_batch(size: int) -> None:
    """Every example once, then the first ones again up to a whole batch; visits tell epochs apart."""
    sampler = EpochSampler(size, seed=3, batch_size=8, counts_visits=True)
    sampler.set_epoch(2)
    visits = list(sampler)
    assert len(visits) == len(sampler) == -(-size // 8) * 8
    assert sorted(visits[:size]) == list(range(2 * size, 3 * size))
    assert visits[size:] == (visits[:size] * 8)[: len(visits) - size]


# Windows


def test_a_long_text_has_a_tag_for_every_word(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    words = [*PLAIN_WORDS, "cats", "dogs"] * 5
    rows = [*rows_of("token-classification", 20), {"tokens": words, "tags": ["O"] * len(words)}]
    rows += [{"tokens": [], "tags": []}, {"tokens": ["\x00", "cat"], "tags": ["O", "B-animal"]}]
    train = write(tmp_path / "long.jsonl", rows)
    settings = make("token-classification", train=train, validation=train, max_length=16)
    predictions = read_lines(finetune(settings).output / "predictions-validation.jsonl")
    assert [len(item["prediction"]) for item in predictions] == [len(row["tokens"]) for row in rows]

    task = TASKS["token-classification"](settings)
    examples = task.read({"train": read_file(train)})["train"]
    features = task.encode(word_tokenizer(), examples)
    assert max(map(len, features["input_ids"])) == 16
    # Every word begins once, in order, and carries its own tag there.
    for index in range(len(rows)):
        begun = [
            (word, label)
            for example, firsts, labels in zip(
                features["example"], features["first_of"], features["labels"], strict=True
            )
            for word, label in zip(firsts, labels, strict=True)
            if example == index and word >= 0
        ]
        expected = [(word, task.labels.index(tag)) for word, tag in enumerate(rows[index]["tags"])]
        assert begun == [item for item in expected if item[0] in {word for word, _ in begun}]
        assert len(expected) - len(begun) == rows[index]["tokens"].count("\x00")


def test_answers_in_long_contexts(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    """Every answer lies whole in some window, and its tokens give the text back."""
    draw = random.Random(0)
    rows = []
    for _ in range(10):
        before, after = text(draw, low=0, high=60), text(draw, low=0, high=60)
        start = len(before) + bool(before)
        context = f"{before} small houses {after}".strip()
        rows.append(
            {"question": "where?", "context": context, "answers": {"text": ["small houses"], "answer_start": [start]}}
        )
    rows.append(
        {"question": text(draw, low=60, high=60), "context": "the cat", "answers": {"text": [], "answer_start": []}}
    )
    path = write(tmp_path / "long.jsonl", rows)
    task = TASKS["question-answering"](make("question-answering", train=path, validation=path, max_length=24))
    examples = task.read({"train": read_file(path)})["train"]
    features = task.encode(word_tokenizer(), examples)
    found = set()
    for feature in features:
        first, last = feature["start_positions"], feature["end_positions"]
        if first:
            context = rows[feature["example"]]["context"]
            assert context[feature["spans"][first][0] : feature["spans"][last][1]] == "small houses"
            found.add(feature["example"])
    assert found == set(range(10))
    assert len(features) > 20

    # The best pair of start and end wins over all windows; where there may be no answer, so does its absence.
    zeros = [np.zeros((len(features), 24)) for _ in range(2)]
    window = next(index for index, feature in enumerate(features) if feature["start_positions"])
    example = features[window]["example"]
    zeros[0][window, features[window]["start_positions"]] = 5
    zeros[1][window, features[window]["end_positions"]] = 5
    for row in range(len(features)):
        zeros[0][row, 0] = 3
    predictions = task.decode(tuple(zeros), features, examples)
    assert predictions[example]["prediction"] == "small houses"
    assert predictions[-1]["prediction"] == ""
    assert task.score(predictions, examples.labels)["exact_match"] == pytest.approx(2 / 11)


def test_answer_tokens_by_hand() -> None:
    spans: list[list[int]] = [[], [], [10, 13], [14, 20], [20, 21], []]
    assert answer_tokens([14, 20], spans) == (3, 3)
    assert answer_tokens([14, 21], spans) == (3, 4)
    assert answer_tokens([15, 18], spans) == (3, 3)
    assert answer_tokens([5, 13], spans) == (0, 0)
    assert answer_tokens([14, 30], spans) == (0, 0)
    assert answer_tokens([], spans) == (0, 0)
    tokenizer = word_tokenizer()
    assert cut(tokenizer, "the cat sat", 2) == "the cat"
    assert cut(tokenizer, "the cat", 2) == "the cat"


# Errors


def broken(task: str, row: int, **values: Any) -> Rows:
    rows = rows_of(task, 12)
    rows[row] = {name: value for name, value in (rows[row] | values).items() if value is not ...}
    return rows


CLASSIFICATION = "text-classification"
WRONG: dict[str, tuple[str, Rows | str, dict[str, Any], str]] = {
    "empty file": (CLASSIFICATION, "", {}, r"train.jsonl is empty"),
    "header only": (CLASSIFICATION, "text,label\n", {"ending": ".csv"}, r"train.csv has no rows"),
    "no such column": (CLASSIFICATION, rows_of(CLASSIFICATION, 12), {"label_column": "stars"}, "no column 'stars'; it has text, label"),
    "no text column": (CLASSIFICATION, [{"a": "x", "label": "y"}] * 12, {}, "which column is the text.*a, label.*--text-column"),
    "no label column": (CLASSIFICATION, [{"text": "x", "b": "y"}] * 12, {}, "which column is the label.*--label-column"),
    "label missing": (CLASSIFICATION, broken(CLASSIFICATION, 3, label=None), {}, "row 4, column 'label': is nothing"),
    "mixed kinds": (CLASSIFICATION, broken(CLASSIFICATION, 5, label=1), {}, "row 6, column 'label': is a number .1., the first row's is text"),
    "number among words": (CLASSIFICATION, broken(CLASSIFICATION, 5, label="1"), {}, "row 6, column 'label': is text with a number"),
    "scores as classes": (CLASSIFICATION, [{"text": "a", "label": 0.5}] * 12, {}, "row 1, column 'label': .*0.5.*--task regression"),
    "outside the set": (CLASSIFICATION, rows_of(CLASSIFICATION, 12), {"labels": ("positive", "fair")}, r"row \d+, column 'label': 'negative' is none of the labels positive, fair"),
    "one class": (CLASSIFICATION, [{"text": "a", "label": "x"}] * 12, {}, "one class only, 'x'"),
    "text missing": (CLASSIFICATION, broken(CLASSIFICATION, 2, text=None), {}, "row 3, column 'text': must be text, got nothing"),
    "text of numbers": (CLASSIFICATION, broken(CLASSIFICATION, 2, text=3), {}, "row 3, column 'text': must be text, got a number"),
    "a million characters": (CLASSIFICATION, broken(CLASSIFICATION, 7, text="a" * 1_000_000), {}, "row 8, column 'text': has 1,000,000 characters, more than --max-characters 500,000"),
    "torn row": (CLASSIFICATION, "text,label\na,b\nc\n", {"ending": ".csv"}, "row 2 has 1 columns, its header has 2"),
    "open quote": (CLASSIFICATION, 'text,label\n"a,b\nc,d\n', {"ending": ".csv"}, "train.csv, line 3: unexpected end of data"),
    "no JSON": (CLASSIFICATION, '{"text": "a", "label": "b"}\n{oops\n', {}, "train.jsonl, line 2 is not JSON"),
    "no UTF-8": (CLASSIFICATION, "latin", {}, "train.jsonl is not UTF-8: byte 10"),
    "unknown ending": (CLASSIFICATION, "x", {"ending": ".xlsx"}, "must end in one of .csv, .tsv, .jsonl"),
    "too few rows": (CLASSIFICATION, rows_of(CLASSIFICATION, 2), {"validation": None}, "too few to hold 10% out"),
    "no number": ("regression", broken("regression", 4, score="fine"), {}, "row 5, column 'score': must be a number, got 'fine'"),
    "infinite": ("regression", broken("regression", 4, score="inf"), {}, "row 5, column 'score': must be a number"),
    "second text missing": ("sentence-pair", rows_of(CLASSIFICATION, 12), {}, "which column is the second text.*--second-column"),
    "one text only": ("token-classification", rows_of("token-classification", 12), {"second_column": "tags"}, "takes one text"),
    "tags for words": ("token-classification", broken("token-classification", 1, tags=["O"]), {}, r"row 2, column 'tags': has 1 tags for \d+ words"),
    "answer elsewhere": ("question-answering", broken("question-answering", 2, answers={"text": ["moon"], "answer_start": [0]}), {}, "row 3, column 'answers': the answer 'moon' does not stand in the text at 0"),
    "no answer": ("question-answering", broken("question-answering", 2, answers={"texts": []}), {}, "row 3, column 'answers': must be an answer or"),
    "choice outside": ("multiple-choice", broken("multiple-choice", 6, label=3), {}, "row 7, column 'label': must be a choice from 0 to 2, got 3"),
    "uneven choices": ("multiple-choice", broken("multiple-choice", 6, choices=["a", "b"]), {}, "row 7, column 'choices': has 2 choices, the first row has 3"),
    "no list of labels": ("multi-label", broken("multi-label", 3, labels=7), {}, "row 4, column 'labels': must be a list of labels"),
    "beyond the positions": (CLASSIFICATION, rows_of(CLASSIFICATION, 12), {"max_length": 4096, "absolute": True}, "--max-length 4096 is more than the 40 positions"),
    "batch and parts": (CLASSIFICATION, rows_of(CLASSIFICATION, 12), {"batch_size": 8, "accumulate": 3}, "--accumulate 3 must divide --batch-size 8"),
    "unknown task": ("translation", rows_of(CLASSIFICATION, 12), {}, "--task must be one of text-classification.*got 'translation'"),
    "no data": (CLASSIFICATION, rows_of(CLASSIFICATION, 12), {"train": None}, "--train FILE or as --dataset"),
    "no file": (CLASSIFICATION, rows_of(CLASSIFICATION, 12), {"train": Path("nowhere.csv")}, "There is no file nowhere.csv"),
    "negative rate": (CLASSIFICATION, rows_of(CLASSIFICATION, 12), {"learning_rate": -1.0}, "--learning-rate must be at least 0, got -1.0"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_named_before_anything_is_trained(
    case: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, rows, changes, message = WRONG[case]
    changes = dict(changes)
    path = tmp_path / f"train{changes.pop('ending', '.jsonl')}"
    if rows == "latin":
        path.write_bytes('{"text": "é", "label": "x"}\n'.encode("latin-1"))
    elif isinstance(rows, str):
        path.write_text(rows)
    else:
        write(path, rows)
    model = checkpoint
    if changes.pop("absolute", False):
        model = tmp_path / "absolute"
        fields = {"position_embedding_type": "absolute", "fixed_kernel": False, "query_kernel": False}
        HEADS["base"].build(vocab_size=len(WORDS), pad_token_id=0, **fields).save_pretrained(model)
        word_tokenizer().save_pretrained(model)
    monkeypatch.setattr(CompositeTrainer, "train", lambda *args, **kwargs: pytest.fail("training began"))
    values = {"model": str(model), "output": tmp_path / "out", "task": task, "train": path, "validation": path}
    with pytest.raises((ValueError, OSError), match=message) as error:
        finetune(FinetuningSettings(**(values | changes)))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_validation_label_that_training_never_saw(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    validation = write(tmp_path / "validation.csv", [*rows_of(CLASSIFICATION, 3), {"text": "a", "label": "awful"}])
    with pytest.raises(ValueError, match=r"validation.csv, row 4, column 'label': 'awful' is none of the labels"):
        finetune(make(CLASSIFICATION, validation=validation))


def test_a_test_file_that_is_labelled_in_part(make: Callable[..., FinetuningSettings], tmp_path: Path) -> None:
    rows = rows_of(CLASSIFICATION, 4)
    rows[2]["label"] = ""
    with pytest.raises(ValueError, match=r"test.csv, row 3, column 'label': has no label"):
        finetune(make(CLASSIFICATION, test=write(tmp_path / "test.csv", rows)))


def test_rows_keep_their_numbers_when_some_are_held_out() -> None:
    whole = table("data.csv", {"text": [str(index) for index in range(20)]})
    train, validation = held_out(whole, 0.25, seed=1)
    assert (len(train), len(validation)) == (15, 5)
    assert sorted(train.rows + validation.rows) == list(range(1, 21))
    with pytest.raises(ValueError, match=rf"data.csv, row {validation.rows[2]}, column 'text': bad"):
        validation.refuse(2, "text", "bad")


def test_tab_separated_files_have_no_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"open\tx\nb "c" d\ty\n\xa0\u2028\tz\n', encoding="utf-8")
    assert read_file(path).columns == {"text": ['"open', 'b "c" d', "\xa0\u2028"], "label": ["x", "y", "z"]}
    path = tmp_path / "a.csv"
    path.write_bytes('\ufefftext,label\r\n"a, ""b""\nc",x\r\n\r\nNA,null\r\n'.encode())
    assert read_file(path).columns == {"text": ['a, "b"\nc', "NA"], "label": ["x", "null"]}


# The command


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["finetune", *arguments])
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FinetuningSettings]]:
    """The settings that the command would run with."""
    found: list[FinetuningSettings] = []

    def record(settings: FinetuningSettings) -> Any:
        found.append(settings)
        raise RuntimeError("seen")

    monkeypatch.setattr("modeling_convbert_composite.finetuning.run.finetune", record)
    yield found


def test_a_config_file_equals_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seen: list[FinetuningSettings]
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "model: m\noutput: o\ntask: regression\ntrain: t.csv\nlearning-rate: 1e-4\nbatch_size: 16\nbf16: true\n"
        "labels: [a, b]\nwarmup: 100\n"
    )
    run_command(capsys, "--config", str(config))
    flags = "--model m --output o --task regression --train t.csv --learning-rate 1e-4 --batch-size 16 --bf16"
    run_command(capsys, *flags.split(), "--labels", "a,b", "--warmup", "100")
    run_command(capsys, "--config", str(config), "--batch-size", "8", "--no-bf16")
    assert seen[0] == seen[1]
    assert seen[0].learning_rate == 1e-4
    assert seen[0].labels == ("a", "b")
    assert seen[2] == replace(seen[0], batch_size=8, bf16=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("learning_rat: 1", "there is no setting 'learning_rat'; did you mean 'learning_rate'?"),
        ("batch_size: many", "batch_size must be a whole number, got 'many'"),
        ("batch_size: 1.5", "batch_size must be a whole number, got 1.5"),
        ("bf16: 1", "bf16 must be true or false, got 1"),
        ("evaluate: often", "evaluate must be one of epoch, steps, end, got 'often'"),
        ("- a", "must hold names and values"),
        ("a: [", "is not YAML"),
        ("task: regression", "Missing: --model, --output"),
    ],
)
def test_wrong_config_files(content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(content)
    code, _, error = run_command(capsys, "--config", str(config))
    assert code == 1
    assert message in error
    assert error.count("\n") == 1


def test_the_command_prints_its_scores(
    make: Callable[..., FinetuningSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make(CLASSIFICATION)
    flags = ["--model", settings.model, "--output", str(settings.output), "--task", CLASSIFICATION]
    code, printed, _ = run_command(capsys, *flags, "--train", str(settings.train), "--epochs", "1")
    assert code == 0
    assert "accuracy" in printed
    assert f"Saved {settings.output}" in printed
    command = read_json(settings.output / "results.json")["command"]
    assert command.startswith(f"convbert-composite finetune --model {settings.model} --output")
    code, _, error = run_command(capsys, *command.split()[2:])
    assert code == 1
    assert "--overwrite" in error


def test_metrics_of_the_results_are_those_of_the_predictions(make: Callable[..., FinetuningSettings]) -> None:
    result = finetune(make("regression"))
    predictions = [item["prediction"] for item in read_lines(result.output / "predictions-validation.jsonl")]
    labels = [row["score"] for row in rows_of("regression", 24)]
    assert result.metrics["validation"] == metrics.correlations(np.array(predictions), np.array(labels))
    assert AutoTokenizer.from_pretrained(result.output).mask_token == "[MASK]"
    assert state_copy(AutoModelForSequenceClassification.from_pretrained(result.output))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.ci), "accelerate"])
def test_two_processes_give_the_result_of_one(
    launcher: str, make: Callable[..., FinetuningSettings], tmp_path: Path
) -> None:
    """The same batches per step, split over two CPU processes: equal weights, scores and predictions."""
    train = write(tmp_path / "data.jsonl", rows_of("text-classification", 64))
    # A large epsilon, since Adam makes a step of any rounding: keys have a bias that no output depends on.
    fields = {"dropout": 0.0, "epochs": 2, "adam_epsilon": 1e-3}
    settings = make("text-classification", train=train, validation=train, test=train, **fields)
    alone = finetune(settings)
    start = {
        "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29611"],
        # On CPUs it starts several processes under this name only; without a GPU they use gloo.
        "accelerate": [
            "-m",
            "accelerate.commands.launch",
            "--multi_gpu",
            "--num_processes",
            "2",
            "--main_process_port",
            "29612",
        ],
    }[launcher]
    command = [sys.executable, *start, "-m", "modeling_convbert_composite"]
    command += as_command("finetune", replace(settings, output=tmp_path / "two")).split()[1:]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("Saved") == 1
    results = read_json(tmp_path / "two" / "results.json")
    assert results["environment"]["processes"] == 2
    assert results["steps"] == read_json(alone.output / "results.json")["steps"]
    for name, tensor in weights(alone.output).items():
        assert torch.allclose(weights(tmp_path / "two")[name], tensor, atol=1e-5), name
    for split in ("validation", "test"):
        assert results["metrics"][split] == pytest.approx(alone.metrics[split], abs=1e-6)
        ours, theirs = (
            [item["prediction"] for item in read_lines(folder / f"predictions-{split}.jsonl")]
            for folder in (alone.output, tmp_path / "two")
        )
        assert ours == theirs
