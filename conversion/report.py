# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What a conversion did and how it was proved, kept beside the converted weights."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modeling_convbert_composite.saved_files import CONVERSION_FILE


REPORT_FILE = CONVERSION_FILE


@dataclass
class ConversionReport:
    """
    Result of `convert` or `verify`.

    `differences` holds, by output, the largest absolute difference to the source at real tokens, float32 against
    float64; `passed` says that all stay within `tolerance`. `dropped` names the source tensors that have no place in
    the converted model. `cast_difference` is what saving in another dtype alone changes, apart from the proof;
    `positions_dropped` that the position table was taken away after it. `source_card` is what the source's model card
    says about licence, languages, data and, if the source is a repository, its id as `base_model`.
    """

    family: str
    head: str
    source: str
    source_sha256: str
    differences: dict[str, float]
    tolerance: float
    parameters: int
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dtype: str = "float32"
    positions_dropped: bool = False
    cast_difference: float | None = None
    source_card: dict[str, Any] = field(default_factory=dict)

    @property
    def worst_output(self) -> str:
        """The output with the largest difference; NaN counts as larger than all."""
        return max(self.differences, key=lambda name: (math.isnan(self.differences[name]), self.differences[name]))

    @property
    def worst(self) -> float:
        """The largest of all differences, NaN if any is."""
        return self.differences[self.worst_output]

    @property
    def passed(self) -> bool:
        # NaN compares False, so that it never passes.
        return self.worst <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"worst": self.worst, "passed": self.passed}

    def save(self, folder: Path) -> None:
        (folder / REPORT_FILE).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    def lines(self) -> list[str]:
        """The proof as printed: one line an output, then the verdict."""
        width = max(map(len, self.differences), default=0)
        rows = [f"  {name:<{width}}  {difference:.1e}" for name, difference in self.differences.items()]
        verdict = "within" if self.passed else "ABOVE"
        return [
            f"Largest difference to the source at real tokens ({self.family}, {self.head or 'bare encoder'}):",
            *rows,
            f"Worst {self.worst:.1e}, {verdict} the tolerance {self.tolerance:.1e}.",
        ]
