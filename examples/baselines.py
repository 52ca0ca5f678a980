# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What models without pre-training reach on the same files: the floor of every comparison."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from modeling_convbert_composite.finetuning import metrics
from modeling_convbert_composite.records import read_lines


def known_rows(files: dict[str, Path]) -> list[dict[str, Any]]:
    """Training and validation rows: a linear model has no epochs to choose."""
    return [*read_lines(files["train"]), *read_lines(files["validation"])]


def tf_idf() -> TfidfVectorizer:
    """Words and pairs of words that stand in two texts at least."""
    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)


def linear_classifier(files: dict[str, Path]) -> metrics.Scores:
    """Logistic regression on TF-IDF."""
    train, test = known_rows(files), read_lines(files["test"])
    model = make_pipeline(tf_idf(), LogisticRegression(C=10, max_iter=2000))
    model.fit([row["text"] for row in train], [row["label"] for row in train])
    predictions = model.predict([row["text"] for row in test])
    return metrics.accuracy(predictions, np.array([row["label"] for row in test]))


def linear_regression(files: dict[str, Path]) -> metrics.Scores:
    """Ridge regression on the same."""
    train, test = known_rows(files), read_lines(files["test"])
    model = make_pipeline(tf_idf(), Ridge())
    model.fit([row["text"] for row in train], [row["score"] for row in train])
    return metrics.correlations(model.predict([row["text"] for row in test]), np.array([row["score"] for row in test]))


def most_frequent_tag(files: dict[str, Path]) -> metrics.Scores:
    """The most frequent tag of each word, and of all words for a new one."""
    counts: dict[str, Counter] = defaultdict(Counter)
    for row in known_rows(files):
        for word, tag in zip(row["tokens"], row["tags"], strict=True):
            counts[word.lower()][tag] += 1
            counts[""][tag] += 1
    best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    test = read_lines(files["test"])
    predictions = [[best.get(word.lower(), best[""]) for word in row["tokens"]] for row in test]
    return metrics.tagging(predictions, [row["tags"] for row in test])
