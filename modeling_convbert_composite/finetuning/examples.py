# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""From tables to examples: which column is what, and every value checked before any training starts."""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from modeling_convbert_composite.finetuning.settings import FinetuningSettings
from modeling_convbert_composite.finetuning.tables import Table


@dataclass(frozen=True)
class Columns:
    """The names of the columns that hold the inputs and the label."""

    text: str
    second: str | None
    label: tuple[str, ...]
    choices: tuple[str, ...]


@dataclass
class Examples:
    """
    Inputs and labels of a split, one item a row.

    `texts`: the first text of each row (for tags its words), `seconds`: the second one, `choices`: the choices;
    `labels`: what the task reads from the label column, None if the split has no labels.
    """

    table: Table
    columns: Columns
    texts: list[Any]
    seconds: list[str] | None = None
    choices: list[list[str]] | None = None
    labels: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.texts)


# What columns are most often called, the more telling names first.
TEXT_NAMES = (
    "text",
    "sentence",
    "sentence1",
    "premise",
    "question",
    "question1",
    "tokens",
    "words",
    "review",
    "content",
)
SECOND_NAMES = ("text_pair", "text2", "sentence2", "hypothesis", "question2", "context", "passage", "second")
LABEL_NAMES = (
    *("label", "labels", "score", "rating", "stars", "tags", "ner_tags", "pos_tags", "tag", "answers", "answer"),
    *("class", "category", "sentiment", "target", "similarity_score", "is_duplicate", "gold_label"),
)
NUMBERED_CHOICE = re.compile(r"(?:choice|ending|option|answer)_?\d+")


def choose_columns(
    train: Table, settings: FinetuningSettings, needs_second: bool, takes_second: bool, takes_choices: bool
) -> Columns:
    """The columns that `settings` name, the others guessed by their names."""
    label = settings.label_column or guess(train, LABEL_NAMES, "label", "--label-column")
    labels = tuple(name.strip() for name in label.split(","))
    text = settings.text_column or guess(train, TEXT_NAMES, "text", "--text-column", taken=labels)
    second = settings.second_column
    if second is None and needs_second:
        second = guess(train, SECOND_NAMES, "second text", "--second-column", taken=(text, *labels))
    if second is not None and not takes_second:
        raise ValueError(f"--task {settings.task} takes one text; --second-column {second} has no place in it.")
    for name in (text, *labels, *([second] if second else [])):
        train.column(name)
    return Columns(text, second, labels, choose_choices(train, settings) if takes_choices else ())


def guess(train: Table, names: Iterable[str], what: str, flag: str, taken: Iterable[str] = ()) -> str:
    """The first of `names` that is a column, whatever its case."""
    by_lower = {name.lower(): name for name in reversed(train.columns) if name not in set(taken)}
    for name in names:
        if name in by_lower:
            return by_lower[name]
    raise ValueError(f"{train.source}: which column is the {what}? It has {', '.join(train.columns)}; give {flag}.")


def choose_choices(train: Table, settings: FinetuningSettings) -> tuple[str, ...]:
    if settings.choice_columns:
        for name in settings.choice_columns:
            train.column(name)
        return settings.choice_columns
    numbered = tuple(sorted(name for name in train.columns if NUMBERED_CHOICE.fullmatch(name.lower())))
    if numbered:
        return numbered
    return (guess(train, ("choices", "endings", "options"), "list of choices", "--choice-columns"),)


def text_values(table: Table, column: str, limit: int) -> list[str]:
    """The texts of a column, each a string of at most `limit` characters."""
    values = table.column(column)
    for row, value in enumerate(values):
        if not isinstance(value, str):
            table.refuse(row, column, f"must be text, got {kind_of(value)} ({shorten(value)}).")
        if len(value) > limit:
            table.refuse(
                row,
                column,
                f"has {len(value):,} characters, more than --max-characters {limit:,}; is a quote never closed?",
            )
    return values


def word_values(table: Table, column: str, limit: int) -> list[list[str]]:
    """Lists of words; a text is split at blanks."""
    found = []
    for row, value in enumerate(table.column(column)):
        words = value.split() if isinstance(value, str) else value
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            table.refuse(row, column, f"must be a list of words, or words with blanks between, got {shorten(value)}.")
        if sum(map(len, words)) > limit:
            table.refuse(row, column, f"has more than --max-characters {limit:,} characters.")
        found.append(words)
    return found


def read_inputs(table: Table, columns: Columns, settings: FinetuningSettings, has_words: bool) -> Examples:
    """The inputs of a split, without its labels."""
    limit = settings.max_characters
    read = word_values if has_words else text_values
    examples = Examples(table, columns, read(table, columns.text, limit))
    if columns.second is not None:
        examples.seconds = text_values(table, columns.second, limit)
    if columns.choices:
        examples.choices = choice_values(table, columns.choices, limit)
    return examples


def choice_values(table: Table, columns: tuple[str, ...], limit: int) -> list[list[str]]:
    """The choices of every row, equally many."""
    if len(columns) > 1:
        return [list(row) for row in zip(*(text_values(table, name, limit) for name in columns), strict=True)]
    (column,) = columns
    values = [json_value(value) for value in table.column(column)]
    for row, value in enumerate(values):
        if not isinstance(value, list) or not all(isinstance(choice, str) for choice in value) or len(value) < 2:
            table.refuse(row, column, f"must be a list of two texts or more, got {shorten(value)}.")
        if len(value) != len(values[0]):
            table.refuse(row, column, f"has {len(value)} choices, the first row has {len(values[0])}.")
    return values


def json_value(value: Any) -> Any:
    """What a text stands for if it is a JSON list or object, as CSV files hold them; else the value itself."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    return value


def is_missing(value: Any) -> bool:
    """No label: nothing, an empty text, or the -1 that test splits of public datasets have."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return value in ("", "-1", "-1.0") if isinstance(value, str) else value == -1 and not isinstance(value, bool)


def label_values(table: Table, column: str, read: Callable[[Any], Any], must_have: bool) -> list[Any] | None:
    """
    The labels of a column, each through `read`, which raises ValueError with the reason; None if the split has none.

    Args:
        must_have: refuse a split without labels, as only a test split may be.
    """
    if column not in table.columns and not must_have:
        return None
    values = table.column(column)
    if not must_have and all(map(is_missing, values)):
        return None
    labels = []
    for row, value in enumerate(values):
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
            table.refuse(row, column, "has no label.")
        try:
            labels.append(read(value))
        except ValueError as error:
            table.refuse(row, column, str(error))
    return labels


def class_label(value: Any, names: Sequence[str]) -> str:
    """The name of a class: of an integer that stands for one of `names`, or the value itself as text."""
    if names and isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < len(names):
            raise ValueError(f"must be a class from 0 to {len(names) - 1}, got {value}.")
        return names[value]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"must be a class, got the number {value}; for scores take --task regression.")
        value = int(value)
    if not isinstance(value, (str, int)):
        raise ValueError(f"must be a class, got {kind_of(value)} ({shorten(value)}).")
    return str(value)


def number_label(value: Any) -> float:
    """A score, also one that is written as text."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"must be a number, got {shorten(value)}.")
    return number


def check_one_kind(table: Table, column: str) -> None:
    """Refuses a column of labels of which some are numbers and others words."""
    values = table.column(column)
    first = label_kind(values[0])
    for row, value in enumerate(values):
        if label_kind(value) != first:
            table.refuse(
                row,
                column,
                f"is {label_kind(value)} ({shorten(value)}), the first row's is {first} ({shorten(values[0])}); "
                "if both are right, list all with --labels.",
            )


def label_kind(value: Any) -> str:
    if isinstance(value, str):
        return "text with a number" if re.fullmatch(r"\s*[-+]?\d+(\.\d*)?\s*", value) else "text"
    return kind_of(value)


def kind_of(value: Any) -> str:
    kinds = {bool: "a truth value", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return "nothing" if value is None else kinds.get(type(value), type(value).__name__)


def order_labels(found: Iterable[str]) -> list[str]:
    """Numbers by their value, else names by the alphabet."""
    names = sorted(set(found))
    if all(re.fullmatch(r"-?\d+", name) for name in names):
        return sorted(names, key=int)
    return names


def check_known(examples: Examples, column: str, labels: Iterable[Sequence[str]], known: Sequence[str]) -> None:
    """Refuses a label that is not among `known`; `labels` are the labels of each row."""
    allowed = set(known)
    for row, names in enumerate(labels):
        for name in names:
            if name not in allowed:
                listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
                examples.table.refuse(
                    row, column, f"{shorten(name)} is none of the labels {listed} (of the training data or --labels)."
                )


def shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
