# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Prints the table of docs/conversion.md: for each family the largest difference that its proofs show, over every case
and head of tests/test_zoo.py and every variant of tests/test_conversion.py. Run: `python tests/conversion_table.py`.
"""

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

from original import original_flags, write_original
from test_conversion import ORIGINAL_VARIANTS
from test_zoo import CASES, GRID, KINDS, RELATIVE_CASES, exact_differences, has_head, relative_source, tiny_source
from tqdm import tqdm

from modeling_convbert_composite.conversion import FAMILIES, ConversionReport, convert


def sources(folder: Path) -> Iterator[Path]:
    """A tiny random checkpoint for every case."""
    for number, flags in enumerate(ORIGINAL_VARIANTS.values()):
        yield write_original(folder / f"original-{number}", original_flags(**flags))
    for number, (case, head) in enumerate(GRID):
        yield tiny_source(folder / f"zoo-{number}", *CASES[case][1:], head)
    for number, (model_type, fields) in enumerate(RELATIVE_CASES.values()):
        for kind in KINDS:
            head = "ForMaskedLM" if has_head(model_type, "ForMaskedLM") else ""
            yield relative_source(folder / f"relative-{number}-{kind}", model_type, fields, head, kind)


def split(report: ConversionReport) -> tuple[float, float]:
    """Largest difference of hidden states, and of everything else."""
    hidden = [value for name, value in report.differences.items() if name.startswith("hidden_states")]
    others = [value for name, value in report.differences.items() if not name.startswith("hidden_states")]
    return max(hidden), max(others, default=0.0)


def main() -> None:
    logging.disable(logging.WARNING)
    worst = {family: [0.0, 0.0, 0.0] for family in FAMILIES}
    count = dict.fromkeys(FAMILIES, 0)
    with tempfile.TemporaryDirectory() as name:
        for source in tqdm(list(sources(Path(name))), desc="converting"):
            report = convert(source, source.with_suffix(".out"))
            hidden, logits = split(report)
            found = (hidden, logits, max(exact_differences(source).values()))
            worst[report.family] = [max(pair) for pair in zip(worst[report.family], found, strict=True)]
            count[report.family] += 1
    print("| family (`--from`) | what is exact | checkpoints | hidden states | logits | in float64 |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, values in worst.items():
        numbers = " | ".join(f"{value:.0e}" for value in values)
        print(f"| `{name}` | {FAMILIES[name].exact} | {count[name]} | {numbers} |")


if __name__ == "__main__":
    main()
