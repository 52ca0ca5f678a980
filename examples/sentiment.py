# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Sentiment of movie-review snippets, from MiniLM: as transformers' BERT, converted, with kernels added, and without
positions.

    python examples/sentiment.py --output runs
"""

from baselines import linear_classifier
from comparison import KERNEL_STARTS, compare
from real_data import sentiment_splits


if __name__ == "__main__":
    compare(
        "sentiment",
        sentiment_splits,
        KERNEL_STARTS,
        ("accuracy",),
        linear_classifier,
        task="text-classification",
        learning_rate=1e-4,
        epochs=2,
        batch_size=32,
        max_length=64,
        bf16=True,
    )
