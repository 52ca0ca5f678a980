# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The shipped checkpoint: what lies in the package, what `demo` does with it, what it reaches on held-out text."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, pipeline

import modeling_convbert_composite.demo as demo_module
from modeling_convbert_composite.checkpoints import checkpoint_path, find_model, list_checkpoints
from modeling_convbert_composite.cli import main
from modeling_convbert_composite.records import read_json


ROOT = Path(__file__).parents[1]
SENTENCE = "The state of the [MASK] is strong."


def test_what_is_shipped() -> None:
    assert list_checkpoints() == ["mini"]
    folder = checkpoint_path("mini")
    assert {path.name for path in folder.iterdir()} == {
        *("README.md", "config.json", "model.safetensors", "results.json", "tokenizer.json", "tokenizer_config.json"),
    }
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 15 * 2**20
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        assert {tensors.get_slice(name).get_dtype() for name in tensors.keys()} == {"BF16"}  # noqa: SIM118
    config = AutoConfig.from_pretrained(folder)
    assert (config.fixed_kernel, config.query_kernel, config.position_embedding_type) == (True, True, "none")
    with pytest.raises(ValueError, match="no shipped checkpoint 'maxi'; there are: mini"):
        checkpoint_path("maxi")


def test_its_card_tells_text_licence_and_results() -> None:
    card = (checkpoint_path("mini") / "README.md").read_text()
    results = read_json(checkpoint_path("mini") / "results.json")
    for text in ("license: apache-2.0", "public domain", "What it is not", "trust_remote_code"):
        assert (text in card) == (text != "trust_remote_code"), text
    assert f"| mlm_loss | {results['metrics']['validation']['mlm_loss']:.4f} |" in card
    assert "/tmp" not in card + (checkpoint_path("mini") / "results.json").read_text()


def test_what_it_reaches_on_documents_it_has_not_seen() -> None:
    """As recorded by its run; the slow test below measures it again."""
    reached(read_json(checkpoint_path("mini") / "results.json"))


def reached(results: dict) -> None:
    scores, floor = results["metrics"]["validation"], results["measures"]["floor"]
    assert scores["masked_accuracy"] >= 3 * floor["masked_accuracy"]
    assert scores["mlm_loss"] <= floor["mlm_loss"] - 1


def test_masks_are_filled_with_sense() -> None:
    fill = pipeline("fill-mask", model=str(checkpoint_path("mini")))
    words = {answer["token_str"] for answer in fill(SENTENCE, top_k=5)}
    assert words & {"union", "nation", "country", "economy"}


@pytest.mark.parametrize("text", [None, SENTENCE, "The [MASK] of the [MASK] is [/i] Zürich :smile:."])
def test_demo(text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    for _ in range(2):
        with pytest.raises(SystemExit) as stop:
            main(["demo", *([text] if text else []), "--output", str(output)])
        assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "Largest difference: 0\n" in printed
    assert {path.name for path in output.iterdir()} == {
        *("kernels.csv", "fixed-kernels.png", "query-kernels.png", "model"),
    }
    assert {row["kind"] for row in csv.DictReader((output / "kernels.csv").open())} == {"fixed", "query"}
    best = best_word(text or SENTENCE)
    assert f"{best} (" in printed
    again = AutoModelForMaskedLM.from_pretrained(output / "model")
    assert again.dtype == torch.float32


def best_word(text: str) -> str:
    """The most probable word for the first mask."""
    folder = checkpoint_path("mini")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32)(**inputs).logits[0]
    place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    return tokenizer.convert_ids_to_tokens(int(logits[place].argmax()))


def test_verbs_take_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_model("mini") == str(checkpoint_path("mini"))
    assert find_model("you/mini") == "you/mini"
    rows = "text,label\nthe state is strong,good\nthe whale is white,bad\n" * 8
    (tmp_path / "train.csv").write_text(rows)
    recipe = "--task text-classification --train train.csv --epochs 1 --batch-size 8 --max-length 16 --output tuned"
    for command in ("kernels mini --output plots", f"finetune --model mini {recipe}"):
        with pytest.raises(SystemExit) as stop:
            main(command.split())
        assert stop.value.code == 0, command
    assert read_json(tmp_path / "tuned" / "results.json")["base_model"] == "mini"
    # A model that lies there under that name wins, an empty folder does not.
    (tmp_path / "mini").mkdir()
    assert find_model("mini") == str(checkpoint_path("mini"))
    (tmp_path / "mini" / "config.json").write_text("{}")
    assert find_model("mini") == "mini"
    assert "license: apache-2.0" in (tmp_path / "tuned" / "README.md").read_text()


@pytest.mark.parametrize(
    "command",
    [
        "kernels ./nowhere --output out",
        "export ./nowhere out.onnx",
        "info ./nowhere",
        "finetune --model ./nowhere --task regression --train scores.csv --output out",
        "pretrain --initial ./nowhere --data text.txt --output out",
    ],
)
def test_a_folder_that_is_not_there(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scores.csv").write_text("text,label\n" + "a,1.5\nb,2.5\n" * 8)
    (tmp_path / "text.txt").write_text("a\nb\n")
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert "There is no folder ./nowhere. A model is a folder" in error or "'nowhere' is not a folder" in error


def test_demo_without_a_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["demo", "no gap", "--output", str(tmp_path / "out")])
    assert stop.value.code == 1
    assert capsys.readouterr().err == "Error: The sentence must hold [MASK] where a word is missing, got 'no gap'.\n"
    assert list(tmp_path.iterdir()) == []


def test_demo_leaves_other_files_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path, tmp_path / "file"):
        with pytest.raises(SystemExit) as stop:
            main(["demo", "--output", str(output)])
        assert stop.value.code == 1
        assert "holds something else than an earlier demo; take another --output" in capsys.readouterr().err
    assert (tmp_path / "model" / "config.json").read_text() == "mine"


def test_demo_without_matplotlib(tmp_path: Path) -> None:
    lines: list[str] = []
    demo_module.run_demo(SENTENCE, tmp_path / "out", lines.append, lambda table: None, plot=False)
    assert any("need the extra `plot`" in line for line in lines)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"kernels.csv", "model"}


NO_NETWORK = """
import socket
def refuse(*arguments, **names): raise OSError("the network is cut")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from modeling_convbert_composite.cli import main
main(["demo", "--output", "out"])
"""


def test_demo_with_the_network_cut_and_an_empty_cache(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "CONVBERT"))}
    environment |= {"HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", NO_NETWORK], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "Largest difference: 0" in result.stdout


@pytest.mark.slow
@pytest.mark.ci
def test_the_shipped_weights_measured_again(tmp_path: Path) -> None:
    """`--measure` on the real documents: masked accuracy and loss against the floor, and what the run recorded."""
    command = [sys.executable, str(ROOT / "examples" / "mini_checkpoint.py"), "--output", str(tmp_path), "--measure"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if "could not be fetched" in result.stderr:
        pytest.skip(result.stderr.strip().splitlines()[-1])
    assert result.returncode == 0, result.stderr[-3000:]
    measured = read_json(tmp_path / "measured" / "results.json")
    reached(measured)
    recorded = read_json(checkpoint_path("mini") / "results.json")
    for name, value in recorded["metrics"]["validation"].items():
        # The run measured with autocast and float32 weights, these are weights in bfloat16.
        assert measured["metrics"]["validation"][name] == pytest.approx(value, abs=0.02)
    assert f"| mlm_loss | {measured['metrics']['validation']['mlm_loss']:.4f} |" in result.stdout
