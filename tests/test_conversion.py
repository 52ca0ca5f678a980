# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Conversion: what converts is proved equal, what does not leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import randomise
from huggingface_hub import ModelCard
from original import original_flags, original_tensors, write_original
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, BertConfig

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.conversion import FAMILIES, ConversionError, ConversionReport, convert, verify
from modeling_convbert_composite.conversion.families import base
from modeling_convbert_composite.conversion.sources import read_source


BERT_FIELDS = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 30,
}
HEAD_NAMES = [head for head in base.HEADS if head]
TIGHT = 2e-5


def assert_exact(report: ConversionReport) -> None:
    """Equal to rounding: logits are ten times as large as hidden states, and so are their differences."""
    assert report.passed
    assert all(difference < TIGHT for name, difference in report.differences.items() if "logits" not in name)


def bert_folder(folder: Path, head: str = "ForMaskedLM", **fields: Any) -> Path:
    """A random BERT of transformers, saved."""
    config = BertConfig(**(BERT_FIELDS | fields))
    model = getattr(transformers, f"AutoModel{head}").from_config(config)
    randomise(model, 0).save_pretrained(folder)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_original(tmp_path / "source", original_flags(attention_kernel="qk_convfixed_convq 3"))


def assert_nothing_left(folder: Path, *expected: str) -> None:
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(expected)


# Every kernel, projection and quirk of the original, beyond what its authors used.
ORIGINAL_VARIANTS: dict[str, dict[str, Any]] = {
    "dot product": {},
    "unknown kernel word": {"attention_kernel": "CONVQ 3"},
    "dot counts as qk": {"attention_kernel": "dot_product_convq 3"},
    "fixed": {"attention_kernel": "qk_convfixed 3"},
    "all three": {"attention_kernel": "qk_convfixed_convq_convk 2"},
    "without product": {"attention_kernel": "convq_convk 3"},
    "without product, depthwise": {"attention_kernel": "convq_convk_convolution 3"},
    "radius 0": {"attention_kernel": "qk_convfixed_convq_convk 0"},
    "radius 0, depthwise": {"attention_kernel": "qk_convq_convolution 0"},
    "radius above length": {"attention_kernel": "qk_convfixed_convq 40"},
    "extra words": {"attention_kernel": "qk_convq 3 convk 9"},
    "depthwise": {"attention_kernel": "convolution 3"},
    "depthwise scaled": {"attention_kernel": "qk_convfixed_convolution_scaled 2"},
    "convbert": {"attention_kernel": "convbert"},
    "convbert, no positions": {"attention_kernel": "convbert", "remove_position_embeddings": True},
    "convbert ignores flags": {"attention_kernel": "convbert", "qk": "none", "remove_qk": True},
    "convbert 4 is a dot product": {"attention_kernel": "convbert 4"},
    "odd heads, head size floored": {"attention_kernel": "qk_convfixed_convq_convk 3", "num_attention_heads": 5},
    "one head": {"attention_kernel": "qk_convfixed_convq 3", "num_attention_heads": 1},
    "wide heads": {"attention_kernel": "qk_convfixed_convq 3", "attention_head_size": 12},
    "wide heads, grouped values": {"attention_head_size": 12, "value_forward": "convolution 3 8"},
    "twice as wide, depth": {
        "attention_head_size": 16,
        "qk": "convolution_depth 3 1",
        "value_forward": "convolution_depth_mixed 2 1",
    },
    "groups": {"qk": "convolution 2 4", "value_forward": "convolution_mixed 3 2"},
    "groups ignored with depth": {"qk": "convolution_depth_no_act 2 5", "value_forward": "convolution_depth 1 7"},
    "no_act without depth": {"value_forward": "convolution_mixed_no_act 3 1"},
    "odd heads, mixed": {
        "num_attention_heads": 3,
        "attention_head_size": 8,
        "value_forward": "convolution_mixed 2 1",
        "qk": "convolution_mixed 1 1",
    },
    "everything": {
        "attention_kernel": "qk_convfixed_convq_convk_convolution 3",
        "qk": "convolution_depth_mixed_no_act 3 1",
        "value_forward": "convolution_depth_mixed 2 1",
        "remove_position_embeddings": True,
        "embedding_size": 32,
    },
    "remove_qk": {"attention_kernel": "qk_convfixed_convk 3", "remove_qk": True},
    "remove_qk wins over qk": {"remove_qk": True, "qk": "convolution 3 1", "value_forward": "convolution 3 1"},
    "qk none": {"qk": "none", "attention_kernel": "qk_convq 3"},
    "relu and wide norm": {"hidden_act": "relu", "layer_norm_eps": 1e-3, "value_forward": "convolution_depth 2 1"},
    "three segments": {"type_vocab_size": 3, "attention_kernel": "qk_convq 2"},
}


@pytest.mark.parametrize("flags", ORIGINAL_VARIANTS.values(), ids=ORIGINAL_VARIANTS.keys())
def test_every_variant_of_the_original_converts(flags: dict[str, Any], tmp_path: Path) -> None:
    source = write_original(tmp_path / "source", original_flags(**flags))
    report = convert(source, tmp_path / "out")
    assert report.family == "bert_convolutions"
    assert_exact(report)
    assert "logits" in report.differences
    assert all("position_ids" in n or "relative_positions_mat" in n or "conv" in n for n in report.dropped)


@pytest.mark.parametrize("head", ["Model", *HEAD_NAMES])
def test_every_head_of_the_original_converts(head: str, tmp_path: Path) -> None:
    flags = original_flags(attention_kernel="qk_convfixed_convq 3", architectures=[f"Bert{head}"])
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        flags |= {"id2label": {"0": "no", "1": "maybe", "2": "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
    report = convert(write_original(tmp_path / "source", flags), tmp_path / "out")
    assert report.head == head.removeprefix("Model")
    assert_exact(report)
    config = ConvBertCompositeConfig.from_pretrained(tmp_path / "out")
    if "id2label" in flags:
        assert config.id2label == {0: "no", 1: "maybe", 2: "yes"}


@pytest.mark.parametrize("head", ["", *HEAD_NAMES])
def test_every_head_of_bert_converts(head: str, tmp_path: Path) -> None:
    report = convert(bert_folder(tmp_path / "source", head), tmp_path / "out")
    assert report.family == "bert"
    assert report.head == head
    assert_exact(report)
    model = getattr(transformers, f"AutoModel{head}").from_pretrained(tmp_path / "out")
    assert model.num_parameters() == report.parameters


def test_bert_options_carry_over(tmp_path: Path) -> None:
    source = bert_folder(
        tmp_path / "source",
        hidden_act="relu",
        layer_norm_eps=1e-5,
        pad_token_id=3,
        type_vocab_size=4,
        classifier_dropout=0.3,
    )
    assert_exact(convert(source, tmp_path / "out"))
    config = ConvBertCompositeConfig.from_pretrained(tmp_path / "out")
    assert (config.hidden_act, config.layer_norm_eps, config.pad_token_id) == ("relu", 1e-5, 3)
    assert (config.type_vocab_size, config.classifier_dropout) == (4, 0.3)


def test_untied_decoder_stays_untied(tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source", tie_word_embeddings=False)
    assert_exact(convert(source, tmp_path / "out"))
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert not model.config.tie_word_embeddings
    assert not torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)


def test_tied_decoder_is_stored_once(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert "mlm_head.decoder.weight" not in stored
    assert all(tensor.is_contiguous() for tensor in stored.values())
    assert not any(tensor.dtype == torch.int64 for tensor in stored.values())


def test_the_head_follows_the_tensors(tmp_path: Path) -> None:
    """As bert-base-uncased: the file holds both pre-training heads, the config claims one."""
    source = bert_folder(tmp_path / "source", "ForPreTraining")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    report = convert(source, tmp_path / "out")
    assert report.head == "ForPreTraining"
    assert "claims BertForMaskedLM" in report.notes[0]


def test_a_claimed_head_that_is_missing_is_reported(tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source", "")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    report = convert(source, tmp_path / "out")
    assert report.head == ""
    assert "claims BertForMaskedLM" in report.notes[0]


def test_a_pooler_beside_a_token_classifier_is_a_named_drop(tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source", "ForTokenClassification")
    tensors = load_file(source / "model.safetensors")
    tensors |= {"bert.pooler.dense.weight": torch.randn(32, 32), "bert.pooler.dense.bias": torch.randn(32)}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    report = convert(source, tmp_path / "out")
    assert report.head == "ForTokenClassification"
    assert report.dropped == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("head", ["BertForMaskedLM", "BertModel"])
def test_wrapper_prefixes_are_stripped(prefix: str, head: str, tmp_path: Path) -> None:
    flags = original_flags(attention_kernel="qk_convq 3", architectures=[head])
    source = write_original(tmp_path / "source", flags)
    torch.save({prefix + k: v for k, v in original_tensors(flags).items()}, source / "pytorch_model.bin")
    assert convert(source, tmp_path / "out").passed


def test_old_layer_norm_names(tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    renamed = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for n, t in tensors.items()
    }
    save_file(renamed, source / "model.safetensors", metadata={"format": "pt"})
    assert_exact(convert(source, tmp_path / "out"))


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards(kind: str, tmp_path: Path) -> None:
    flags = original_flags(attention_kernel="qk_convfixed_convq 3")
    source = write_original(tmp_path / "source", flags)
    (source / "pytorch_model.bin").unlink()
    tensors = {n: t.clone() for n, t in original_tensors(flags).items()}
    names = sorted(tensors)
    stem = "model" if kind == "safetensors" else "pytorch_model"
    weight_map = {}
    for shard, chosen in enumerate((names[::2], names[1::2])):
        file = f"{stem}-{shard + 1:05}-of-00002.{kind}"
        part = {name: tensors[name] for name in chosen}
        if kind == "safetensors":
            save_file(part, source / file)
        else:
            torch.save(part, source / file)
        weight_map |= dict.fromkeys(chosen, file)
    (source / f"{stem}.{kind}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert convert(source, tmp_path / "out").passed


def test_a_shard_outside_the_folder_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").rename(tmp_path / "elsewhere.bin")
    index = {"weight_map": {"bert.embeddings.word_embeddings.weight": "../elsewhere.bin"}}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(ConversionError, match="not a file of its own folder"):
        convert(source, tmp_path / "out")


def test_old_torch_format(source: Path, tmp_path: Path) -> None:
    tensors = torch.load(source / "pytorch_model.bin", weights_only=True)
    torch.save(tensors, source / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert convert(source, tmp_path / "out").passed


def test_half_precision_is_kept_and_reported_apart(tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source")
    tensors = {name: tensor.half() for name, tensor in load_file(source / "model.safetensors").items()}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    report = convert(source, tmp_path / "out")
    assert report.dtype == "float16"
    assert_exact(report)
    assert report.cast_difference == 0.0
    kinds = {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()}
    assert kinds == {torch.float16}
    report = convert(source, tmp_path / "single", dtype="float32")
    assert report.dtype == "float32"
    assert report.cast_difference is None


def test_a_chosen_dtype_reports_its_own_difference(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "out", dtype=torch.bfloat16)
    assert_exact(report)
    assert 1e-5 < report.cast_difference < 1e-1
    assert load_file(tmp_path / "out" / "model.safetensors").popitem()[1].dtype == torch.bfloat16


def test_verify_repeats_the_proof_and_sees_a_changed_weight(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    assert_exact(verify(source, tmp_path / "out"))
    file = tmp_path / "out" / "model.safetensors"
    tensors = load_file(file)
    name = "convbert_composite.encoder.layer.1.attention.self.query_kernel"
    tensors[name] = tensors[name].flip(-1).contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    report = verify(source, tmp_path / "out")
    assert not report.passed
    assert report.worst > 1e-2


def test_verify_refuses_the_conversion_of_something_else(source: Path, tmp_path: Path) -> None:
    bare = write_original(tmp_path / "bare", original_flags(architectures=["BertModel"]))
    convert(bare, tmp_path / "out")
    with pytest.raises(ConversionError, match="not the conversion of that source"):
        verify(source, tmp_path / "out")


def test_verify_refuses_a_tensor_that_is_left_over(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    save_file(load_file(file) | {"left.over": torch.ones(2)}, file, metadata={"format": "pt"})
    with pytest.raises(ConversionError, match=r"also holds 'left\.over'"):
        verify(source, tmp_path / "out")


@pytest.mark.parametrize(
    "slip",
    [
        ("query_kernel", lambda table: table.flip(-1)),
        ("fixed_kernel", lambda table: table.flip(0)),
        ("key_kernel", lambda table: table * 0),
        ("key_kernel", lambda table: table * 8**0.5),
    ],
    ids=["query kernel flipped", "heads swapped", "key kernel dropped", "scale forgotten"],
)
def test_the_proof_fails_on_a_wrong_mapping(
    slip: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks the plan as a wrong table would, and sees that nothing is written."""
    source = write_original(tmp_path / "source", original_flags(attention_kernel="qk_convfixed_convq_convk 3"))
    from modeling_convbert_composite.conversion import convert_checkpoint

    right = convert_checkpoint.plan_conversion

    def wrong(*arguments: Any) -> base.Plan:
        plan = right(*arguments)
        for name, tensor in plan.tensors.items():
            if name.endswith(slip[0]):
                plan.tensors[name] = slip[1](tensor)
        return plan

    monkeypatch.setattr(convert_checkpoint, "plan_conversion", wrong)
    with pytest.raises(ConversionError, match="above the tolerance"):
        convert(source, tmp_path / "out")
    assert_nothing_left(tmp_path, "source")


def test_not_a_number_never_passes(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from modeling_convbert_composite.conversion import verify as module_of_verify  # noqa: F401

    report = convert(source, tmp_path / "out")
    report.differences = {"logits": 0.0, "hidden_states.0": float("nan")}
    assert not report.passed
    assert report.worst_output == "hidden_states.0"


class Payload:
    """Writes a marker when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_a_pickle_that_runs_code_is_refused(source: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    tensors = torch.load(source / "pytorch_model.bin", weights_only=True)
    torch.save(tensors | {"extra": Payload(marker)}, source / "pytorch_model.bin")
    with pytest.raises(ConversionError, match="pickle can run code") as caught:
        convert(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert_nothing_left(tmp_path, "source")


def test_training_arguments_are_never_opened(source: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    torch.save(Payload(marker), source / "training_args.bin")
    torch.save(Payload(marker), source / "optimizer.pt")
    assert convert(source, tmp_path / "out").passed
    assert not marker.exists()


def test_code_named_by_the_source_never_runs(source: Path, tmp_path: Path) -> None:
    """Neither `trust_remote_code` nor `auto_map` in the source's files switches anything on."""
    marker = tmp_path / "marker"
    (source / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((source / "config.json").read_text())
    config |= {"trust_remote_code": True, "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}
    (source / "config.json").write_text(json.dumps(config))
    (source / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))
    settings = {"tokenizer_class": "BertTokenizer", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    assert convert(source, tmp_path / "out").passed
    assert not marker.exists()
    assert "evil" not in (tmp_path / "out" / "config.json").read_text()
    assert "evil" not in (tmp_path / "out" / "tokenizer_config.json").read_text()


def spoil_json(source: Path) -> None:
    (source / "config.json").write_text('{"model_type": "bert"')


def no_config(source: Path) -> None:
    (source / "config.json").unlink()


def no_weights(source: Path) -> None:
    (source / "pytorch_model.bin").unlink()


def truncate(source: Path) -> None:
    file = source / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty_file(source: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(b"")


def truncated_safetensors(source: Path) -> None:
    tensors = torch.load(source / "pytorch_model.bin", weights_only=True)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, source / "model.safetensors")
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def edit_tensors(change: Any) -> Any:
    def spoil(source: Path) -> None:
        tensors = torch.load(source / "pytorch_model.bin", weights_only=True)
        change(tensors)
        torch.save(tensors, source / "pytorch_model.bin")

    return spoil


def edit_config(**values: Any) -> Any:
    def spoil(source: Path) -> None:
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | values))

    return spoil


QUERY = "bert.encoder.layer.0.attention.self.query.weight"
BAD_SOURCES: dict[str, tuple[Any, str]] = {
    "config not JSON": (spoil_json, "not valid JSON"),
    "no config": (no_config, "config.json' is missing"),
    "no weights": (no_weights, "No weights in"),
    "truncated": (truncate, "damaged or not a torch file"),
    "empty": (empty_file, "damaged or not a torch file"),
    "truncated safetensors": (truncated_safetensors, "damaged or not a safetensors file"),
    "a tensor missing": (edit_tensors(lambda t: t.pop(QUERY)), "nothing for .*query.weight"),
    "a tensor more": (edit_tensors(lambda t: t.update(surprise=torch.ones(1))), "does not know: 'surprise'"),
    "a wrong shape": (edit_tensors(lambda t: t.update({QUERY: torch.ones(3, 3)})), "query.weight' has shape"),
    "NaN": (edit_tensors(lambda t: t[QUERY].fill_(float("nan"))), "query.weight' .*holds NaN"),
    "not tensors": (edit_tensors(lambda t: t.update(step=3)), "'step', which is no named tensor"),
    "more layers claimed": (edit_config(num_hidden_layers=3), "lacks|nothing for"),
    "fewer layers claimed": (edit_config(num_hidden_layers=1), "leaves no room for|does not know"),
    "wrong vocabulary": (edit_config(vocab_size=59), "has shape"),
    "kernel without number": (edit_config(attention_kernel="qk_convfixed"), "attention_kernel='qk_convfixed'"),
    "kernel without whole number": (edit_config(attention_kernel="qk_convq three"), "attention_kernel"),
    "negative radius": (edit_config(attention_kernel="qk_convfixed -1"), "negative radius"),
    "other radius": (edit_config(attention_kernel="qk_convfixed_convq 4"), "clipped to 4"),
    "unknown value flag": (edit_config(value_forward="convolution 3"), "value_forward='convolution 3'"),
    "wrong type": (edit_config(hidden_size="32"), "hidden_size"),
    "list for a flag": (edit_config(attention_kernel=["qk"]), "attention_kernel"),
    "pad outside": (edit_config(pad_token_id=60), "pad_token_id"),
    "decoder": (edit_config(is_decoder=True), "is_decoder"),
    "altered offsets": (
        edit_tensors(lambda t: t["bert.encoder.layer.1.attention.self.relative_positions_mat"].add_(1)),
        "does not hold the offsets",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_SOURCES.values(), ids=BAD_SOURCES.keys())
def test_a_bad_source_gives_one_line_and_leaves_nothing(
    spoil: Any, message: str, source: Path, tmp_path: Path
) -> None:
    spoil(source)
    with pytest.raises(ConversionError, match=message) as caught:
        convert(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert_nothing_left(tmp_path, "source")


def test_relative_positions_are_not_read_as_absolute(tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source")
    edit_config(position_embedding_type="relative_key")(source)
    with pytest.raises(ConversionError, match="position_embedding_type='relative_key'"):
        convert(source, tmp_path / "out")


def test_misspelt_model_type_gets_a_hint(source: Path, tmp_path: Path) -> None:
    edit_config(model_type="conv_bert")(source)
    with pytest.raises(ConversionError, match="did you mean 'convbert'"):
        convert(source, tmp_path / "out")


def test_unknown_family_dtype_and_tolerance(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"no family 'gpt'.*bert_convolutions"):
        convert(source, tmp_path / "out", family="gpt")
    with pytest.raises(ConversionError, match="float32, float16, bfloat16, got 'int8'"):
        convert(source, tmp_path / "out", dtype="int8")
    with pytest.raises(ConversionError, match="above 0"):
        convert(source, tmp_path / "out", tolerance=float("nan"))
    with pytest.raises(ConversionError, match="is not a folder"):
        convert(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ConversionError, match="above the tolerance"):
        convert(source, tmp_path / "out", tolerance=1e-12)
    assert_nothing_left(tmp_path, "source")


def test_our_own_folder_is_no_source(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    with pytest.raises(ConversionError, match="ConvBertComposite already"):
        convert(tmp_path / "out", tmp_path / "again")


def test_overwriting(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    convert(source, output)
    stamp = (output / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(ConversionError, match=r"exists.*--overwrite"):
        convert(source, output)
    convert(source, output, overwrite=True)
    assert (output / "model.safetensors").stat().st_mtime_ns > stamp
    assert_nothing_left(tmp_path, "out", "source")


def test_a_failed_overwrite_keeps_the_earlier_result(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    with pytest.raises(ConversionError, match=r"tokenizer.*is missing"):
        convert(source, tmp_path / "out", overwrite=True, tokenizer=tmp_path / "nowhere.model")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert_nothing_left(tmp_path, "out", "source")


def test_overwrite_spares_what_is_not_a_conversion(source: Path, tmp_path: Path) -> None:
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter.txt").write_text("years of work")
    with pytest.raises(ConversionError, match="not the result of a conversion"):
        convert(source, precious, overwrite=True)
    with pytest.raises(ConversionError, match="not a folder"):
        convert(source, precious / "chapter.txt", overwrite=True)
    assert (precious / "chapter.txt").read_text() == "years of work"


def test_the_result_is_as_readable_as_other_files(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    (tmp_path / "other").write_text("")
    expected = (tmp_path / "other").stat().st_mode
    assert all(file.stat().st_mode == expected for file in (tmp_path / "out").iterdir())


def test_wordpiece_tokenizer_is_carried_over(tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "."]
    words += [f"word{index}" for index in range(50)]
    (source / "vocab.txt").write_text("\n".join(words))
    report = convert(source, tmp_path / "out")
    assert report.notes == []
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    encoded = tokenizer("The cats", "sat.")
    assert encoded["input_ids"] == [2, 5, 6, 7, 3, 8, 9, 3]
    assert encoded["token_type_ids"] == [0, 0, 0, 0, 0, 1, 1, 1]
    assert tokenizer.model_max_length == BERT_FIELDS["max_position_embeddings"]
    filler = transformers.pipeline("fill-mask", model=str(tmp_path / "out"))
    assert len(filler("The [MASK] sat.", top_k=3)) == 3


@pytest.mark.parametrize("segments", [1, 2])
def test_segment_ids_come_where_the_model_has_segments(segments: int, tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source", type_vocab_size=segments)
    (source / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))
    convert(source, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    encoded = tokenizer("a", "b", return_tensors="pt")
    assert ("token_type_ids" in encoded) == (segments > 1)
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "out")(**encoded).logits.isfinite().all()


def test_a_source_without_tokenizer_says_so(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "out")
    assert any("no tokenizer" in note for note in report.notes)


def test_a_tokenizer_of_a_few_tokens_is_reported(tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source")
    (source / "vocab.txt").write_text("[PAD]\n[UNK]")
    assert any("is it the right one" in note for note in convert(source, tmp_path / "out").notes)


def link_out(source: Path, name: str, secret: Path) -> None:
    secret.write_text('{"secret": "do not copy"}')
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(secret)


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "tokenizer_config.json", "modules.json"])
def test_links_out_of_the_folder_are_not_read(name: str, source: Path, tmp_path: Path) -> None:
    (source / "vocab.txt").write_text("[PAD]\n[UNK]")
    link_out(source, name, tmp_path / "secret.txt")
    with pytest.raises(ConversionError, match=r"leads out of its folder by a link"):
        convert(source, tmp_path / "out")
    assert_nothing_left(tmp_path, "secret.txt", "source")


def test_weights_may_be_links(source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").rename(tmp_path / "blob")
    (source / "pytorch_model.bin").symlink_to(tmp_path / "blob")
    assert convert(source, tmp_path / "out").passed
    (source / "config.json").unlink()
    (source / "config.json").symlink_to(source / "config.json")
    with pytest.raises(ConversionError, match=r"config\.json"):
        convert(source, tmp_path / "again")


def test_a_snapshot_of_the_hubs_cache_converts(source: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--owner--name"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(source.iterdir()):
        file.rename(repository / "blobs" / str(number))
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert convert(snapshot, tmp_path / "out").passed


def test_settings_of_a_tokenizer_cannot_name_files(tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source")
    secret = tmp_path / "secret.txt"
    secret.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\npassword")
    (source / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword")
    settings = {"tokenizer_class": "BertTokenizer", "vocab": str(secret), "vocab_file": str(secret)}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    convert(source, tmp_path / "out")
    assert "password" not in (tmp_path / "out" / "tokenizer.json").read_text()


def test_a_git_lfs_pointer_says_so(source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ConversionError, match="git lfs pull"):
        convert(source, tmp_path / "out")


def test_names_that_tell_no_model_type(tmp_path: Path) -> None:
    """A bare encoder of RoBERTa has the names of BERT's, and other positions: nothing is guessed."""
    source = bert_folder(tmp_path / "source", "")
    config = json.loads((source / "config.json").read_text())
    del config["model_type"]
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConversionError, match="no `model_type`"):
        convert(source, tmp_path / "out")
    with_head = bert_folder(tmp_path / "with head")
    (with_head / "config.json").write_text(json.dumps(config))
    assert any("taken as 'bert'" in note for note in convert(with_head, tmp_path / "out").notes)


def test_a_family_that_does_not_read_the_model_type(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"'albert' reads the model types albert; config\.json says 'bert'"):
        convert(source, tmp_path / "out", family="albert")
    bare = bert_folder(tmp_path / "bare", "")
    with pytest.raises(ConversionError, match="no relative positions"):
        convert(bare, tmp_path / "out", family="bert_relative")


def test_verify_knows_of_casts_and_dropped_positions(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "cast", dtype="bfloat16")
    assert_exact(verify(source, tmp_path / "cast"))
    file = tmp_path / "cast" / "model.safetensors"
    tensors = load_file(file)
    tensors["mlm_head.dense.bias"] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConversionError, match=r"'mlm_head\.dense\.bias' is not what the source gives"):
        verify(source, tmp_path / "cast")
    convert(source, tmp_path / "free", drop_absolute=True)
    with pytest.raises(ConversionError, match="drop-absolute"):
        verify(source, tmp_path / "free")
    card = (tmp_path / "free" / "README.md").read_text()
    assert "Before its position table was dropped" in card
    assert "outputs differ from the source's" in card


@pytest.mark.parametrize(
    "content", ["[]", '{"model_type": "convbert_composite", "hidden_size": "x"}', '{"model_type": "bert"}']
)
def test_verify_of_a_spoilt_conversion(content: str, source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(content)
    with pytest.raises(ConversionError) as caught:
        verify(source, tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_outputs_in_odd_places(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for output in (source / "inside", tmp_path, source):
        with pytest.raises(ConversionError, match=r"lie within each other|exists"):
            convert(source, output, overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConversionError, match="cannot be written"):
        convert(source, tmp_path / "file" / "out")
    with pytest.raises(ConversionError, match="tokenizer"):
        convert(source, tmp_path / "new" / "deep" / "out", tokenizer=tmp_path / "nowhere")
    (tmp_path / "workplace").mkdir()
    monkeypatch.chdir(tmp_path / "workplace")
    with pytest.raises(ConversionError, match="working folder"):
        convert(source, ".")
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert convert(source, tmp_path / "link").passed
    assert (tmp_path / "target" / "config.json").is_file()
    assert convert(source, tmp_path / "a name, with ünïcode.v1").passed
    assert_nothing_left(tmp_path, "a name, with ünïcode.v1", "file", "link", "source", "target", "workplace")


def test_a_larger_tokenizer_is_reported(tmp_path: Path) -> None:
    source = bert_folder(tmp_path / "source")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(70))]
    (source / "vocab.txt").write_text("\n".join(words))
    assert any("75 tokens, the model only 60" in note for note in convert(source, tmp_path / "out").notes)


def test_the_report_is_saved(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "out")
    saved = json.loads((tmp_path / "out" / "conversion_report.json").read_text())
    assert saved == json.loads(json.dumps(report.to_dict()))
    assert saved["source_sha256"] == read_source(source).sha256
    assert saved["passed"] is True


def test_the_card_tells_what_was_proved(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.pipeline_tag == "fill-mask"
    assert "q_i.k_j * s + F[h, slot(j-i)] + q_i.U[slot(j-i)] * s" in card.text
    assert f"| logits | {report.differences['logits']:.1e} |" in card.text
    assert report.source_sha256 in card.text


def test_converted_encoder_loads_into_any_head(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    model = AutoModel.from_pretrained(tmp_path / "out", attn_implementation="eager")
    assert model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape == (1, 3, 32)


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "modeling_convbert_composite", "convert"],
        [sys.executable, "-m", "modeling_convbert_composite.conversion.convert_checkpoint"],
        [sys.executable, str(Path(__file__).parents[1] / "conversion" / "convert_checkpoint.py")],
        [str(Path(sys.executable).with_name("convbert-composite")), "convert"],
    ],
    ids=["package", "module", "file path", "console command"],
)
def test_every_way_to_call_it(command: list[str], source: Path, tmp_path: Path) -> None:
    """None of them depends on the working folder."""
    result = subprocess.run(
        [*command, "source", "out"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "within the tolerance" in result.stdout
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_every_family_explains_itself() -> None:
    for name, family in FAMILIES.items():
        assert family.name == name
        assert len(family.exact) > 20
