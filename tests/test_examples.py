# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The scripts of `examples/` on a few rows of their real data. They fetch packages from registries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modeling_convbert_composite.records import read_json


EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "only", "metric"),
    [
        pytest.param("sentiment", "kernels added, positions dropped, kernel", "accuracy", marks=pytest.mark.ci),
        ("rating", "converted", "pearson"),
        ("parts_of_speech", "BERT", "accuracy"),
        ("spam", "converted", "accuracy"),
    ],
)
def test_an_example(name: str, only: str, metric: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--output", str(tmp_path), "--limit", "48"]
    command += ["--seeds", "0", "1", "--only", only]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=500)
    if "could not be fetched" in result.stderr:
        pytest.skip(result.stderr.strip().splitlines()[-1])
    assert result.returncode == 0, result.stderr[-3000:]
    scores = read_json(tmp_path / name / "scores.json")
    (runs,) = scores["runs"].values()
    assert [run["seed"] for run in runs] == [0, 1]
    assert all(-1 <= run[metric] <= 1 for run in runs)
    table = (tmp_path / name / "table.md").read_text()
    assert table in result.stdout
    assert f"{scores['baseline'][metric]:.4f}" in table
