# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Metrics equal scikit-learn and scipy to the last digit, and are numbers everywhere."""

import math

import numpy as np
import pytest


pytest.importorskip("sklearn", reason="needs the extra `train`")

from scipy import stats
from sklearn import metrics as sk

from modeling_convbert_composite.finetuning import metrics


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def test_classification_equals_scikit_learn(random: np.random.Generator) -> None:
    for size in (1, 2, 50, 501):
        labels, predictions = random.integers(0, 2, size), random.integers(0, 2, size)
        both = metrics.accuracy_and_f1(predictions, labels)
        assert both["accuracy"] == sk.accuracy_score(labels, predictions)
        assert both["f1"] == sk.f1_score(labels, predictions, zero_division=0.0)
        assert both["accuracy_and_f1"] == (both["accuracy"] + both["f1"]) / 2
        matthews = metrics.matthews(predictions, labels)["matthews_correlation"]
        assert matthews == sk.matthews_corrcoef(labels, predictions)


def test_regression_equals_scipy(random: np.random.Generator) -> None:
    labels, predictions = random.normal(size=300), random.normal(size=300)
    scores = metrics.correlations(predictions, labels)
    assert scores["pearson"] == stats.pearsonr(predictions, labels)[0]
    assert scores["spearman"] == stats.spearmanr(predictions, labels)[0]
    assert scores["mse"] == sk.mean_squared_error(labels, predictions)


@pytest.mark.parametrize("function", [metrics.accuracy_and_f1, metrics.matthews, metrics.macro_f1])
@pytest.mark.parametrize("constant", [0, 1])
def test_constant_predictions_are_numbers(function: object, constant: int) -> None:
    scores = function(np.full(10, constant), np.array([0, 1] * 5))
    assert all(math.isfinite(value) for value in scores.values())


def test_constant_values_have_no_correlation() -> None:
    for predictions, labels in (
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 3.0], [4.0, 4.0, 4.0]),
        ([1.0], [2.0]),
    ):
        scores = metrics.correlations(np.array(predictions), np.array(labels))
        assert scores["pearson"] == scores["spearman"] == 0.0
        assert math.isfinite(scores["mse"])


def test_multi_label(random: np.random.Generator) -> None:
    labels, predictions = random.integers(0, 2, (40, 5)), random.integers(0, 2, (40, 5))
    scores = metrics.multi_label(predictions, labels)
    assert scores["micro_f1"] == sk.f1_score(labels.ravel(), predictions.ravel())
    assert scores["exact"] == np.mean([(a == b).all() for a, b in zip(labels, predictions, strict=True)])
    assert metrics.multi_label(np.zeros((3, 2), int), np.zeros((3, 2), int))["micro_f1"] == 0.0


def test_entities_by_hand() -> None:
    assert metrics.entities(["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-PER"]) == {
        (0, 2, "PER"),
        (3, 4, "LOC"),
        (4, 5, "LOC"),
        (5, 6, "PER"),
    }
    scores = metrics.tagging([["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "B-LOC"]])
    assert scores == {"accuracy": pytest.approx(2 / 3), "precision": 0.5, "recall": 0.5, "f1": 0.5}
    assert set(metrics.tagging([["NOUN"]], [["VERB"]])) == {"accuracy"}


def test_answers_by_hand() -> None:
    scores = metrics.answers(["The blue boat!", "", "two of them"], [["blue boat"], [], ["them", "two of"]])
    assert scores["exact_match"] == pytest.approx(2 / 3)
    assert scores["f1"] == pytest.approx((1 + 1 + 0.8) / 3)


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to score"):
        metrics.accuracy(np.array([]), np.array([]))


def test_the_evaluate_classes_give_the_same(random: np.random.Generator) -> None:
    pytest.importorskip("evaluate")
    from modeling_convbert_composite.finetuning.evaluate_metrics import ConvBertCompositeMetric

    labels, predictions = random.integers(0, 2, 30), random.integers(0, 2, 30)
    for name, (function, dtype) in ConvBertCompositeMetric.FUNCTIONS.items():
        found = ConvBertCompositeMetric(config_name=name).compute(predictions=predictions, references=labels)
        assert found == function(predictions.astype(dtype), labels.astype(dtype))
    with pytest.raises(ValueError, match="matthews"):
        ConvBertCompositeMetric(config_name="bleu")
