# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Graphs that leave torch: ONNX with free sizes, and int8."""

from pathlib import Path

import pytest
import torch
from helpers import HEADS, OPTIONS, randomise, text_batch, tiny_config

from modeling_convbert_composite import ConvBertCompositeModel
from modeling_convbert_composite.cli import main
from modeling_convbert_composite.export import export, sizes_to_check


pytest.importorskip("onnxscript")


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(
    ("head", "option"),
    (
        ("mlm", "composite"),
        ("base", "all_per_head"),
        ("sequence", "window"),
        ("answer", "absolute"),
        ("pretraining", "value_separable_depthwise"),
        ("token", "dynamic_span"),
    ),
)
def test_exported_models_equal_torch_at_other_sizes(head: str, option: str, tmp_path: Path) -> None:
    model = HEADS[head].build(**OPTIONS[option])
    model.save_pretrained(tmp_path / "model")
    report = export(tmp_path / "model", tmp_path / "out" / "model.onnx")
    assert report.passed
    kernel = model.config.kernel_size
    lengths = {length for _, length in report.differences}
    assert min(lengths) == 1 and min(lengths) < kernel < max(lengths)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.onnx"]


@pytest.mark.slow
@pytest.mark.ci
def test_a_difference_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    HEADS["mlm"].build().save_pretrained(tmp_path / "model")
    with pytest.raises(SystemExit) as stop:
        main(["export", str(tmp_path / "model"), str(tmp_path / "out" / "model.onnx"), "--tolerance", "1e-12"])
    assert stop.value.code == 1
    assert "more than the tolerance" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises((ValueError, OSError)):
        export(tmp_path, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_sizes_keep_to_the_position_table() -> None:
    config = tiny_config(position_embedding_type="absolute", max_position_embeddings=16)
    assert max(length for _, length in sizes_to_check(config)) <= 16


@torch.no_grad()
def test_dynamic_int8_stays_near() -> None:
    """Linear maps in int8, everything else as it was: the smoke test for torch's dynamic quantisation."""
    model = randomise(ConvBertCompositeModel(tiny_config()), scale=0.1).eval()
    inputs = text_batch(model.config)
    real = inputs["attention_mask"].bool()
    expected = model(**inputs).last_hidden_state[real]
    small = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    assert any("quantized.dynamic" in type(module).__module__ for module in small.modules())
    found = small(**inputs).last_hidden_state[real]
    cosine = torch.nn.functional.cosine_similarity(found, expected, dim=-1)
    assert cosine.min() > 0.98
