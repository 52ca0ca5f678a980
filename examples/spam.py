# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Spam or ham, from the bodies of mails, from MiniLM.

    python examples/spam.py --output runs
"""

from baselines import linear_classifier
from comparison import PLAIN, compare
from real_data import spam_splits


if __name__ == "__main__":
    compare(
        "spam",
        spam_splits,
        PLAIN,
        ("accuracy",),
        linear_classifier,
        task="text-classification",
        learning_rate=1e-4,
        epochs=1,
        batch_size=32,
        max_length=128,
        bf16=True,
    )
