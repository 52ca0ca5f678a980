# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Twelve parts of speech on the Brown corpus, from MiniLM.

    python examples/parts_of_speech.py --output runs
"""

from baselines import most_frequent_tag
from comparison import PLAIN, compare
from real_data import TAGS, tag_splits


if __name__ == "__main__":
    compare(
        "parts_of_speech",
        tag_splits,
        PLAIN,
        ("accuracy",),
        most_frequent_tag,
        "most frequent tag of each word",
        task="token-classification",
        labels=TAGS,
        learning_rate=1e-4,
        epochs=2,
        batch_size=32,
        max_length=128,
        bf16=True,
    )
