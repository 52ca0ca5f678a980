# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The same metrics for those who use `evaluate`. `evaluate.load("name")` would ask a server; these are at hand."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import datasets
import evaluate

from modeling_convbert_composite.finetuning import metrics


class ConvBertCompositeMetric(evaluate.Metric):
    """
    A metric of `metrics.py` behind the interface of `evaluate`. Choose by `config_name`, one of `FUNCTIONS`.

    ```python
    >>> ConvBertCompositeMetric(config_name="matthews").compute(predictions=[0, 1, 1], references=[0, 1, 0])
    {'matthews_correlation': 0.5}

    ```
    """

    FUNCTIONS: ClassVar[dict[str, tuple[Callable[..., metrics.Scores], str]]] = {
        "accuracy": (metrics.accuracy, "int64"),
        "accuracy_and_f1": (metrics.accuracy_and_f1, "int64"),
        "macro_f1": (metrics.macro_f1, "int64"),
        "matthews": (metrics.matthews, "int64"),
        "correlations": (metrics.correlations, "float64"),
    }

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in self.FUNCTIONS:
            raise ValueError(f"`config_name` must be one of {', '.join(self.FUNCTIONS)}, got {self.config_name!r}.")
        function, dtype = self.FUNCTIONS[self.config_name]
        return evaluate.MetricInfo(
            description=str(function.__doc__),
            citation="",
            inputs_description="predictions and references, one a text",
            features=datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value(dtype))),
        )

    def _compute(self, predictions: Sequence[Any], references: Sequence[Any]) -> metrics.Scores:
        return self.FUNCTIONS[self.config_name][0](predictions, references)
