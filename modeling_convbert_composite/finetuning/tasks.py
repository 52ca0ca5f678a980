# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The tasks. A task says what distinguishes one kind of fine-tuning: how labels are read, texts become features, the
model's outputs become predictions, and which metrics count. `TASKS` lists them by name; the run is the same for all.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
)

from modeling_convbert_composite.finetuning import metrics
from modeling_convbert_composite.finetuning.examples import (
    Columns,
    Examples,
    check_known,
    check_one_kind,
    choose_columns,
    class_label,
    json_value,
    label_values,
    number_label,
    order_labels,
    read_inputs,
    shorten,
)
from modeling_convbert_composite.finetuning.settings import FinetuningSettings
from modeling_convbert_composite.finetuning.tables import Table


Prediction = dict[str, Any]


class Task:
    """One kind of fine-tuning, for one run."""

    name: ClassVar[str]
    auto_class: ClassVar[Any]
    best_metric: ClassVar[str]
    problem_type: ClassVar[str | None] = None
    has_words: ClassVar[bool] = False
    needs_second: ClassVar[bool] = False
    takes_second: ClassVar[bool] = True
    takes_choices: ClassVar[bool] = False

    def __init__(self, settings: FinetuningSettings):
        self.settings = settings
        self.labels: list[str] = list(settings.labels)

    # Data: tables -> examples -> features.

    def read(self, tables: dict[str, Table]) -> dict[str, Examples]:
        """The checked examples of every split. Learns the labels."""
        columns = choose_columns(
            tables["train"], self.settings, self.needs_second, self.takes_second, self.takes_choices
        )
        splits = {}
        for name, table in tables.items():
            examples = read_inputs(table, columns, self.settings, self.has_words)
            # `train`, `validation`, and where there are several `validation_...`: what is learnt and measured.
            examples.labels = self.read_labels(table, columns, must_have=name.startswith(("train", "validation")))
            splits[name] = examples
        self.learn_labels(splits)
        return splits

    def read_labels(self, table: Table, columns: Columns, must_have: bool) -> list[Any] | None:
        """The labels of a split, None if it has none."""
        raise NotImplementedError

    def learn_labels(self, splits: dict[str, Examples]) -> None:
        """Takes the set of labels from the training data and checks the other splits against it."""

    def encode(self, tokenizer: PreTrainedTokenizerBase, examples: Examples) -> Dataset:
        """Features for the model; more than one a row where long ones are windowed (column `example`: the row)."""
        columns = {"text": examples.texts}
        if examples.seconds is not None:
            columns["second"] = examples.seconds
        if examples.labels is not None:
            columns["label"] = [self.target(label) for label in examples.labels]

        def tokenize(batch: dict[str, list[str]]) -> dict[str, Any]:
            pairs = [batch["second"]] if "second" in batch else []
            return tokenizer(batch["text"], *pairs, truncation=True, max_length=self.settings.max_length)

        return Dataset.from_dict(columns).map(tokenize, batched=True, desc="Tokenising", remove_columns=["text"])

    def target(self, label: Any) -> Any:
        """What the model is given for a label."""
        return label

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        return DataCollatorWithPadding(tokenizer)

    # Model and predictions.

    def config_fields(self) -> dict[str, Any]:
        """Fields of the model's config."""
        return {
            "num_labels": len(self.labels),
            "id2label": dict(enumerate(self.labels)),
            "label2id": {name: index for index, name in enumerate(self.labels)},
            "problem_type": self.problem_type,
        }

    def keep(self, logits: Any, labels: Any) -> Any:
        """What of the model's outputs predictions need; hidden states, if switched on, come behind the logits."""
        return logits[0] if isinstance(logits, tuple) else logits

    def decode(self, outputs: Any, features: Dataset, examples: Examples) -> list[Prediction]:
        """A prediction for every row, from arrays of outputs for every feature."""
        raise NotImplementedError

    def score(self, predictions: list[Prediction], labels: list[Any]) -> metrics.Scores:
        raise NotImplementedError


class TextClassification(Task):
    """One class for a text, or for two texts if there is a second column."""

    name = "text-classification"
    auto_class = AutoModelForSequenceClassification
    best_metric = "accuracy"
    problem_type = "single_label_classification"

    def read_labels(self, table: Table, columns: Columns, must_have: bool) -> list[str] | None:
        (column,) = one_label_column(columns)
        names = table.class_names.get(column, [])
        if must_have and not self.labels:
            if names:
                self.labels = list(names)
            else:
                check_one_kind(table, column)
        return label_values(table, column, lambda value: class_label(value, names), must_have)

    def learn_labels(self, splits: dict[str, Examples]) -> None:
        train = splits["train"]
        self.labels = self.labels or order_labels(train.labels or [])
        if len(self.labels) < 2:
            raise ValueError(
                f"{train.table.source} has one class only, {self.labels[0]!r}: there is nothing to learn."
            )
        for examples in splits.values():
            check_known(examples, train.columns.label[0], ([label] for label in examples.labels or []), self.labels)

    def target(self, label: str) -> int:
        return self.labels.index(label)

    def decode(self, outputs: Any, features: Dataset, examples: Examples) -> list[Prediction]:
        shares = softmax(outputs)
        best = shares.argmax(-1)
        return [
            {"prediction": self.labels[index], "score": float(share[index])}
            for index, share in zip(best, shares, strict=True)
        ]

    def score(self, predictions: list[Prediction], labels: list[str]) -> metrics.Scores:
        found = np.array([self.target(item["prediction"]) for item in predictions])
        right = np.array([self.target(label) for label in labels])
        by_class = metrics.accuracy_and_f1 if len(self.labels) == 2 else metrics.macro_f1
        return by_class(found, right) | metrics.matthews(found, right)


class SentencePair(TextClassification):
    """One class for two texts."""

    name = "sentence-pair"
    needs_second = True


class Regression(Task):
    """A number for a text or two."""

    name = "regression"
    auto_class = AutoModelForSequenceClassification
    best_metric = "pearson"
    problem_type = "regression"

    def read_labels(self, table: Table, columns: Columns, must_have: bool) -> list[float] | None:
        return label_values(table, *one_label_column(columns), number_label, must_have)

    def config_fields(self) -> dict[str, Any]:
        # The name of the score, not a class; transformers' own default would be LABEL_0.
        return {
            "num_labels": 1,
            "id2label": {0: "score"},
            "label2id": {"score": 0},
            "problem_type": self.problem_type,
        }

    def decode(self, outputs: Any, features: Dataset, examples: Examples) -> list[Prediction]:
        return [{"prediction": float(value)} for value in outputs.reshape(-1)]

    def score(self, predictions: list[Prediction], labels: list[float]) -> metrics.Scores:
        return metrics.correlations(np.array([item["prediction"] for item in predictions]), np.array(labels))


class MultiLabel(Task):
    """Any number of labels for a text: a list, names with commas between, or a column of 0 and 1 for each."""

    name = "multi-label"
    auto_class = AutoModelForSequenceClassification
    best_metric = "micro_f1"
    problem_type = "multi_label_classification"

    def read_labels(self, table: Table, columns: Columns, must_have: bool) -> list[list[str]] | None:
        if len(columns.label) > 1:
            return self.read_flags(table, columns.label, must_have)
        (column,) = columns.label
        if not must_have and column not in table.columns:
            return None
        names = table.class_names.get(column, [])
        found = []
        for row, value in enumerate(table.column(column)):
            value = json_value(value)
            if isinstance(value, str):
                value = [part.strip() for part in re.split(r"[,;|]", value) if part.strip()]
            if not isinstance(value, list):
                table.refuse(
                    row, column, f"must be a list of labels, or labels with commas between, got {shorten(value)}."
                )
            try:
                found.append([class_label(name, names) for name in value])
            except ValueError as error:
                table.refuse(row, column, str(error))
        self.labels = self.labels or list(names)
        return found

    def read_flags(self, table: Table, names: Sequence[str], must_have: bool) -> list[list[str]] | None:
        """Labels out of a column of 0 and 1 for each."""
        self.labels = self.labels or list(names)
        flags = [label_values(table, name, zero_or_one, must_have) for name in names]
        if any(column is None for column in flags):
            return None
        return [[name for name, value in zip(names, row, strict=True) if value] for row in zip(*flags, strict=True)]

    def learn_labels(self, splits: dict[str, Examples]) -> None:
        train = splits["train"]
        self.labels = self.labels or order_labels(name for names in train.labels or [] for name in names)
        if not self.labels:
            raise ValueError(f"{train.table.source} has no label at all in column {train.columns.label[0]!r}.")
        for examples in splits.values():
            check_known(examples, train.columns.label[0], examples.labels or [], self.labels)

    def target(self, label: list[str]) -> list[float]:
        return [float(name in label) for name in self.labels]

    def decode(self, outputs: Any, features: Dataset, examples: Examples) -> list[Prediction]:
        shares = 1 / (1 + np.exp(-outputs.astype(np.float64)))
        return [
            {
                "prediction": [name for name, share in zip(self.labels, row, strict=True) if share > 0.5],
                "scores": dict(zip(self.labels, map(float, row), strict=True)),
            }
            for row in shares
        ]

    def score(self, predictions: list[Prediction], labels: list[list[str]]) -> metrics.Scores:
        found = np.array([self.target(item["prediction"]) for item in predictions])
        return metrics.multi_label(found, np.array([self.target(label) for label in labels]))


class MultipleChoice(Task):
    """Which of several continuations fits a text; the label is its number from 0."""

    name = "multiple-choice"
    auto_class = AutoModelForMultipleChoice
    best_metric = "accuracy"
    takes_choices = True

    def read_labels(self, table: Table, columns: Columns, must_have: bool) -> list[int] | None:
        (column,) = one_label_column(columns)
        return label_values(table, column, whole_number, must_have)

    def learn_labels(self, splits: dict[str, Examples]) -> None:
        count = len((splits["train"].choices or [[]])[0])
        for examples in splits.values():
            column = examples.columns.label[0]
            for row, choices in enumerate(examples.choices or []):
                if len(choices) != count:
                    examples.table.refuse(
                        row, examples.columns.choices[0], f"has {len(choices)} choices, not {count}."
                    )
            for row, label in enumerate(examples.labels or []):
                if not 0 <= label < count:
                    examples.table.refuse(row, column, f"must be a choice from 0 to {count - 1}, got {label}.")

    def config_fields(self) -> dict[str, Any]:
        return {}

    def encode(self, tokenizer: PreTrainedTokenizerBase, examples: Examples) -> Dataset:
        begins = examples.seconds or [""] * len(examples)
        columns: dict[str, list[Any]] = {
            "text": examples.texts,
            "choices": [
                [f"{begin} {choice}".strip() for choice in choices]
                for begin, choices in zip(begins, examples.choices or [], strict=True)
            ],
        }
        if examples.labels is not None:
            columns["label"] = examples.labels

        def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            count = len(batch["choices"][0])
            encoded = tokenizer(
                [text for text in batch["text"] for _ in range(count)],
                [choice for choices in batch["choices"] for choice in choices],
                truncation=True,
                max_length=self.settings.max_length,
            )
            return {
                name: [values[start : start + count] for start in range(0, len(values), count)]
                for name, values in encoded.items()
            }

        return Dataset.from_dict(columns).map(
            tokenize, batched=True, desc="Tokenising", remove_columns=["text", "choices"]
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        pad = DataCollatorWithPadding(tokenizer)

        def collate(features: list[dict[str, Any]]) -> dict[str, Any]:
            # transformers' own collator for choices refuses texts without a label, which one may want to predict.
            rows = [
                {name: values[index] for name, values in feature.items() if name != "label"}
                for feature in features
                for index in range(len(feature["input_ids"]))
            ]
            batch = {name: tensor.unflatten(0, (len(features), -1)) for name, tensor in pad(rows).items()}
            if "label" in features[0]:
                batch["labels"] = torch.tensor([feature["label"] for feature in features])
            return batch

        return collate

    def decode(self, outputs: Any, features: Dataset, examples: Examples) -> list[Prediction]:
        choices = examples.choices or []
        return [
            {"prediction": int(row.argmax()), "text": choices[index][row.argmax()]}
            for index, row in enumerate(outputs)
        ]

    def score(self, predictions: list[Prediction], labels: list[int]) -> metrics.Scores:
        return metrics.accuracy(np.array([item["prediction"] for item in predictions]), np.array(labels))


def one_label_column(columns: Columns) -> tuple[str]:
    if len(columns.label) != 1:
        raise ValueError(
            f"This task has one label column, got {', '.join(columns.label)}; --task multi-label has several."
        )
    return (columns.label[0],)


def zero_or_one(value: Any) -> bool:
    if str(value).lower() not in ("0", "1", "0.0", "1.0", "true", "false"):
        raise ValueError(f"must be 0 or 1, got {shorten(value)}.")
    return str(value).lower() in ("1", "1.0", "true")


def whole_number(value: Any) -> int:
    number = number_label(value)
    if not number.is_integer():
        raise ValueError(f"must be the number of a choice, got {shorten(value)}.")
    return int(number)


def softmax(logits: np.ndarray) -> np.ndarray:
    return torch.tensor(logits).double().softmax(-1).numpy()
