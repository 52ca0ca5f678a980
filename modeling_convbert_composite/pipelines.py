# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""A token-classification pipeline that keeps words whole with SentencePiece tokenizers."""

import re
from itertools import pairwise
from typing import Any

from transformers import TokenClassificationPipeline


class ConvBertCompositeTokenClassificationPipeline(TokenClassificationPipeline):
    """
    transformers' pipeline tells by the blank before a piece whether a word begins. A word whose first piece is a lone
    mark of a blank, or which holds an unknown piece, is cut in two there. Here a word ends where a blank does.

    ```python
    pipeline("token-classification", model=folder, aggregation_strategy="first",
             pipeline_class=ConvBertCompositeTokenClassificationPipeline)
    ```
    """

    def gather_pre_entities(self, sentence: str, *args: Any, **kwargs: Any) -> list[dict]:
        entities = super().gather_pre_entities(sentence, *args, **kwargs)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None or getattr(backend.model, "continuing_subword_prefix", None):
            # WordPiece marks the pieces within a word, punctuation included; nothing to mend.
            return entities
        for before, entity in pairwise(entities):
            entity["is_subword"] = not re.search(r"\s", sentence[before["start"] : entity["end"]].strip())
        return entities
