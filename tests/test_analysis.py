# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""`convbert-composite kernels`: tables and plots of what heads have learnt about distance."""

import csv
from pathlib import Path

import pytest
import torch
from helpers import HEADS
from test_pipelines import WORDS, saved, word_tokenizer

from modeling_convbert_composite.analysis.kernels import analyse_kernels, fixed_kernels, query_kernels
from modeling_convbert_composite.cli import main


TEXTS = ["the cat sat on the mat .", "a big dog ran under this house and the small cat sat"]


@pytest.mark.parametrize("per_head", [False, True])
def test_query_kernels_by_loops(per_head: bool) -> None:
    """Over all tokens of both texts that are no special ones, padding left out."""
    model = HEADS["base"].build(vocab_size=len(WORDS), pad_token_id=0, kernels_per_head=per_head, scale=1.0)
    found = query_kernels(model, word_tokenizer(), TEXTS)
    assert found is not None
    heads, size = 4, 8
    expected = torch.zeros(2, heads, 7)
    count = 0
    for text in TEXTS:
        ids = word_tokenizer()(text, return_tensors="pt")
        with torch.no_grad():
            states = model(**ids, output_hidden_states=True).hidden_states
        for layer in range(2):
            attention = model.encoder.layer[layer].attention.self
            query = attention.query(states[layer])[0].view(-1, heads, size)
            for position in range(1, query.shape[0] - 1):
                for head in range(heads):
                    table = attention.query_kernel[head] if per_head else attention.query_kernel
                    expected[layer, head] += (query[position, head] @ table).detach() * size**-0.5
        count += ids["input_ids"].shape[1] - 2
    assert torch.allclose(found.values, expected / count, atol=1e-5)
    assert f"{count} tokens" in found.label
    assert list(found.offsets) == [-3, -2, -1, 0, 1, 2, 3]


def test_a_mask_in_the_text_is_no_word() -> None:
    model = HEADS["base"].build(vocab_size=len(WORDS), pad_token_id=0, scale=1.0)
    found = query_kernels(model, word_tokenizer(), ["the cat [MASK] on the mat"])
    assert found is not None and "over 5 tokens of one text" in found.label


def test_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "model", "mlm")
    command = ["kernels", folder, "--output", str(tmp_path / "out"), "--text", TEXTS[0], "--svg"]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"kernels.csv", "fixed-kernels.svg", "query-kernels.svg"}
    assert all(name in capsys.readouterr().out for name in ["kernels.csv"])
    rows = list(csv.DictReader((tmp_path / "out" / "kernels.csv").open()))
    assert len(rows) == 2 * 2 * 4 * 7
    fixed = fixed_kernels(HEADS["mlm"].build(vocab_size=len(WORDS), pad_token_id=0))
    assert fixed is not None
    by_place = {
        (int(row["layer"]), int(row["head"]), int(row["offset"])): float(row["value"])
        for row in rows
        if row["kind"] == "fixed"
    }
    for (layer, head, offset), value in by_place.items():
        assert value == pytest.approx(float(fixed.values[layer, head, offset + 3]), rel=1e-4)
    assert "offset of the key" in (tmp_path / "out" / "fixed-kernels.svg").read_text()


def test_texts_of_a_file_and_png(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "base")
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS))
    command = ["kernels", folder, "--output", str(tmp_path / "out"), "--text-file", str(tmp_path / "texts.txt")]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 0
    assert (tmp_path / "out" / "query-kernels.png").read_bytes().startswith(b"\x89PNG")


def test_models_without_kernels(tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain", "base", fixed_kernel=False, query_kernel=False)
    with pytest.raises(ValueError, match="has no fixed kernels"):
        analyse_kernels(plain, tmp_path / "out", TEXTS)
    query = saved(tmp_path / "query", "base", fixed_kernel=False)
    with pytest.raises(ValueError, match="give --text for its query kernels"):
        analyse_kernels(query, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="no token to average"):
        analyse_kernels(query, tmp_path / "out", [""])
