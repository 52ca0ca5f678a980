# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The tasks that answer within a text: tags of its words, answers to questions. A text that is too long for the model
becomes several windows, so that every word has a tag and every answer is within reach.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
)

from modeling_convbert_composite.finetuning import metrics
from modeling_convbert_composite.finetuning.examples import (
    Columns,
    Examples,
    check_known,
    class_label,
    json_value,
    label_values,
    order_labels,
    shorten,
)
from modeling_convbert_composite.finetuning.settings import FinetuningSettings
from modeling_convbert_composite.finetuning.tables import Table
from modeling_convbert_composite.finetuning.tasks import Prediction, Task


IGNORED = -100


class TokenClassification(Task):
    """A tag for every word. The first token of a word carries its tag; the others are ignored."""

    name = "token-classification"
    auto_class = AutoModelForTokenClassification
    best_metric = "accuracy"
    has_words = True
    takes_second = False

    def read_labels(self, table: Table, columns: Columns, must_have: bool) -> list[list[str]] | None:
        (column,) = columns.label
        names = table.class_names.get(column, [])
        self.labels = self.labels or list(names)

        def read(value: Any) -> list[str]:
            tags = value.split() if isinstance(value, str) else value
            if not isinstance(tags, list):
                raise ValueError(f"must be a list of tags, or tags with blanks between, got {shorten(value)}.")
            return [class_label(tag, names) for tag in tags]

        labels = label_values(table, column, read, must_have)
        for row, tags in enumerate(labels or []):
            words = table.columns[columns.text][row]
            count = len(words.split() if isinstance(words, str) else words)
            if len(tags) != count:
                table.refuse(row, column, f"has {len(tags)} tags for {count} words in column {columns.text!r}.")
        return labels

    def learn_labels(self, splits: dict[str, Examples]) -> None:
        train = splits["train"]
        counts = Counter(tag for tags in train.labels or [] for tag in tags)
        self.labels = self.labels or order_labels(counts)
        if not self.labels:
            raise ValueError(f"{train.table.source} has no tag at all in column {train.columns.label[0]!r}.")
        for examples in splits.values():
            check_known(examples, train.columns.label[0], examples.labels or [], self.labels)
        # For a word that the tokenizer makes nothing of, such as a lone control character.
        self.usual = max(self.labels, key=lambda tag: counts[tag])

    def encode(self, tokenizer: PreTrainedTokenizerBase, examples: Examples) -> Dataset:
        columns: dict[str, list[Any]] = {"words": examples.texts, "example": list(range(len(examples)))}
        if examples.labels is not None:
            columns["tags"] = examples.labels
        index_of = {tag: index for index, tag in enumerate(self.labels)}

        def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            encoded = tokenizer(
                batch["words"],
                is_split_into_words=True,
                truncation=True,
                max_length=self.settings.max_length,
                return_overflowing_tokens=True,
            )
            origins = encoded.pop("overflow_to_sample_mapping")
            features = dict(encoded) | {
                "example": [batch["example"][origin] for origin in origins],
                "first_of": list(first_tokens(encoded, origins)),
            }
            if "tags" in batch:
                features["labels"] = [
                    [IGNORED if word < 0 else index_of[batch["tags"][origin][word]] for word in words]
                    for origin, words in zip(origins, features["first_of"], strict=True)
                ]
            return features

        return Dataset.from_dict(columns).map(tokenize, batched=True, desc="Tokenising", remove_columns=list(columns))

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        return DataCollatorForTokenClassification(tokenizer)

    def keep(self, logits: Any, labels: Any) -> Any:
        return super().keep(logits, labels).argmax(-1)

    def decode(self, outputs: Any, features: Dataset, examples: Examples) -> list[Prediction]:
        tags = [[self.usual] * len(words) for words in examples.texts]
        for row, example, words in zip(outputs, features["example"], features["first_of"], strict=True):
            for position, word in enumerate(words):
                if word >= 0:
                    tags[example][word] = self.labels[row[position]]
        return [{"prediction": row} for row in tags]

    def score(self, predictions: list[Prediction], labels: list[list[str]]) -> metrics.Scores:
        return metrics.tagging([item["prediction"] for item in predictions], labels)


def first_tokens(encoded: Any, origins: list[int]) -> Iterator[list[int]]:
    """For every window, at each token the word that begins there, else -1. Windows of a text follow each other."""
    origin_before, word_before = -1, None
    for window, origin in enumerate(origins):
        if origin != origin_before:
            word_before = None
        firsts = []
        for word in encoded.word_ids(window):
            is_first = word is not None and word != word_before
            firsts.append(word if is_first else -1)
            word_before = word if word is not None else word_before
        origin_before = origin
        yield firsts


class QuestionAnswering(Task):
    """
    The answer to a question as a part of a text. Labels are SQuAD's: {"text": [...], "answer_start": [...]}, empty if
    there is no answer; a text alone is looked for.
    """

    name = "question-answering"
    auto_class = AutoModelForQuestionAnswering
    best_metric = "f1"
    needs_second = True
    candidates = 20
    longest_answer = 30

    def __init__(self, settings: FinetuningSettings):
        super().__init__(settings)
        self.may_have_no_answer = False

    def read_labels(self, table: Table, columns: Columns, must_have: bool) -> list[Any] | None:
        (column,) = columns.label
        labels = label_values(table, column, read_answers, must_have)
        for row, answers in enumerate(labels or []):
            context = table.columns[str(columns.second)][row]
            for index, (text, start) in enumerate(answers):
                start = context.find(text) if start is None else start
                if start < 0 or context[start : start + len(text)] != text:
                    table.refuse(row, column, f"the answer {shorten(text)} does not stand in the text at {start}.")
                answers[index] = (text, start)
        return labels

    def learn_labels(self, splits: dict[str, Examples]) -> None:
        self.may_have_no_answer = any(not answers for answers in splits["train"].labels or [])

    def config_fields(self) -> dict[str, Any]:
        return {}

    def encode(self, tokenizer: PreTrainedTokenizerBase, examples: Examples) -> Dataset:
        columns: dict[str, list[Any]] = {
            "question": [question.strip() for question in examples.texts],
            "context": examples.seconds or [],
            "example": list(range(len(examples))),
        }
        if examples.labels is not None:
            columns["answer"] = [
                [answers[0][1], answers[0][1] + len(answers[0][0])] if answers else [] for answers in examples.labels
            ]
        length = self.settings.max_length

        def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            encoded = tokenizer(
                [cut(tokenizer, question, length // 2) for question in batch["question"]],
                batch["context"],
                truncation="only_second",
                max_length=length,
                stride=min(self.settings.stride, length // 4),
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            origins = encoded.pop("overflow_to_sample_mapping")
            offsets = encoded.pop("offset_mapping")
            spans = [
                [
                    list(span) if part == 1 else []
                    for span, part in zip(offsets[window], encoded.sequence_ids(window), strict=True)
                ]
                for window in range(len(origins))
            ]
            features = dict(encoded) | {"spans": spans, "example": [batch["example"][origin] for origin in origins]}
            if "answer" in batch:
                found = [
                    answer_tokens(batch["answer"][origin], span) for origin, span in zip(origins, spans, strict=True)
                ]
                features["start_positions"], features["end_positions"] = map(list, zip(*found, strict=True))
            return features

        return Dataset.from_dict(columns).map(tokenize, batched=True, desc="Tokenising", remove_columns=list(columns))

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        # The loss is a softmax over all positions, padding included, as BERT's: it must not depend on batch mates.
        return DataCollatorWithPadding(tokenizer, padding="max_length", max_length=self.settings.max_length)

    def keep(self, logits: Any, labels: Any) -> Any:
        return logits[:2]

    def decode(self, outputs: Any, features: Dataset, examples: Examples) -> list[Prediction]:
        best: list[tuple[float, str]] = [(-np.inf, "")] * len(examples)
        nothing = [np.inf] * len(examples)
        for start, end, example, spans in zip(*outputs, features["example"], features["spans"], strict=True):
            nothing[example] = min(nothing[example], float(start[0] + end[0]))
            context = (examples.seconds or [])[example]
            for score, first, last in self.best_spans(start, end, spans):
                if score > best[example][0]:
                    best[example] = (score, context[spans[first][0] : spans[last][1]])
        return [
            {"prediction": "" if self.may_have_no_answer and none > score else text, "score": score, "no_answer": none}
            for (score, text), none in zip(best, nothing, strict=True)
        ]

    def best_spans(self, start: Any, end: Any, spans: list[list[int]]) -> Iterator[tuple[float, int, int]]:
        """Scores and borders, in tokens, of the likely answers of one window."""
        inside = [index for index, span in enumerate(spans) if span]
        starts = sorted(inside, key=lambda index: start[index], reverse=True)[: self.candidates]
        ends = sorted(inside, key=lambda index: end[index], reverse=True)[: self.candidates]
        for first in starts:
            for last in ends:
                if first <= last < first + self.longest_answer:
                    yield float(start[first] + end[last]), first, last

    def score(self, predictions: list[Prediction], labels: list[Any]) -> metrics.Scores:
        return metrics.answers(
            [item["prediction"] for item in predictions], [[text for text, _ in answers] for answers in labels]
        )


def read_answers(value: Any) -> list[tuple[str, int | None]]:
    """(text, start) of every reference answer."""
    value = json_value(value)
    if isinstance(value, str):
        return [(value, None)]
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        starts = value.get("answer_start", [None] * len(value["text"]))
        if len(starts) == len(value["text"]) and all(isinstance(text, str) for text in value["text"]):
            return list(zip(value["text"], starts, strict=True))
    raise ValueError(f'must be an answer or {{"text": [...], "answer_start": [...]}}, got {shorten(value)}.')


def cut(tokenizer: PreTrainedTokenizerBase, text: str, tokens: int) -> str:
    """The beginning of `text`, so many tokens of it."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return text if len(offsets) <= tokens else text[: offsets[tokens - 1][1]]


def answer_tokens(answer: list[int], spans: list[list[int]]) -> tuple[int, int]:
    """First and last token of an answer given in characters; token 0 if it is not, or not wholly, in the window."""
    inside = [index for index, span in enumerate(spans) if span and span[1] > span[0]]
    if not answer or not inside:
        return 0, 0
    start, end = answer
    if spans[inside[0]][0] > start or spans[inside[-1]][1] < end:
        return 0, 0
    first = next(index for index in reversed(inside) if spans[index][0] <= start)
    last = next(index for index in inside if spans[index][1] >= end)
    return (first, last) if first <= last else (0, 0)
