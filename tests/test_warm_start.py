# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Warm start: kernels of zeros beside a pre-trained encoder, with or without its position table."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_zoo import CASES, RELATIVE_CASES, relative_source, tiny_source
from transformers import AutoModel, AutoModelForMaskedLM

from modeling_convbert_composite.conversion import ConversionError, convert


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_source(tmp_path / "source", "bert", {}, "ForMaskedLM")


@pytest.mark.parametrize(
    "case", ["bert", "roberta", "electra", "albert", "distilbert", "mpnet", "deberta, c2p, short reach"]
)
def test_added_kernels_change_nothing(case: str, tmp_path: Path) -> None:
    _, model_type, fields = CASES[case]
    source = tiny_source(tmp_path / "source", model_type, fields, "ForMaskedLM")
    terms = {"mpnet": ("query", "key"), "deberta, c2p, short reach": ("fixed", "key")}.get(
        case, ("fixed", "query", "key")
    )
    report = convert(source, tmp_path / "out", add_terms=terms)
    assert report.passed
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    attention = model.convbert_composite.encoder.layer[1].attention.self
    for term in terms:
        kernel = getattr(attention, f"{term}_kernel")
        assert not kernel.any()
        assert kernel.shape[-1] == model.config.kernel_size


def test_kernel_size_and_training(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", add_terms=("fixed", "query"), kernel_size=9)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert model.config.kernel_size == 9
    assert model.config.position_embedding_type == "absolute"
    ids = torch.randint(5, 60, (2, 12))
    model(ids, labels=ids).loss.backward()
    attention = model.convbert_composite.encoder.layer[0].attention.self
    assert attention.fixed_kernel.grad.abs().max() > 0
    assert attention.query_kernel.grad.abs().max() > 0


def test_relative_models_take_a_fixed_kernel_of_their_own_size(tmp_path: Path) -> None:
    model_type, fields = RELATIVE_CASES["bert"]
    source = relative_source(tmp_path / "source", model_type, fields, "", "relative_key")
    assert convert(source, tmp_path / "out", add_terms=("fixed",)).passed
    with pytest.raises(ConversionError, match="kernels of 79 slots"):
        convert(source, tmp_path / "other", add_terms=("fixed",), kernel_size=17)
    with pytest.raises(ConversionError, match="has a query kernel already"):
        convert(source, tmp_path / "other", add_terms=("query",))


@pytest.mark.parametrize("case", ["bert", "roberta", "distilbert"])
def test_dropping_the_position_table_is_said_plainly(case: str, tmp_path: Path) -> None:
    _, model_type, fields = CASES[case]
    source = tiny_source(tmp_path / "source", model_type, fields, "")
    report = convert(source, tmp_path / "out", add_terms=("fixed", "query"), drop_absolute=True)
    assert report.passed
    note = next(note for note in report.notes if "position table was dropped" in note)
    assert "outputs differ" in note
    model = AutoModel.from_pretrained(tmp_path / "out").eval()
    assert model.config.position_embedding_type == "none"
    assert "position_embeddings" not in " ".join(model.state_dict())
    fresh = sum(p.numel() for p in model.pooler.parameters()) if case == "distilbert" else 0
    assert report.parameters == model.num_parameters() - fresh
    # Longer than the table was, and blind to order while the kernels are zero.
    ids = torch.randint(5, 60, (1, 100))
    order = torch.randperm(100)
    with torch.no_grad():
        straight, shuffled = (model(x).last_hidden_state for x in (ids, ids[:, order]))
    assert torch.allclose(straight[:, order], shuffled, atol=1e-4)


def test_the_mean_position_stays(source: Path, tmp_path: Path) -> None:
    """Rows that are all equal can be dropped without any change at all."""
    from safetensors.torch import load_file, save_file

    file = source / "model.safetensors"
    tensors = load_file(file)
    name = "bert.embeddings.position_embeddings.weight"
    tensors[name] = tensors[name][:1].expand_as(tensors[name]).contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    report = convert(source, tmp_path / "out", drop_absolute=True)
    note = next(note for note in report.notes if "position table was dropped" in note)
    assert float(note.split("by up to ")[1].split(". ")[0]) < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add_terms": ("depthwise",)}, "no term 'depthwise' to add: choose among fixed, query, key"),
        ({"add_terms": ("fixed",), "kernel_size": 4}, "kernel_size.*odd"),
        ({"kernel_size": 9}, "belongs to added terms"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=message):
        convert(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_nothing_to_drop(tmp_path: Path) -> None:
    model_type, fields = RELATIVE_CASES["bert"]
    source = relative_source(tmp_path / "source", model_type, fields, "", "relative_key")
    with pytest.raises(ConversionError, match="no position table to drop"):
        convert(source, tmp_path / "out", drop_absolute=True)


def test_a_repository_that_cannot_be_reached_gives_one_line(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="as a repository it could not be fetched") as caught:
        convert("someone/some-model", tmp_path / "out", revision="main")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConversionError, match="belongs to a repository"):
        convert(source, tmp_path / "out", revision="main")
