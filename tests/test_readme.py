# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Runs what README and docs tell people to run."""

import contextlib
import functools
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from glue_folder import write_glue
from helpers import HEADS
from hub_server import HubServer, User
from huggingface_hub import constants
from original import original_flags, write_original
from test_finetuning import rows_of, write
from test_pipelines import saved
from test_pretraining import word_texts
from test_zoo import tiny_source

from modeling_convbert_composite import ConvBertCompositeForMaskedLM
from modeling_convbert_composite.cli import main
from modeling_convbert_composite.configuration import load_preset
from modeling_convbert_composite.conversion import FAMILIES
from modeling_convbert_composite.hub import save_for_hub
from modeling_convbert_composite.hub_checks import check_loading


NLI = ("entailment", "neutral", "contradiction")
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# Commands that the tests cannot run here, each with what covers it.
COVERED_ELSEWHERE = {
    "convbert-composite glue --model ./encoder --data ./glue_data --output ./glue": "tests/test_glue.py, all tasks",
    **{
        f"python examples/{name}.py --output runs": "tests/test_examples.py runs it on a few rows"
        for name in ("sentiment", "rating", "parts_of_speech", "spam")
    },
    "python examples/mini_checkpoint.py --output runs/mini": "tests/test_examples.py, a few steps",
    "python examples/replication.py --output runs/replication --jobs 2": "tests/test_examples.py, a few steps",
    "python examples/replication_report.py --output runs/replication --report docs/replication": "as the one before",
    "python -m benchmarks pretraining": "tests/test_examples.py has its measure on a few steps",
    "pip install '.[convert]'": "tests/test_packaging.py installs the built wheel",
}


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub on this machine, which the pages publish to, in place of the real one."""
    with HubServer({"a-token": User("you")}) as server:
        monkeypatch.setenv("HF_TOKEN", "a-token")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        # The proof starts a process, which takes seconds: once a folder is enough.
        monkeypatch.setattr("modeling_convbert_composite.hub.check_loading", functools.cache(check_loading))
        yield server


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the checkpoint that the README converts."""
    flags = original_flags(
        vocab_size=504, pad_token_id=502, attention_kernel="qk_convfixed_convq 3", max_position_embeddings=24
    )
    write_original(tmp_path / "bert-experiments" / "bert", flags)
    tiny_source(tmp_path / "bert", "bert", {}, "ForMaskedLM")
    write_checkpoints(tmp_path)
    write_glue(tmp_path / "glue_data", rows=12)
    write(tmp_path / "reviews.csv", rows_of("text-classification", 40))
    write(tmp_path / "new.csv", [{"text": row["text"]} for row in rows_of("text-classification", 5, seed=1)])
    (tmp_path / "corpus.txt").write_text(word_texts(40))
    (settings,) = blocks((ROOT / "docs" / "finetuning.md").read_text(encoding="utf-8"), "yaml")
    (tmp_path / "sentiment.yaml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def write_checkpoints(folder: Path) -> None:
    """The models that pages stand theirs for, tiny and untrained."""
    for name, head, fields in (
        ("encoder", "base", {}),
        ("mlm", "mlm", {}),
        ("tagger", "token", {}),
        ("answers", "answer", {}),
        (
            "nli",
            "sequence",
            {"id2label": dict(enumerate(NLI)), "label2id": {label: index for index, label in enumerate(NLI)}},
        ),
        ("classifier", "sequence", {"num_labels": 2}),
    ):
        saved(folder / name, head, **fields)


def commands(text: str) -> list[str]:
    """The lines of all shell blocks, without their comments."""
    lines = [line.split("  #")[0].strip() for block in blocks(text, "bash") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_run_or_accounted_for(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text()
    for command in commands(text):
        if command.startswith("make "):
            target = re.sub(r"\s+#.*", "", command).split()[1]
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), command
        else:
            assert command.startswith("convbert-composite ") or command in COVERED_ELSEWHERE, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_runs(page: Path, workplace: Path, hub: HubServer) -> None:
    """Shell commands and Python blocks in the order of the page; comments show the printed output."""
    text = page.read_text(encoding="utf-8")
    if page.name == "hub.md":
        save_for_hub(HEADS["mlm"].build(), workplace / "composite")
    for command in commands(text):
        if command.startswith("convbert-composite ") and command not in COVERED_ELSEWHERE:
            with pytest.raises(SystemExit) as stop, contextlib.redirect_stdout(io.StringIO()):
                main(shlex.split(command)[1:])
            assert stop.value.code == 0, command
    environment = {**os.environ, "HF_HOME": str(workplace / "hf"), "PYTHONPATH": ""}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    parts = blocks(text, "python")
    if parts:
        # In a process of their own, which has imported what the page says and nothing else.
        printed = run_python(f"\nprint({BORDER!r})\n".join(parts), environment)
        for part, lines in zip(parts, printed.split(f"{BORDER}\n"), strict=True):
            assert lines.splitlines() == re.findall(r"^# (.+)\n", part, flags=re.MULTILINE)
    for part in blocks(text, "python no-plugin"):
        run_python("import sys\nsys.modules['modeling_convbert_composite'] = None\n" + part, environment)


BORDER = "=== next block ==="


def run_python(script: str, environment: dict[str, str]) -> str:
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_readme_counts_parameters_right() -> None:
    import torch

    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,]+) \| ([\d,]+) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 14
    for name, *counts in rows:
        for size, count in zip(("small", "base"), counts, strict=True):
            with torch.device("meta"):
                model = ConvBertCompositeForMaskedLM(load_preset(f"bert-{size}-{name}"))
            assert f"{model.num_parameters():,}" == count


def test_the_readme_lists_every_family() -> None:
    for family in FAMILIES.values():
        assert f"| `{family.name}` | {family.exact} | {family.proof} |" in README


def test_the_changelog_knows_the_version() -> None:
    from modeling_convbert_composite import __version__

    assert __version__ in (ROOT / "CHANGELOG.md").read_text()
