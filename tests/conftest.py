# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Offline switches for the whole test run, one seed, and the fixtures that all test files share."""

import os


# Before any import of a Hugging Face library: they read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from pathlib import Path

import pytest
import torch
from helpers import tiny_config as make_tiny_config

from modeling_convbert_composite import ConvBertCompositeConfig


# The models are tiny: threads would only wait for each other, all the more under pytest-xdist.
torch.set_num_threads(1)

GOLDEN_VARIABLE = "CONVBERT_COMPOSITE_GOLDEN"


@pytest.fixture(autouse=True)
def seed() -> int:
    """Every test starts from the same random state."""
    torch.manual_seed(0)
    return 0


@pytest.fixture
def tiny_config() -> ConvBertCompositeConfig:
    """Two layers, 32 wide: composite attention, no dropout."""
    return make_tiny_config()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder with a tokenizer of whole words, to fine-tune."""
    from test_pipelines import saved

    torch.manual_seed(0)
    return Path(saved(tmp_path_factory.mktemp("checkpoint"), "base"))


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder that holds `golden/` and `golden-hf4/`, the recorded outputs of the original models."""
    folder = os.environ.get(GOLDEN_VARIABLE)
    if not folder:
        pytest.skip(f"set {GOLDEN_VARIABLE} to the folder that holds golden/ and golden-hf4/")
    path = Path(folder).resolve()
    if not (path / "golden").is_dir():
        pytest.fail(f"{GOLDEN_VARIABLE}={folder} holds no golden/")
    return path
