# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Metrics without network: thin functions over scikit-learn and scipy. Each takes arrays and returns named floats.

Where a metric is not defined it is 0, not NaN: correlations and Matthews' coefficient of constant predictions or
labels, F1 without any positive. An empty input is an error.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from sklearn import metrics as sk


Scores = dict[str, float]
Array = np.ndarray


def accuracy(predictions: Array, labels: Array) -> Scores:
    """Share of right predictions."""
    return {"accuracy": float(sk.accuracy_score(not_empty(labels), predictions))}


def matthews(predictions: Array, labels: Array) -> Scores:
    """Matthews' correlation coefficient, -1 to 1."""
    return {"matthews_correlation": float(sk.matthews_corrcoef(not_empty(labels), predictions))}


def accuracy_and_f1(predictions: Array, labels: Array) -> Scores:
    """Accuracy, F1 of class 1, and their mean."""
    scores = accuracy(predictions, labels)
    scores["f1"] = float(sk.f1_score(labels, predictions, zero_division=0.0))
    return scores | {"accuracy_and_f1": (scores["accuracy"] + scores["f1"]) / 2}


def macro_f1(predictions: Array, labels: Array) -> Scores:
    """Accuracy, and F1 averaged over the classes."""
    scores = accuracy(predictions, labels)
    return scores | {"macro_f1": float(sk.f1_score(labels, predictions, average="macro", zero_division=0.0))}


def correlations(predictions: Array, labels: Array) -> Scores:
    """Pearson's and Spearman's correlation and their mean, -1 to 1, and the mean squared error."""
    predictions, labels = np.asarray(predictions, float), np.asarray(not_empty(labels), float)
    pearson = defined(stats.pearsonr, predictions, labels)
    spearman = defined(stats.spearmanr, predictions, labels)
    return {
        "pearson": pearson,
        "spearman": spearman,
        "pearson_and_spearman": (pearson + spearman) / 2,
        "mse": float(sk.mean_squared_error(labels, predictions)),
    }


def defined(correlation: Callable[..., tuple[float, float]], first: Array, second: Array) -> float:
    """A correlation, 0 where either side is constant or too short to have one."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(correlation(first, second)[0])


def multi_label(predictions: Array, labels: Array) -> Scores:
    """0 and 1 of shape (texts, labels): F1 over all decisions, mean F1 of the labels, share of exact texts."""
    not_empty(labels)
    return {
        "micro_f1": float(sk.f1_score(labels, predictions, average="micro", zero_division=0.0)),
        "macro_f1": float(sk.f1_score(labels, predictions, average="macro", zero_division=0.0)),
        "exact": float(sk.accuracy_score(labels, predictions)),
    }


def tagging(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> Scores:
    """
    Tags of words, text by text: their accuracy, and if they are of the form B-x, I-x, O also precision, recall and F1
    of whole entities.
    """
    flat = [tag for tags in labels for tag in tags]
    found = [tag for tags in predictions for tag in tags]
    scores = {"accuracy": float(np.mean([a == b for a, b in zip(found, not_empty(flat), strict=True)]))}
    if not all(re.fullmatch(r"O|[BI]-.+", tag) for tag in {*flat, *found}):
        return scores
    right = expected = given = 0
    for predicted, reference in zip(predictions, labels, strict=True):
        spans, gold = entities(predicted), entities(reference)
        right, expected, given = right + len(spans & gold), expected + len(gold), given + len(spans)
    precision, recall = ratio(right, given), ratio(right, expected)
    return scores | {"precision": precision, "recall": recall, "f1": harmonic(precision, recall)}


def entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """(start, end, kind) of every entity; an I- that continues nothing begins one, as usual."""
    spans, start, kind = set(), 0, ""
    for index, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind and (prefix != "I" or name != kind):
            spans.add((start, index, kind))
            kind = ""
        if prefix in ("B", "I") and not kind:
            start, kind = index, name
    return spans


def answers(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Exact match and F1 over words of answers to questions, the best over each question's references; 0 to 1."""
    pairs = list(zip(predictions, not_empty(references), strict=True))
    return {
        "exact_match": float(np.mean([max(float(plain(a) == plain(r)) for r in refs or [""]) for a, refs in pairs])),
        "f1": float(np.mean([max(word_f1(a, r) for r in refs or [""]) for a, refs in pairs])),
    }


def plain(text: str) -> str:
    """Lower case, without punctuation, articles and surplus blanks."""
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def word_f1(answer: str, reference: str) -> float:
    given, expected = plain(answer).split(), plain(reference).split()
    if not given or not expected:
        return float(given == expected)
    common = sum((Counter(given) & Counter(expected)).values())
    return harmonic(common / len(given), common / len(expected))


def ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def not_empty(values: Sequence | Array) -> Sequence | Array:
    if len(values) == 0:
        raise ValueError("There is nothing to score: no labels.")
    return values
