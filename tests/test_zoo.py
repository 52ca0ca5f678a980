# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Every family of checkpoints: transformers' own tiny random model in, the same outputs out."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import randomise
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from modeling_convbert_composite.conversion import ConversionError, ConversionReport, convert, convert_checkpoint
from modeling_convbert_composite.conversion.families import FAMILIES, REFUSED
from modeling_convbert_composite.conversion.families.base import HEADS, plan_conversion
from modeling_convbert_composite.conversion.sources import read_source
from modeling_convbert_composite.conversion.verify import detect_family, prove


SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
BOTH = ["c2p", "p2c"]

# Test id -> model type and fields of transformers' config, and the family it belongs to.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("bert", "bert", {}),
    "ernie": ("bert", "ernie", {"pad_token_id": 0}),
    "bert-generation": ("bert", "bert-generation", {}),
    "roberta": ("roberta", "roberta", {"hidden_act": "relu", "pad_token_id": 1}),
    "xlm-roberta": ("roberta", "xlm-roberta", {"type_vocab_size": 1}),
    "camembert": ("roberta", "camembert", {"pad_token_id": 3}),
    "data2vec-text": ("roberta", "data2vec-text", {}),
    "electra": ("electra", "electra", {"embedding_size": 16}),
    "electra, equal widths, relu": ("electra", "electra", {"embedding_size": 32, "hidden_act": "relu"}),
    "albert": ("albert", "albert", {"embedding_size": 16, "hidden_act": "gelu_new"}),
    "albert, groups": (
        "albert",
        "albert",
        {"embedding_size": 32, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    "distilbert": ("distilbert", "distilbert", {"sinusoidal_pos_embds": False}),
    "distilbert, sinusoids, relu": ("distilbert", "distilbert", {"sinusoidal_pos_embds": True, "activation": "relu"}),
    "mpnet": ("mpnet", "mpnet", {"max_position_embeddings": 400}),
    "convbert, ratio 2": ("convbert", "convbert", {"embedding_size": 16, "head_ratio": 2}),
    "convbert, ratio 1": ("convbert", "convbert", {"embedding_size": 32, "head_ratio": 1, "conv_kernel_size": 5}),
    "convbert, ratio 4, groups": (
        "convbert",
        "convbert",
        {"embedding_size": 16, "head_ratio": 4, "num_groups": 2, "hidden_act": "relu"},
    ),
    "convbert, ratio 8": ("convbert", "convbert", {"embedding_size": 32, "head_ratio": 8, "num_groups": 4}),
    "deberta, both": ("deberta", "deberta", {"relative_attention": True, "pos_att_type": BOTH}),
    "deberta, c2p, short reach": (
        "deberta",
        "deberta",
        {"relative_attention": True, "pos_att_type": "c2p", "max_relative_positions": 6},
    ),
    "deberta, p2c, no positions": (
        "deberta",
        "deberta",
        {
            "relative_attention": True,
            "pos_att_type": ["p2c"],
            "max_relative_positions": 9,
            "position_biased_input": False,
            "type_vocab_size": 2,
        },
    ),
    "deberta, absolute": ("deberta", "deberta", {"relative_attention": False}),
    "deberta-v2, buckets, shared": (
        "deberta",
        "deberta-v2",
        {
            "relative_attention": True,
            "pos_att_type": BOTH,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_buckets": 8,
            "max_relative_positions": 24,
            "position_biased_input": False,
        },
    ),
    "deberta-v2, own projections": (
        "deberta",
        "deberta-v2",
        {"relative_attention": True, "pos_att_type": BOTH, "max_relative_positions": 7, "hidden_act": "relu"},
    ),
    "deberta-v2, new head": (
        "deberta",
        "deberta-v2",
        {"relative_attention": True, "pos_att_type": ["c2p"], "max_relative_positions": 7, "legacy": False},
    ),
}
DISTILBERT_NAMES = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
}

# Not among the heads that transformers gives the type, or refused by us.
NOT_CONVERTED = {("convbert", "ForMultipleChoice"), ("electra", "ForPreTraining")}


def tiny_source(folder: Path, model_type: str, fields: dict[str, Any], head: str, seed: int = 0) -> Path | None:
    """A random model of transformers, saved; None if transformers has no such head."""
    sizes = (
        {DISTILBERT_NAMES.get(name, name): size for name, size in SIZES.items()}
        if model_type == "distilbert"
        else SIZES
    )
    labels = LABELS if head in ("ForSequenceClassification", "ForTokenClassification") else {}
    config = AutoConfig.for_model(model_type, **(sizes | labels | fields))
    try:
        model = getattr(transformers, f"AutoModel{head}").from_config(config)
    except ValueError:
        return None
    randomise(model, seed, scale=0.3).save_pretrained(folder)
    return folder


def has_head(model_type: str, head: str) -> bool:
    mapping = transformers.models.auto.modeling_auto
    name = {
        "": "MODEL_MAPPING_NAMES",
        "ForPreTraining": "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
        "ForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        "ForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        "ForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
        "ForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
        "ForMultipleChoice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    }[head]
    own_pretraining = {"bert", "ernie", "albert"}
    if head == "ForPreTraining" and model_type not in own_pretraining:
        return False
    return model_type in getattr(mapping, name) and (model_type, head) not in NOT_CONVERTED


GRID = [(case, head) for case in CASES for head in HEADS if has_head(CASES[case][1], head)]


def assert_exact(report: ConversionReport) -> None:
    assert report.passed
    hidden = {name: value for name, value in report.differences.items() if name.startswith("hidden_states")}
    assert len(hidden) >= 3
    assert max(hidden.values()) < 3e-5


GRID_IDS = [f"{case}-{head or 'bare'}" for case, head in GRID]


@pytest.mark.parametrize(("case", "head"), GRID, ids=GRID_IDS)
def test_every_head_of_every_family(case: str, head: str, tmp_path: Path) -> None:
    """Padded left and right, with a hole, short, alone: the proof's inputs. Float32 against float64."""
    family, model_type, fields = CASES[case]
    source = tiny_source(tmp_path / "source", model_type, fields, head)
    report = convert(source, tmp_path / "out")
    assert report.family == family
    assert report.head == head
    assert_exact(report)
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        config = json.loads((tmp_path / "out" / "config.json").read_text())
        assert config["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}


@pytest.fixture
def no_float32_in_deberta(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' DeBERTa rounds to float32 in its LayerNorm and its scale, which would hide what float64 shows."""
    from transformers.models.deberta import modeling_deberta
    from transformers.models.deberta_v2 import modeling_deberta_v2

    monkeypatch.setattr(modeling_deberta, "DebertaLayerNorm", torch.nn.LayerNorm)
    for module in (modeling_deberta, modeling_deberta_v2):
        monkeypatch.setattr(
            module, "scaled_size_sqrt", lambda query, factor: torch.tensor(query.shape[-1] * factor).double().sqrt()
        )


def exact_differences(folder: Path) -> dict[str, float]:
    """The proof with both sides in float64."""
    found = read_source(folder)
    tensors = {name: t.double() if t.is_floating_point() else t for name, t in found.tensors.items()}
    source = dataclasses.replace(found, tensors=tensors)
    family = detect_family(source)
    plan = plan_conversion(family, source)
    options = {} if plan.head else {"add_pooling_layer": any(name.startswith("pooler.") for name in plan.tensors)}
    model = HEADS[plan.head](plan.config, **options).double().eval()
    model.load_state_dict(plan.tensors)
    return prove(family, source, plan.head, model)


@pytest.mark.parametrize("case", CASES)
def test_the_mappings_are_identities_in_float64(case: str, tmp_path: Path, no_float32_in_deberta: None) -> None:
    _, model_type, fields = CASES[case]
    head = "ForMaskedLM" if has_head(model_type, "ForMaskedLM") else ""
    source = tiny_source(tmp_path / "source", model_type, fields, head)
    assert max(exact_differences(source).values()) < 1e-10


# Families and the fields that make their relative models of transformers 4.
RELATIVE_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    name: CASES[name][1:]
    for name in (
        "bert",
        "ernie",
        "bert-generation",
        "roberta",
        "xlm-roberta",
        "camembert",
        "data2vec-text",
        "electra",
        "albert",
        "albert, groups",
    )
}
KINDS = ("relative_key", "relative_key_query")


def relative_source(folder: Path, model_type: str, fields: dict[str, Any], head: str, kind: str) -> Path:
    """What transformers 4 saved: the model, a table a layer (a group, for ALBERT), and the kind in the config."""
    assert tiny_source(folder, model_type, fields, head) is not None
    file = folder / "model.safetensors"
    tensors = load_file(file)
    size = SIZES["hidden_size"] // SIZES["num_attention_heads"]
    generator = torch.Generator().manual_seed(1)
    for name in list(tensors):
        if name.endswith((".self.query.weight", ".attention.query.weight")):
            table = torch.randn(2 * SIZES["max_position_embeddings"] - 1, size, generator=generator)
            tensors[name.replace("query.weight", "distance_embedding.weight")] = table
    save_file(tensors, file, metadata={"format": "pt"})
    edit_config(folder, position_embedding_type=kind)
    return folder


def edit_config(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", RELATIVE_CASES)
def test_relative_positions_of_transformers_4(case: str, kind: str, tmp_path: Path) -> None:
    model_type, fields = RELATIVE_CASES[case]
    head = "ForMaskedLM" if has_head(model_type, "ForMaskedLM") else ""
    source = relative_source(tmp_path / "source", model_type, fields, head, kind)
    report = convert(source, tmp_path / "out")
    assert report.family == "bert_relative"
    assert_exact(report)
    assert max(exact_differences(source).values()) < 1e-10
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["position_embedding_type"] == ("absolute" if model_type == "bert-generation" else "none")
    assert config["kernel_size"] == 2 * SIZES["max_position_embeddings"] - 1


@pytest.mark.parametrize("head", [head for head in HEADS if has_head("bert", head)])
def test_heads_of_relative_models(head: str, tmp_path: Path) -> None:
    source = relative_source(tmp_path / "source", "bert", {}, head, "relative_key_query")
    report = convert(source, tmp_path / "out")
    assert report.head == head
    assert_exact(report)


GOLDEN = os.environ.get("CONVBERT_COMPOSITE_GOLDEN", "")
HF4 = sorted(file.parent for file in Path(GOLDEN).glob("golden-hf4/*/io.safetensors")) if GOLDEN else []


@pytest.mark.skipif(not HF4, reason="set CONVBERT_COMPOSITE_GOLDEN to the reference files")
@pytest.mark.parametrize("folder", HF4 or [None], ids=lambda path: path.name if path else "none")
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_outputs_of_transformers_4(folder: Path, attention: str, tmp_path: Path) -> None:
    """Every case of every reference file, both kinds of padding."""
    expected = load_file(folder / "io.safetensors")
    report = convert(folder, tmp_path / "out")
    auto_class = getattr(transformers, f"AutoModel{report.head}")
    model = auto_class.from_pretrained(tmp_path / "out", attn_implementation=attention).eval()
    cases = sorted({name.split(".")[0] for name in expected})
    assert len(cases) >= 3
    worst_hidden = worst_logits = 0.0
    for case in cases:
        tensors = {n.removeprefix(f"{case}."): t for n, t in expected.items() if n.startswith(f"{case}.")}
        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = {name: tensors[name] for name in names if name in tensors}
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        with torch.no_grad():
            outputs = model(**inputs, output_hidden_states=True)
        for name, tensor in tensors.items():
            if name.startswith("hidden_states."):
                states = outputs.hidden_states[int(name.split(".")[1])]
                worst_hidden = max(worst_hidden, float((states - tensor)[mask].abs().max()))
        if "logits" in tensors and "logits" in outputs and report.head:
            difference = (outputs.logits - tensors["logits"]).abs()
            rows = difference[mask] if difference.shape[:2] == mask.shape else difference[mask[:, 0]]
            worst_logits = max(worst_logits, float(rows.max()))
    print(f"{folder.name} {attention}: hidden states {worst_hidden:.1e}, logits {worst_logits:.1e}")
    assert worst_hidden < 2e-5
    assert worst_logits < 1e-4


# Ways to get a mapping wrong: (case or relative case, tensor of ours, change).
SLIPS: dict[str, tuple[str, str, Any]] = {
    "bert, heads out of order": ("bert", "attention.self.query.weight", lambda t: t.roll(8, 0)),
    "roberta, segments dropped": ("roberta", "token_type_embeddings.weight", lambda t: t * 0),
    "electra, projection bias dropped": ("electra", "embeddings.projection.bias", lambda t: t * 0),
    "albert, layers mixed up": ("albert, groups", "layer.0.output.dense.weight", lambda t: t.T.reshape(t.shape)),
    "distilbert, query negated": ("distilbert", "attention.self.query.weight", lambda t: -t),
    "mpnet, kernel flipped": ("mpnet", "fixed_kernel", lambda t: t.flip(-1)),
    "mpnet, radius 90": ("mpnet", "fixed_kernel", lambda t: torch.cat([t[:, 1:2], t[:, 1:-1], t[:, -2:-1]], 1)),
    "convbert, taps flipped": ("convbert, ratio 2", "depthwise.weight", lambda t: t.flip(-1)),
    "convbert, values swapped": ("convbert, ratio 2", "self.value.weight", lambda t: t.roll(len(t) // 2, 0)),
    "deberta, key kernel dropped": ("deberta, both", "key_kernel", lambda t: t * 0),
    "deberta, key kernel flipped": ("deberta, both", "key_kernel", lambda t: t.flip(-1)),
    "deberta, scale forgotten": ("deberta, both", "query.weight", lambda t: t * 3**0.5),
    "deberta-v2, query kernel flipped": ("deberta-v2, buckets, shared", "query_kernel", lambda t: t.flip(-1)),
    "relative, query kernel flipped": ("relative bert", "query_kernel", lambda t: t.flip(-1)),
    "relative, key kernel flipped": ("relative bert", "key_kernel", lambda t: t.flip(-1)),
    "relative, half the radius": ("relative bert", "query_kernel", lambda t: halve_radius(t)),
    "relative albert, unscaled": ("relative albert", "query_kernel", lambda t: t / 8**0.5),
}


def halve_radius(table: torch.Tensor) -> torch.Tensor:
    """All slots beyond half of the radius take the edge of the half: wrong for long inputs only."""
    radius = table.shape[-1] // 2
    slots = torch.arange(-radius, radius + 1).clamp(-(radius // 2), radius // 2) + radius
    return table[..., slots]


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS.keys())
def test_the_proof_sees_a_wrong_mapping(
    slip: tuple[str, str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, name, change = slip
    if case.startswith("relative "):
        model_type, fields = RELATIVE_CASES[case.removeprefix("relative ")]
        source = relative_source(tmp_path / "source", model_type, fields, "ForMaskedLM", "relative_key_query")
    else:
        source = tiny_source(tmp_path / "source", *CASES[case][1:], "ForMaskedLM")
    right = convert_checkpoint.plan_conversion

    def wrong(*arguments: Any) -> Any:
        plan = right(*arguments)
        changed = {ours: change(tensor).contiguous() for ours, tensor in plan.tensors.items() if ours.endswith(name)}
        assert changed
        plan.tensors |= changed
        return plan

    monkeypatch.setattr(convert_checkpoint, "plan_conversion", wrong)
    with pytest.raises(ConversionError, match="above the tolerance"):
        convert(source, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]


def test_a_relative_model_saved_again_by_transformers_5_is_refused(tmp_path: Path) -> None:
    source = relative_source(tmp_path / "source", "bert", {}, "ForMaskedLM", "relative_key")
    model = transformers.AutoModelForMaskedLM.from_pretrained(source)
    model.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["position_embedding_type"] == "relative_key"
    with pytest.raises(ConversionError, match="saved again by transformers 5"):
        convert(tmp_path / "again", tmp_path / "out")
    with pytest.raises(ConversionError, match="bert_relative"):
        convert(tmp_path / "again", tmp_path / "out", family="bert")


def test_tables_without_a_claim_are_refused(tmp_path: Path) -> None:
    source = relative_source(tmp_path / "source", "bert", {}, "ForMaskedLM", "relative_key")
    edit_config(source, position_embedding_type="absolute")
    with pytest.raises(ConversionError, match="does not tell how to use them"):
        convert(source, tmp_path / "out")


REFUSALS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], str]] = {
    "convbert, multiple choice": ("convbert", {}, "ForMultipleChoice", {}, "multiple-choice head is not supported"),
    "deberta, own projection": ("deberta", {"embedding_size": 16}, "", {}, "own embedding projection"),
    "deberta, talking heads": ("deberta", {}, "", {"talking_head": True}, "talking heads"),
    "deberta, position to position": ("deberta", {}, "", {"pos_att_type": "c2p|p2p"}, "'p2p' is not supported"),
    "deberta, convolution layer": ("deberta-v2", {"conv_kernel_size": 3}, "", {}, "convolution layer"),
    "mpnet, pad id": ("mpnet", {"pad_token_id": 2}, "", {}, "pad_token_id=2"),
    "ernie, task types": ("ernie", {"use_task_id": True}, "", {}, "task types"),
    "electra, other summary": ("electra", {"summary_type": "last"}, "ForMultipleChoice", {}, "summary_type='last'"),
    "a decoder": ("bert", {}, "", {"is_decoder": True}, "is_decoder"),
    "cross-attention": ("roberta", {}, "", {"add_cross_attention": True}, "add_cross_attention"),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
def test_what_cannot_be_exact_is_refused_with_the_reason(
    refusal: tuple[str, dict[str, Any], str, dict[str, Any], str], tmp_path: Path
) -> None:
    model_type, fields, head, edits, message = refusal
    source = tiny_source(tmp_path / "source", model_type, fields, head)
    edit_config(source, **edits)
    with pytest.raises(ConversionError, match=message) as caught:
        convert(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]


def test_the_bare_head_of_bert_generation_is_refused(tmp_path: Path) -> None:
    source = tiny_source(tmp_path / "source", "bert-generation", {}, "")
    tensors = load_file(source / "model.safetensors")
    renamed = {f"bert.{name}": tensor for name, tensor in tensors.items()} | {"lm_head.bias": torch.zeros(60)}
    save_file(renamed, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConversionError, match="language-model head of bert-generation"):
        convert(source, tmp_path / "out")


@pytest.mark.parametrize("model_type", REFUSED)
def test_close_relatives_are_refused_by_name(model_type: str, tmp_path: Path) -> None:
    source = tiny_source(tmp_path / "source", "bert", {}, "")
    edit_config(source, model_type=model_type)
    with pytest.raises(ConversionError, match=f"{model_type!r} cannot be converted: .{{20}}"):
        convert(source, tmp_path / "out")


def test_the_discriminator_gives_its_encoder(tmp_path: Path) -> None:
    source = tiny_source(tmp_path / "source", "electra", {"embedding_size": 16}, "ForPreTraining")
    report = convert(source, tmp_path / "out")
    assert report.head == ""
    assert_exact(report)
    assert {name.split(".")[0] for name in report.dropped} == {"discriminator_predictions"}
    assert "ElectraForPreTraining" in report.notes[0]


def test_half_precision_is_kept_unless_tables_are_computed(tmp_path: Path) -> None:
    for case, expected in (("roberta", "float16"), ("mpnet", "float16"), ("deberta, both", "float32")):
        source = tiny_source(tmp_path / case, *CASES[case][1:], "")
        file = source / "model.safetensors"
        tensors = {name: tensor.half() for name, tensor in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
        assert convert(source, tmp_path / f"out {case}").dtype == expected


def word_table(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in sorted(tensors) if "word_embeddings" in name)


def spoil_tensors(change: Any) -> Any:
    def spoil(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        change(tensors, word_table(tensors))
        save_file(tensors, file, metadata={"format": "pt"})

    return spoil


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


SPOILS: dict[str, Any] = {
    "truncated": truncate,
    "missing": spoil_tensors(lambda tensors, name: tensors.pop(name)),
    "extra": spoil_tensors(lambda tensors, name: tensors.update({"surprise.weight": torch.ones(2)})),
    "wrong shape": spoil_tensors(lambda tensors, name: tensors.update({name: torch.ones(3, 5)})),
    "one dimension": spoil_tensors(lambda tensors, name: tensors.update({name: torch.ones(7)})),
    "NaN": spoil_tensors(lambda tensors, name: tensors[name].fill_(float("nan"))),
    "hidden size a list": lambda folder: edit_config(folder, hidden_size=[32], dim=[32]),
    "hidden size a path": lambda folder: edit_config(folder, hidden_size="/etc/passwd", dim="/etc/passwd"),
    "no layers": lambda folder: edit_config(folder, num_hidden_layers=0, n_layers=0),
    "a billion layers": lambda folder: edit_config(folder, num_hidden_layers=10**9, n_layers=10**9),
    "a trillion words": lambda folder: edit_config(folder, vocab_size=10**12),
    "a billion positions": lambda folder: edit_config(folder, max_position_embeddings=10**9),
    "negative heads": lambda folder: edit_config(folder, num_attention_heads=-4, n_heads=-4),
    "heads that do not divide": lambda folder: edit_config(folder, num_attention_heads=7, n_heads=7),
    "epsilon a string": lambda folder: edit_config(folder, hidden_act=7, activation=7),
    "an activation of its own": lambda folder: edit_config(folder, hidden_act="os.system", activation="os.system"),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
@pytest.mark.parametrize("family", FAMILIES)
def test_spoilt_sources_of_every_family(family: str, spoil: Any, tmp_path: Path) -> None:
    """One line, nothing left behind, in no time."""
    if family == "bert_convolutions":
        pytest.skip("tests/test_conversion.py spoils those")
    if family == "bert_relative":
        source = relative_source(tmp_path / "source", "bert", {}, "ForMaskedLM", "relative_key")
    else:
        case = next(case for case in CASES.values() if case[0] == family)
        source = tiny_source(tmp_path / "source", *case[1:], "ForMaskedLM")
    spoil(source)
    with pytest.raises(ConversionError) as caught:
        convert(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("roberta", {"max_position_embeddings": 20}),
        ("mpnet", {"max_position_embeddings": 48}),
        ("bert", {"chunk_size_feed_forward": 3, "return_dict": False}),
        ("deberta, both", {"pos_att_type": []}),
    ],
)
def test_unusual_but_honest_configs(case: str, fields: dict[str, Any], tmp_path: Path) -> None:
    _, model_type, usual = CASES[case]
    source = tiny_source(tmp_path / "source", model_type, usual | fields, "")
    assert_exact(convert(source, tmp_path / "out"))


@pytest.mark.parametrize(
    ("case", "head", "fields", "rate"),
    [
        ("deberta, both", "ForTokenClassification", {"pooler_dropout": 0.0}, None),
        ("deberta, both", "ForSequenceClassification", {"cls_dropout": 0.3}, 0.3),
        ("distilbert", "ForTokenClassification", {}, None),
        ("distilbert", "ForSequenceClassification", {"seq_classif_dropout": 0.2}, 0.2),
        ("albert", "ForSequenceClassification", {"classifier_dropout_prob": 0.05}, 0.05),
    ],
)
def test_dropout_before_the_classifier(
    case: str, head: str, fields: dict[str, Any], rate: float | None, tmp_path: Path
) -> None:
    """It plays no part in the proof, but in training."""
    _, model_type, usual = CASES[case]
    source = tiny_source(tmp_path / "source", model_type, usual | fields, head)
    convert(source, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["classifier_dropout"] == rate


def test_every_family_has_a_case() -> None:
    tested = {family for family, _, _ in CASES.values()} | {"bert_relative", "bert_convolutions"}
    assert tested == set(FAMILIES)
