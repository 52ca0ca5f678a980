# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The rating of movie-review snippets, -4 to 4, as a regression from MiniLM.

    python examples/rating.py --output runs
"""

from baselines import linear_regression
from comparison import PLAIN, compare
from real_data import rating_splits


if __name__ == "__main__":
    compare(
        "rating",
        rating_splits,
        PLAIN,
        ("pearson", "spearman"),
        linear_regression,
        task="regression",
        learning_rate=1e-4,
        epochs=1,
        batch_size=32,
        max_length=64,
        bf16=True,
    )
