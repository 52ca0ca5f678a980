# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What is refused before anything is published, and that saving for a Hub leaves nothing half-done."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import ALL_HEADS, HEADS, Head, assert_states_equal, state_copy, tiny_config
from safetensors.torch import load_file, save_file
from test_pipelines import word_tokenizer
from transformers import AutoTokenizer, BertConfig, BertModel

from modeling_convbert_composite import ConvBertCompositeModel, hub_checks
from modeling_convbert_composite.hub import push, save_for_hub
from modeling_convbert_composite.saved_files import code_files


WEIGHTS = "model.safetensors"
CODE = {file.name for file in code_files()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_for_hub(HEADS["mlm"].build(), tmp_path / "model")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change_tensor(folder: Path, value: float) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["mlm_head.dense.bias"][0] = value
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def edit_json(folder: Path, name: str, **values: object) -> None:
    file = folder / name
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | values))


def write(name: str, content: bytes | str) -> Callable[[Path], None]:
    data = content.encode() if isinstance(content, str) else content

    def edit(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    return edit


def shorten(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:200])


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["mlm_head.dense.bias"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "NaN": (lambda folder: change_tensor(folder, float("nan")), r"'mlm_head\.dense\.bias' .*NaN or infinite"),
    "infinity": (lambda folder: change_tensor(folder, float("inf")), "NaN or infinite"),
    "damaged weights": (shorten, "damaged"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), r"holds no model\*\.safetensors"),
    "shard missing": (
        write("model.safetensors.index.json", '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'),
        "is missing, though",
    ),
    "tensor missing": (drop_tensor, "missing_keys"),
    "pickled weights": (write("pytorch_model.bin", b"PK"), "may be a pickle"),
    "pickle by content": (write("data", pickle.dumps({"a": 1})), "may be a pickle"),
    "pickle in a folder": (write("deep/er/stats.pkl", b"x"), "may be a pickle"),
    "environment": (write(".env", "A=1"), "looks like a secret"),
    "private key": (write("server.key", "x"), "looks like a secret"),
    "ssh key": (write("id_ed25519", "x"), "looks like a secret"),
    "token in a file": (write("notes.txt", f"my token is hf_{'a' * 34}"), "access token"),
    "key in a file": (write("notes.txt", "-----BEGIN RSA PRIVATE KEY-----\n"), "access token or a private key"),
    "code missing": (lambda folder: (folder / "losses_convbert_composite.py").unlink(), "lacks losses_convbert"),
    "code changed": (
        write("modeling_convbert_composite.py", "import os"),
        r"differs in modeling_convbert_composite\.py",
    ),
    "foreign auto_map": (
        lambda folder: edit_json(folder, "config.json", auto_map={"AutoModel": "a/b--modeling.X"}),
        "`auto_map`",
    ),
    "tokenizer with code": (
        lambda folder: edit_json(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["x.X", None]}),
        "asks for code of its own",
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), "is missing|auto_map"),
    "other model": (lambda folder: edit_json(folder, "config.json", model_type="bert"), "model type 'bert'"),
    "newer code": (lambda folder: edit_json(folder, "config.json", code_version=99), "newer code"),
    "broken card": (write("README.md", "---\na: [\n---\n"), "cannot be read"),
    "impossible base model": (write("README.md", "---\nbase_model: ../x y\n---\nText\n"), "`base_model`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before a process is started or a server asked."""
    monkeypatch.setattr(hub_checks, "run_probe", lambda *_: pytest.fail("this check must come before"))
    edit, message = REFUSED[case]
    edit(folder)
    before = contents(folder)
    with pytest.raises(ValueError, match=message) as caught:
        push(folder, "ann/model", dry_run=True)
    assert "\n" not in str(caught.value)
    assert contents(folder) == before


def test_links_that_lead_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "private.txt").write_text("private")
    (folder / "notes.txt").symlink_to(tmp_path / "private.txt")
    with pytest.raises(ValueError, match="leads out of the folder"):
        push(folder, "ann/model", dry_run=True)
    (folder / "notes.txt").unlink()
    (folder / "more").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="link to a folder"):
        push(folder, "ann/model", dry_run=True)
    with pytest.raises(ValueError, match="is not a folder"):
        push(tmp_path / "nowhere", "ann/model", dry_run=True)
    with pytest.raises(ValueError, match="holds no folders `checkpoint-N`"):
        push(tmp_path / "model", "ann/model", dry_run=True, checkpoints=True)


def test_the_proof_without_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third process loads the folder, tokenizer included; outputs that differ, or none, are refused."""
    word_tokenizer().save_pretrained(folder)
    assert hub_checks.check_loading(folder) < 1e-6
    for outputs, message in (({"logits": torch.zeros(2, 12, 100)}, "differ by"), ({}, "the outputs are")):
        monkeypatch.setattr(hub_checks, "run_probe", lambda *_, outputs=outputs: outputs)
        with pytest.raises(ValueError, match=message):
            hub_checks.check_loading(folder)
    bare = save_for_hub(ConvBertCompositeModel(tiny_config(), add_pooling_layer=False), folder.parent / "bare")
    random_pooler = {"last_hidden_state": torch.zeros(2, 12, 32), "pooler_output": torch.zeros(2, 32)}
    monkeypatch.setattr(hub_checks, "run_probe", lambda *_: random_pooler)
    with pytest.raises(ValueError, match="differ by"):
        hub_checks.check_loading(bare)
    states = ConvBertCompositeModel.from_pretrained(bare).eval()(**hub_checks.probe_inputs(tiny_config(), "AutoModel"))
    random_pooler["last_hidden_state"] = states.last_hidden_state.detach()
    assert hub_checks.check_loading(bare) < 1e-6
    monkeypatch.undo()
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="does not load without the package") as caught:
        hub_checks.run_probe(folder, "AutoModelForMaskedLM", {"input_ids": torch.tensor([[5, 6]])})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("head", ALL_HEADS, ids=lambda head: head.name)
def test_probe_inputs_suit_every_head_and_length(head: Head) -> None:
    for limit in (1, 2, 40):
        config = head.config(position_embedding_type="absolute", max_position_embeddings=limit)
        inputs = hub_checks.probe_inputs(config, head.auto_class)
        assert inputs["attention_mask"].any(-1).all()
        head.model_class(config).eval()(**inputs)


def test_a_dry_run_lists_and_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a training leaves behind is left out and said; a missing card is made for the occasion."""
    monkeypatch.setattr("modeling_convbert_composite.hub.check_loading", lambda _: 0.0)
    (folder / "README.md").unlink()
    for name in (
        "training_args.bin",
        "optimizer.pt",
        "checkpoint-5/optimizer.pt",
        "runs/events",
        "tensorboard/events",
        "data/prepared.json",
        "data/train/00000.arrow",
        "predictions-test.jsonl",
        "checkpoints/settings.json",
        "1_Pooling/config.json",
    ):
        write(name, b"\x80\x04x")(folder)
    write("1_Pooling/config.json", "{}")(folder)
    before = contents(folder)
    report = push(folder, "ann/model", dry_run=True)
    assert report.files.keys() == {"README.md", "config.json", WEIGHTS, "1_Pooling/config.json", *CODE}
    left_out = {"training_args.bin", "optimizer.pt", "checkpoint-5/", "runs/", "tensorboard/", "data/", "checkpoints/"}
    assert set(report.left_out) == left_out | {"predictions-test.jsonl"}
    assert report.files[WEIGHTS] == (folder / WEIGHTS).stat().st_size
    assert report.commit == ""
    assert contents(folder) == before


def test_a_model_is_pushed_as_well_as_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modeling_convbert_composite.hub.check_loading", lambda _: 0.0)
    report = push(HEADS["token"].build(), "ann/model.v1", tokenizer=word_tokenizer(), dry_run=True)
    assert report.files.keys() > {"README.md", "config.json", WEIGHTS, "tokenizer.json", *CODE}
    with pytest.raises(TypeError, match="must be a ConvBertComposite model"):
        push(BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)), "ann/x", dry_run=True)


def test_a_card_written_by_hand_is_sent_as_it_is(folder: Path) -> None:
    text = "---\nlicense: mit\n---\n\n# Mine\n\nAll of it.\n"
    (folder / "README.md").write_text(text)
    assert hub_checks.checked_card(folder) == text


# save_for_hub


@pytest.mark.parametrize("head", ALL_HEADS, ids=lambda head: head.name)
def test_save_for_hub(head: Head, tmp_path: Path) -> None:
    model = head.build()
    tokenizer = word_tokenizer()
    assert save_for_hub(model, tmp_path / "out", tokenizer) == tmp_path / "out"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"config.json", WEIGHTS, "README.md", "tokenizer.json", "tokenizer_config.json", *CODE}
    assert_states_equal(state_copy(head.model_class.from_pretrained(tmp_path / "out")), state_copy(model))
    assert AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab() == tokenizer.get_vocab()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    hub_checks.check_code(tmp_path / "out")


def test_saving_again_keeps_what_others_wrote_and_removes_stale_weights(tmp_path: Path) -> None:
    model = HEADS["mlm"].build()
    out = tmp_path / "out"
    model.save_pretrained(out, max_shard_size="20KB")
    assert (out / "model.safetensors.index.json").exists()
    write("results.json", '{"metrics": {"test": {"accuracy": 0.75}}}')(out)
    write("notes/mine.txt", "mine")(out)
    write("README.md", "---\nlicense: mit\n---\n\n# T\n\n## Mine\n\nKept.\n")(out)
    save_for_hub(model, out)
    assert [path.name for path in out.glob("*.safetensors*")] == [WEIGHTS]
    assert (out / "notes" / "mine.txt").read_text() == "mine"
    card = (out / "README.md").read_text()
    assert "license: mit" in card
    assert "## Mine\n\nKept." in card
    assert "| test | accuracy | 0.75 |" in card


def test_save_for_hub_without_a_card_or_with_ones_own(tmp_path: Path) -> None:
    model = HEADS["base"].build()
    save_for_hub(model, tmp_path / "none", card=False)
    assert not (tmp_path / "none" / "README.md").exists()
    save_for_hub(model, tmp_path / "own", card="# Mine\n")
    assert (tmp_path / "own" / "README.md").read_text() == "# Mine\n"


def test_what_cannot_be_saved_leaves_the_folder_as_it_was(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    model = HEADS["mlm"].build()
    with torch.no_grad():
        model.mlm_head.dense.bias[3] = float("nan")
    with pytest.raises(ValueError, match=r"'mlm_head\.dense\.bias' .*NaN"):
        save_for_hub(model, folder)
    with pytest.raises(TypeError, match="ConvBertComposite model, got BertModel"):
        save_for_hub(BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)), folder)
    with pytest.raises(TypeError):
        save_for_hub("no model", tmp_path / "new")  # type: ignore[arg-type]
    write("README.md", "---\na: [\n---\n")(folder)
    with pytest.raises(ValueError, match="cannot be read"):
        save_for_hub(HEADS["mlm"].build(seed=5), folder)
    assert contents(folder) | {"README.md": b""} == before | {"README.md": b""}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_result_is_as_readable_as_other_files(folder: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {oct(0o666 & ~umask)}
    shutil.rmtree(folder)
