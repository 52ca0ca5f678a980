# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The config: defaults, round trips, what it refuses and how; the presets; the flags of the paper's code."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import NO_KERNELS, OPTIONS, tiny_config
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from modeling_convbert_composite import (
    ConvBertCompositeConfig,
    ConvBertCompositeForMaskedLM,
    ConvBertCompositeModel,
)
from modeling_convbert_composite.configuration import from_reference_flags, list_presets, load_preset


# The strict dataclass of huggingface_hub wraps what validators raise; the message stays.
REFUSED = (ValueError, StrictDataclassError)

# BERT's names and defaults, then ours.
DEFAULTS = {
    "code_version": 1,
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "classifier_dropout": None,
    "tie_word_embeddings": True,
    "embedding_size": None,
    "embedding_projection": None,
    "attention_head_size": None,
    "position_embedding_type": "none",
    "position_ids_rule": "sequential",
    "query_key_product": True,
    "fixed_kernel": True,
    "query_kernel": True,
    "key_kernel": False,
    "kernel_size": 17,
    "kernels_per_head": False,
    "beyond_kernel": "clip",
    "depthwise_kernel": False,
    "depthwise_scale": "frozen",
    "query_key_projection": "linear",
    "query_key_kernel_size": 17,
    "query_key_groups": 1,
    "query_key_activation": False,
    "query_key_mixed": False,
    "value_projection": "linear",
    "value_kernel_size": 17,
    "value_groups": 1,
    "value_activation": False,
    "value_mixed": False,
    "dynamic_convolution_heads": 0,
    "dynamic_convolution_kernel_size": 9,
    "dynamic_convolution_mode": "span",
    "classifier_act": "tanh",
    "mlm_act": None,
}


def own_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """The documented fields."""
    return {name: getattr(config, name) for name in DEFAULTS}


def test_defaults() -> None:
    config = ConvBertCompositeConfig()
    assert own_fields(config) == DEFAULTS
    assert config.model_type == "convbert_composite"
    inherited = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    declared = {field.name for field in dataclasses.fields(ConvBertCompositeConfig)}
    assert declared - inherited - DEFAULTS.keys() == set(), "an undocumented field"


def test_every_field_is_documented() -> None:
    text = ConvBertCompositeConfig.__doc__ or ""
    assert not [name for name in DEFAULTS if not re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize("option", OPTIONS)
def test_round_trips(option: str, tmp_path: Path) -> None:
    """From_dict(to_dict()), JSON, save and load, with labels and odd keys."""
    extra = {"my_key": {"a": [1, None]}, "finetuning_task": "cola", "layer_types_note": "x", "num_labels": 3}
    config = tiny_config(**OPTIONS[option], **extra)
    assert config.num_labels == 3 and config.my_key == {"a": [1, None]}
    expected = config.to_dict()
    assert ConvBertCompositeConfig.from_dict(config.to_dict()).to_dict() == expected
    text = json.loads(config.to_json_string())
    assert text.items() >= own_fields(config).items()
    assert ConvBertCompositeConfig.from_dict(text).to_dict() == expected
    assert ConvBertCompositeConfig(**own_fields(config), **extra).to_dict() == expected
    config.save_pretrained(tmp_path)
    for loaded in (
        ConvBertCompositeConfig.from_pretrained(tmp_path),
        transformers.AutoConfig.from_pretrained(tmp_path),
        ConvBertCompositeConfig.from_json_file(tmp_path / "config.json"),
    ):
        assert type(loaded) is ConvBertCompositeConfig
        assert own_fields(loaded) == own_fields(config)
        assert loaded.num_labels == 3 and loaded.my_key == {"a": [1, None]}


def test_a_default_config_in_full(tmp_path: Path) -> None:
    """All fields are written, defaults included: a later change of a default must not change old models."""
    ConvBertCompositeConfig().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()).items() >= DEFAULTS.items()


def test_overrides_on_loading(tmp_path: Path) -> None:
    tiny_config().save_pretrained(tmp_path)
    config, unused = ConvBertCompositeConfig.from_pretrained(
        tmp_path, kernel_size=9, num_labels=5, strange=1, return_unused_kwargs=True
    )
    assert config.kernel_size == 9 and config.num_labels == 5 and config.id2label[4] == "LABEL_4"
    assert unused == {"strange": 1}


@pytest.mark.parametrize("num_labels", [1, 2, 3])
def test_num_labels(num_labels: int) -> None:
    config = ConvBertCompositeConfig(num_labels=num_labels)
    assert config.num_labels == num_labels == len(config.id2label) == len(config.label2id)
    named = ConvBertCompositeConfig(id2label={0: "no", 1: "yes", 2: "maybe"}, label2id={"no": 0, "yes": 1, "maybe": 2})
    assert named.num_labels == 3 and named.id2label[2] == "maybe"


def test_one_label_drops_a_classification_left_over(tmp_path: Path) -> None:
    """A classifier's config opened as a regression."""
    config = tiny_config(num_labels=2)
    config.problem_type = "single_label_classification"
    config.save_pretrained(tmp_path)
    loaded = ConvBertCompositeConfig.from_pretrained(tmp_path, num_labels=1)
    assert loaded.num_labels == 1
    assert ConvBertCompositeConfig(num_labels=1, problem_type="single_label_classification").problem_type is None
    assert ConvBertCompositeConfig(num_labels=1, problem_type="regression").problem_type == "regression"
    assert ConvBertCompositeConfig(num_labels=2, problem_type="regression").problem_type == "regression"


# Keys that other configs or tools write, some of them near our names.
ODD_KEYS = {
    "_name_or_path": "somewhere",
    "transformers_version": "4.57.0",
    "gradient_checkpointing": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "mask_token_id": 4,
    "num_hidden_groups": 1,
    "total_flos": 12,
    "head_ratio": 2,
    "conv_kernel_size": 9,
    "embedding_dim": 128,
    "summary_type": "first",
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "relative_attention_num_buckets": 32,
    "my_kernel": "x",
}


def test_odd_keys_are_kept() -> None:
    config = tiny_config(**ODD_KEYS)
    assert {
        name: getattr(config, name) for name in ODD_KEYS if name != "transformers_version"
    }.items() <= ODD_KEYS.items()
    kept = ConvBertCompositeConfig.from_dict(config.to_dict()).to_dict()
    assert all(kept[name] == value for name, value in ODD_KEYS.items() if not name.startswith(("_", "transf")))


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("kernal_size", "kernel_size"),
        ("kernel_sizes", "kernel_size"),
        ("kernelsize", "kernel_size"),
        ("query_kernels", "query_kernel"),
        ("fixed_kernal", "fixed_kernel"),
        ("kernel_per_head", "kernels_per_head"),
        ("depthwise_kernels", "depthwise_kernel"),
        ("num_hidden_layer", "num_hidden_layers"),
        ("num_attention_head", "num_attention_heads"),
        ("hidden_sizes", "hidden_size"),
        ("position_embeddings_type", "position_embedding_type"),
        ("value_projections", "value_projection"),
        ("dynamic_convolution_head", "dynamic_convolution_heads"),
        ("query_key_group", "query_key_groups"),
    ],
)
def test_misspelt_fields_are_refused_with_a_hint(wrong: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"`{wrong}` is not a field .*Did you mean `{meant}`"):
        tiny_config(**{wrong: 8})


def test_a_misspelt_assignment_does_not_spoil_a_folder(tmp_path: Path) -> None:
    """Either saving refuses it as construction does, or what was saved can be loaded."""
    config = tiny_config()
    config.kernal_size = 9
    try:
        config.save_pretrained(tmp_path)
    except REFUSED as error:
        assert "kernal_size" in str(error)
    else:
        ConvBertCompositeConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernel_size", "7"),
        ("kernel_size", 7.0),
        ("kernel_size", True),
        ("kernel_size", None),
        ("query_kernel", 1),
        ("query_kernel", "yes"),
        ("hidden_size", "32"),
        ("hidden_dropout_prob", "0.1"),
        ("hidden_act", None),
        ("hidden_act", torch.nn.GELU()),
        ("beyond_kernel", "cut"),
        ("beyond_kernel", None),
        ("depthwise_scale", "fixed"),
        ("position_embedding_type", "relative_key"),
        ("position_ids_rule", "roberta"),
        ("query_key_projection", "conv"),
        ("value_projection", "none"),
        ("dynamic_convolution_mode", "key"),
        ("embedding_projection", 1),
        ("tie_word_embeddings", "true"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_wrong_types_are_refused(field: str, value: Any) -> None:
    """At construction and on assignment, naming the field."""
    with pytest.raises(REFUSED, match=f"'{field}'"):
        tiny_config(**{field: value})
    config = tiny_config()
    with pytest.raises(REFUSED, match=f"'{field}'"):
        setattr(config, field, value)


def test_positional_arguments_are_refused() -> None:
    with pytest.raises((ValueError, TypeError), match="positional"):
        ConvBertCompositeConfig(30522)


CONTRADICTIONS = [
    *[
        ({name: 0}, rf"`{name}` must be at least 1, got 0")
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "embedding_size",
            "attention_head_size",
            "query_key_groups",
            "value_groups",
        )
    ],
    *[
        ({name: -1}, rf"`{name}` must be at least 0, got -1")
        for name in ("type_vocab_size", "dynamic_convolution_heads")
    ],
    *[
        ({name: value}, rf"`{name}` must be odd and at least 1 .*, got {value}")
        for name in ("kernel_size", "query_key_kernel_size", "value_kernel_size", "dynamic_convolution_kernel_size")
        for value in (8, 0, -3)
    ],
    *[
        ({name: value}, rf"`{name}` must be between 0 and 1, got {value}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
        for value in (-0.1, 1.5)
    ],
    *[
        ({name: "glu"}, rf"`{name}` must be one of \[.*'gelu'.*\], got 'glu'")
        for name in ("hidden_act", "classifier_act", "mlm_act")
    ],
    (
        {"num_attention_heads": 5},
        r"`num_attention_heads` \(5\) must divide `hidden_size` \(32\).*`attention_head_size`",
    ),
    (
        {"dynamic_convolution_heads": 4},
        r"`dynamic_convolution_heads` must be below `num_attention_heads` \(4\).*got 4",
    ),
    (
        {"embedding_projection": False, "embedding_size": 16},
        r"`embedding_projection=False` needs `embedding_size` \(16\) equal to `hidden_size` \(32\)",
    ),
    ({"pad_token_id": 100}, r"`pad_token_id` must be None or between 0 and `vocab_size` - 1 = 99, got 100"),
    ({"pad_token_id": -1}, r"`pad_token_id` must be None or between 0 and .*, got -1"),
    (
        {**OPTIONS["skip_padding"], "pad_token_id": None},
        r'`position_ids_rule="skip_padding"` needs a `pad_token_id`, got None',
    ),
    (
        {**OPTIONS["skip_padding"], "pad_token_id": 39},
        r"`max_position_embeddings` must be above `pad_token_id` \+ 1 .*got 40 and 39",
    ),
    (
        {**NO_KERNELS, "query_key_product": False},
        "At least one attention term must be on: `query_key_product`, `fixed_kernel`, `query_kernel`, `key_kernel`, "
        "`depthwise_kernel`",
    ),
    (
        {"query_key_projection": "none", "attention_head_size": 12},
        r'`query_key_projection="none"` needs heads \* head size \(48\) equal to `hidden_size` \(32\)',
    ),
    *[
        (
            {f"{part}_groups": 2, **({f"{part}_projection": kind} if kind != "linear" else {})},
            rf"`{part}_groups=2` belongs to `{part}_projection=\"convolution\"`, got '{kind}'",
        )
        for part in ("query_key", "value")
        for kind in ("linear", "depthwise_separable")
    ],
    *[
        (
            {f"{part}_activation": True, f"{part}_projection": kind},
            rf"`{part}_activation=True` belongs to `{part}_projection=\"depthwise_separable\"`, got '{kind}'",
        )
        for part in ("query_key", "value")
        for kind in ("linear", "convolution")
    ],
    *[
        ({f"{part}_mixed": True}, rf"`{part}_mixed=True` needs a convolutional `{part}_projection`, got 'linear'")
        for part in ("query_key", "value")
    ],
    *[
        (
            {
                f"{part}_mixed": True,
                f"{part}_projection": "convolution",
                "attention_head_size": 5,
                "num_attention_heads": 3,
            },
            rf"`{part}_mixed=True` needs an even number of channels .*, got 15",
        )
        for part in ("query_key", "value")
    ],
    *[
        (
            {f"{part}_groups": groups, f"{part}_projection": "convolution", f"{part}_mixed": mixed},
            rf"`{part}_groups` must divide the inputs \(`hidden_size` 32\) and the convolution's outputs "
            rf"\({outputs}\), got {groups}",
        )
        for part in ("query_key", "value")
        for groups, mixed, outputs in ((5, False, 32), (32, True, 16))
    ],
    *[
        (
            {"dynamic_convolution_heads": 2, f"{part}_projection": kind},
            rf"`dynamic_convolution_heads=2` needs `{part}_projection=\"linear\"`, got '{kind}'",
        )
        for part, kind in (("query_key", "convolution"), ("value", "depthwise_separable"))
    ],
    (
        {"dynamic_convolution_heads": 2, "depthwise_kernel": True},
        "`dynamic_convolution_heads` and `depthwise_kernel=True` exclude each other",
    ),
    ({"is_decoder": True}, "`is_decoder=True` is not supported: ConvBertComposite is an encoder"),
    ({"add_cross_attention": True}, "`add_cross_attention=True` is not supported: .* no cross-attention"),
]


@pytest.mark.parametrize(("overrides", "message"), CONTRADICTIONS, ids=lambda value: str(value)[:60])
def test_contradictions_are_refused(overrides: dict[str, Any], message: str, tmp_path: Path) -> None:
    """The field, the value, what is allowed: at construction, and for assignments at the latest on saving."""
    with pytest.raises(REFUSED, match=message):
        tiny_config(**overrides)
    if not overrides.keys() & {"is_decoder", "add_cross_attention"}:
        config = tiny_config()
        for name, value in overrides.items():
            setattr(config, name, value)
        with pytest.raises(REFUSED, match=message):
            config.save_pretrained(tmp_path)


@pytest.mark.parametrize(
    "overrides",
    [
        {"pad_token_id": None},
        {"type_vocab_size": 0},
        {"type_vocab_size": 1},
        {"kernel_size": 1},
        {"kernel_size": 1001},
        {"attention_head_size": 5, "num_attention_heads": 3},
        {"hidden_dropout_prob": 0, "classifier_dropout": 1},
        {"embedding_projection": False},
        {"num_hidden_layers": 1},
        {"query_key_projection": "convolution", "query_key_groups": 32},
        {"value_projection": "depthwise_separable", "attention_head_size": 3},
        {"query_key_projection": "none", "query_key_product": False, "query_kernel": False, "attention_head_size": 3},
        {"depthwise_kernel": True, "attention_head_size": 3},
    ],
    ids=str,
)
def test_unusual_but_allowed(overrides: dict[str, Any]) -> None:
    model = ConvBertCompositeModel(tiny_config(**overrides)).eval()
    assert torch.isfinite(model(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state).all()


def test_projections_that_nothing_reads_are_not_created() -> None:
    """No query without a term or a head that reads queries, and so on."""

    def has(**overrides: Any) -> tuple[bool, bool]:
        names = ConvBertCompositeModel(tiny_config(**overrides)).state_dict()
        return tuple(any(f"self.{part}." in name for name in names) for part in ("query", "key"))

    assert has() == (True, True)
    assert has(**OPTIONS["fixed_only"]) == (False, False)
    assert has(**OPTIONS["query_only"]) == (True, False)
    assert has(**OPTIONS["key_only"]) == (False, True)
    assert has(**OPTIONS["depthwise_only"]) == (False, False)
    assert has(**OPTIONS["no_query_key"]) == (False, False)
    assert has(**OPTIONS["fixed_only"], dynamic_convolution_heads=2) == (True, False)


# Measured on the authors' code: small, base.
COUNTS = {
    "absolute": (13_430_708, 108_821_044),
    "none": (13_414_324, 108_722_740),
    "fixed": (13_415_140, 108_725_188),
    "query": (13_427_380, 108_735_796),
    "composite": (13_428_196, 108_738_244),
    "composite-key": (13_441_252, 108_751_300),
    "depthwise": (13_469_620, 108_888_628),
    "composite-depthwise": (13_483_492, 108_904_132),
    "qk-convolution": (13_524_916, 109_054_516),
    "value-convolution": (13_469_620, 108_888_628),
    "qkv-convolution": (13_580_212, 109_220_404),
    "qkv-convolution-composite": (13_594_084, 109_235_908),
    "convbert": (13_094_540, 105_619_132),
    "remove-qk": (11_851_700, 94_646_836),
}
CONVBERT_WITHOUT_POSITIONS = {"small": 13_078_156, "base": 105_520_828}
PRESETS = [f"bert-{size}-{name}" for size in ("small", "base") for name in COUNTS]


def trainable(config: ConvBertCompositeConfig) -> int:
    """Trainable parameters of the masked language model, tied ones once."""
    with torch.device("meta"):
        model = ConvBertCompositeForMaskedLM(config)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_list_of_presets() -> None:
    assert list_presets() == sorted([*PRESETS, "mini", "tiny"])
    with pytest.raises(ValueError, match=r"no preset 'bert-tiny'.*bert-base-composite.*tiny"):
        load_preset("bert-tiny")


@pytest.mark.parametrize("name", ["../presets/mini", "mini.json", "", ".", "/etc/passwd"])
def test_a_preset_is_no_path(name: str) -> None:
    with pytest.raises(ValueError, match="no preset"):
        load_preset(name)


@pytest.mark.parametrize("name", PRESETS)
def test_parameter_counts_of_presets(name: str) -> None:
    _, size, variant = name.split("-", 2)
    config = load_preset(name)
    assert trainable(config) == COUNTS[variant][size == "base"]
    keeps_positions = variant in ("absolute", "convbert", "remove-qk")
    assert config.position_embedding_type == ("absolute" if keeps_positions else "none")
    sizes = {
        "small": (12, 256, 4, 1024, 128),
        "base": (12, 768, 12, 3072, 768),
    }[size]
    assert sizes == (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.embedding_width,
    )
    assert (config.vocab_size, config.max_position_embeddings, config.type_vocab_size) == (30004, 128, 2)
    if variant == "convbert":
        fields = config.to_dict() | {"position_embedding_type": "none"}
        assert trainable(ConvBertCompositeConfig.from_dict(fields)) == CONVBERT_WITHOUT_POSITIONS[size]


@pytest.mark.parametrize("name", ["mini", "tiny"])
def test_small_presets_run(name: str) -> None:
    model = ConvBertCompositeForMaskedLM(load_preset(name)).eval()
    assert model(input_ids=torch.tensor([[5, 6, 7]])).logits.shape == (1, 3, model.config.vocab_size)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_what_the_flags_say(name: str) -> None:
    """The presets and the flags of the paper's code describe the same models."""
    _, size, variant = name.split("-", 2)
    depth = "convolution_depth_mixed_no_act 8 1"
    flags: dict[str, dict[str, Any]] = {
        "absolute": {"attention_kernel": "dot_product"},
        "none": {"attention_kernel": "dot_product"},
        "fixed": {"attention_kernel": "qk_convfixed 8"},
        "query": {"attention_kernel": "qk_convq 8"},
        "composite": {"attention_kernel": "qk_convfixed_convq 8"},
        "composite-key": {"attention_kernel": "qk_convfixed_convq_convk 8"},
        "depthwise": {"attention_kernel": "qk_convolution 8"},
        "composite-depthwise": {"attention_kernel": "qk_convfixed_convq_convolution 8"},
        "qk-convolution": {"qk": depth},
        "value-convolution": {"value_forward": depth},
        "qkv-convolution": {"qk": depth, "value_forward": depth},
        "qkv-convolution-composite": {
            "attention_kernel": "qk_convfixed_convq 8",
            "qk": depth,
            "value_forward": depth,
        },
        "convbert": {"attention_kernel": "convbert"},
        "remove-qk": {"remove_qk": True},
    }
    sizes = {
        "small": {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
        "base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "embedding_size": 768},
    }
    config = from_reference_flags(
        {
            "vocab_size": 30004,
            "max_position_embeddings": 128,
            "pad_token_id": 30002,
            "remove_position_embeddings": variant not in ("absolute", "convbert", "remove-qk"),
            **flags[variant],
            **sizes[size],
        }
    )
    preset = load_preset(name)
    mode = {"dynamic_convolution_mode": preset.dynamic_convolution_mode}
    # The embeddings of base are as wide as the model: `embedding_size` may be said or left out.
    assert architecture(config) | mode == architecture(preset) | mode


def architecture(config: ConvBertCompositeConfig) -> dict[str, Any]:
    """The fields that decide what is computed: sizes of unused parts and two spellings of a width left out."""
    fields = own_fields(config) | {"embedding_size": config.embedding_width, "attention_head_size": config.head_size}
    if not (config.fixed_kernel or config.query_kernel or config.key_kernel or config.depthwise_kernel):
        del fields["kernel_size"]
    for part in ("query_key", "value"):
        if getattr(config, f"{part}_projection") in ("linear", "none"):
            del fields[f"{part}_kernel_size"]
    if not config.dynamic_convolution_heads:
        del fields["dynamic_convolution_kernel_size"]
    return fields


SIZES = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
    "pad_token_id": 118,
    "embedding_size": 16,
}
DOT_PRODUCT = {
    "query_key_product": True,
    "fixed_kernel": False,
    "query_kernel": False,
    "key_kernel": False,
    "depthwise_kernel": False,
    "query_key_projection": "linear",
    "value_projection": "linear",
    "dynamic_convolution_heads": 0,
}
CONVBERT = {
    **DOT_PRODUCT,
    "dynamic_convolution_heads": 2,
    "dynamic_convolution_kernel_size": 9,
    "dynamic_convolution_mode": "reference",
    "query_key_projection": "linear",
    "value_projection": "linear",
}


def separable(part: str, size: int, activation: bool, mixed: bool) -> dict[str, Any]:
    return {
        f"{part}_projection": "depthwise_separable",
        f"{part}_kernel_size": size,
        f"{part}_groups": 1,
        f"{part}_activation": activation,
        f"{part}_mixed": mixed,
    }


def grouped(part: str, size: int, groups: int, mixed: bool) -> dict[str, Any]:
    return {
        f"{part}_projection": "convolution",
        f"{part}_kernel_size": size,
        f"{part}_groups": groups,
        f"{part}_activation": False,
        f"{part}_mixed": mixed,
    }


# golden/README.md: flags -> the fields that they mean. Fields not named here are those of DOT_PRODUCT.
FLAGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # 3.2, kernels by substring
    ({}, {"position_embedding_type": "absolute"}),
    ({"attention_kernel": "dot_product"}, {}),
    ({"attention_kernel": "qk_convfixed 3"}, {"fixed_kernel": True, "kernel_size": 7}),
    ({"attention_kernel": "qk_convq 3"}, {"query_kernel": True, "kernel_size": 7}),
    ({"attention_kernel": "qk_convk 3"}, {"key_kernel": True, "kernel_size": 7}),
    ({"attention_kernel": "qk_convq_convk 3"}, {"query_kernel": True, "key_kernel": True, "kernel_size": 7}),
    ({"attention_kernel": "qk_convfixed_convq 8"}, {"fixed_kernel": True, "query_kernel": True, "kernel_size": 17}),
    ({"attention_kernel": "convq_convfixed_qk 8"}, {"fixed_kernel": True, "query_kernel": True, "kernel_size": 17}),
    ({"attention_kernel": "qk_convfixed_convq 40"}, {"fixed_kernel": True, "query_kernel": True, "kernel_size": 81}),
    (
        {"attention_kernel": "qk_convfixed_convq_convk 3"},
        {"fixed_kernel": True, "query_kernel": True, "key_kernel": True, "kernel_size": 7},
    ),
    (
        {"attention_kernel": "qk_convolution 3"},
        {"depthwise_kernel": True, "depthwise_scale": "frozen", "kernel_size": 7},
    ),
    (
        {"attention_kernel": "qk_convolution_scaled 3"},
        {"depthwise_kernel": True, "depthwise_scale": "learned", "kernel_size": 7},
    ),
    (
        {"attention_kernel": "qk_convfixed_convq_convolution 3"},
        {"fixed_kernel": True, "query_kernel": True, "depthwise_kernel": True, "kernel_size": 7},
    ),
    (
        {"attention_kernel": "convq_convk 3"},
        {"query_key_product": False, "query_kernel": True, "key_kernel": True, "kernel_size": 7},
    ),
    ({"attention_kernel": "convbert"}, CONVBERT),
    ({"remove_position_embeddings": True}, {"position_embedding_type": "none"}),
    ({"remove_position_embeddings": False}, {"position_embedding_type": "absolute"}),
    ({"remove_qk": True}, {"query_key_projection": "none"}),
    ({"qk": "none"}, {"query_key_projection": "none"}),
    ({"qk": "linear"}, {}),
    ({"qk": "whatever"}, {}),
    ({"value_forward": "feedforward"}, {}),
    ({"value_forward": "whatever 3 4"}, {}),
    # 3.2 and 3.4, projections
    ({"value_forward": "convolution 3 4"}, grouped("value", 7, 4, False)),
    ({"value_forward": "convolution_mixed 3 4"}, grouped("value", 7, 4, True)),
    ({"value_forward": "convolution_no_act 3 4"}, grouped("value", 7, 4, False)),
    ({"value_forward": "convolution_depth 3 1"}, separable("value", 7, True, False)),
    ({"value_forward": "convolution_depth_no_act 3 1"}, separable("value", 7, False, False)),
    ({"value_forward": "convolution_depth_mixed 3 1"}, separable("value", 7, True, True)),
    ({"value_forward": "convolution_mixed_depth_no_act 40 1"}, separable("value", 81, False, True)),
    ({"qk": "convolution 3 4"}, grouped("query_key", 7, 4, False)),
    ({"qk": "convolution_mixed 2 2"}, grouped("query_key", 5, 2, True)),
    ({"qk": "convolution_depth_mixed_no_act 8 1"}, separable("query_key", 17, False, True)),
    ({"qk": "convolution_depth 0 1"}, separable("query_key", 1, True, False)),
    (
        {"attention_kernel": "qk_convfixed_convq 3", "value_forward": "convolution_depth_mixed_no_act 4 1"},
        {"fixed_kernel": True, "query_kernel": True, "kernel_size": 7, **separable("value", 9, False, True)},
    ),
    # Q4: radius 0 has no effect
    ({"attention_kernel": "qk_convfixed 0"}, {}),
    ({"attention_kernel": "qk_convfixed_convq_convk 0"}, {}),
    ({"attention_kernel": "qk_convq_convolution 0"}, {"depthwise_kernel": True, "kernel_size": 1}),
    # Q5: without a lightweight part, or unknown, it is dot product
    (
        {"attention_kernel": "convolution 3"},
        {"query_key_product": True, "depthwise_kernel": True, "kernel_size": 7},
    ),
    ({"attention_kernel": "none"}, {}),
    ({"attention_kernel": "QK_CONVFIXED 3"}, {}),
    ({"attention_kernel": "convbert 4"}, {}),
    ({"attention_kernel": "ConvBERT"}, {}),
    ({"attention_kernel": " convbert"}, {}),
    ({"attention_kernel": ""}, {}),
    # Q6: `dot` counts as `qk`; what follows the radius is ignored
    ({"attention_kernel": "dot_product_convq 3"}, {"query_kernel": True, "kernel_size": 7}),
    ({"attention_kernel": "dot_convfixed 3 4 five"}, {"fixed_kernel": True, "kernel_size": 7}),
    ({"attention_kernel": "qk_convq  3"}, {"query_kernel": True, "kernel_size": 7}),
    ({"value_forward": "convolution 3 4 5"}, grouped("value", 7, 4, False)),
    # Q11: `convbert` ignores `remove_qk`, `qk` and `value_forward`; `remove_qk` wins over `qk`
    ({"attention_kernel": "convbert", "remove_qk": True, "value_forward": "convolution 3 4"}, CONVBERT),
    ({"attention_kernel": "convbert", "qk": "convolution", "value_forward": "convolution"}, CONVBERT),
    ({"remove_qk": True, "qk": "convolution 3 4"}, {"query_key_projection": "none"}),
    # Q12: G has no meaning with depth
    ({"value_forward": "convolution_depth 3 5"}, separable("value", 7, True, False)),
    ({"qk": "convolution_depth_no_act 3 0"}, separable("query_key", 7, False, False)),
    # Q14: -1 floors
    ({"num_attention_heads": 5}, {"attention_head_size": 6}),
    ({"num_attention_heads": 5, "attention_head_size": -1}, {"attention_head_size": 6}),
    ({"attention_head_size": 12}, {"attention_head_size": 12}),
    ({"attention_head_size": -1}, {"attention_head_size": None}),
    # Q18: the default is not the hidden size
    ({"embedding_size": 32}, {"embedding_size": 32}),
    # 5: the original crashes, the flags have a meaning
    (
        {"attention_kernel": "convfixed 3"},
        {"query_key_product": False, "fixed_kernel": True, "kernel_size": 7},
    ),
    ({"attention_kernel": "convk 3"}, {"query_key_product": False, "key_kernel": True, "kernel_size": 7}),
    ({"attention_kernel": "convq 3"}, {"query_key_product": False, "query_kernel": True, "kernel_size": 7}),
    (
        {"attention_kernel": "convfixed_convolution 3"},
        {"query_key_product": False, "fixed_kernel": True, "depthwise_kernel": True, "kernel_size": 7},
    ),
    (
        {"value_forward": "convolution_depth 3 1", "attention_head_size": 12},
        {**separable("value", 7, True, False), "attention_head_size": 12},
    ),
    (
        {"attention_kernel": "qk_convolution 3", "attention_head_size": 12},
        {"depthwise_kernel": True, "attention_head_size": 12, "kernel_size": 7},
    ),
    ({"attention_kernel": "convbert", "num_attention_heads": 2}, {**CONVBERT, "dynamic_convolution_heads": 1}),
]


@pytest.mark.parametrize(("flags", "expected"), FLAGS, ids=lambda value: str(value)[:70])
def test_reference_flags(flags: dict[str, Any], expected: dict[str, Any]) -> None:
    config = from_reference_flags(SIZES | flags)
    expected = DOT_PRODUCT | SIZES | {key: value for key, value in flags.items() if key in SIZES} | expected
    assert {name: getattr(config, name) for name in expected} == expected
    # What they mean can be built.
    with torch.device("meta"):
        ConvBertCompositeForMaskedLM(config)


def test_reference_defaults() -> None:
    """The original's own defaults: BERT-base, dot product, embeddings 128 wide, an absolute table."""
    config = from_reference_flags({})
    expected = DEFAULTS | DOT_PRODUCT | {"embedding_size": 128, "position_embedding_type": "absolute"}
    assert own_fields(config) == expected


def test_reference_labels_are_kept() -> None:
    config = from_reference_flags(
        SIZES | {"id2label": {"0": "no", "1": "yes", "2": "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
    )
    assert config.num_labels == 3 and config.id2label == {0: "no", 1: "yes", 2: "maybe"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"attention_kernel": "qk_convfixed"}, "attention_kernel='qk_convfixed'.*radius"),
        ({"attention_kernel": "convolution"}, "attention_kernel='convolution'.*radius"),
        ({"attention_kernel": "qk_convq three"}, "attention_kernel='qk_convq three'.*radius"),
        ({"attention_kernel": "qk_convq 3.5"}, r"attention_kernel='qk_convq 3\.5'.*radius"),
        ({"attention_kernel": "qk_convfixed -1"}, "attention_kernel='qk_convfixed -1'.*negative radius"),
        ({"attention_kernel": 3}, "`attention_kernel` must be a string, got 3"),
        ({"value_forward": "convolution"}, "value_forward='convolution'.*radius"),
        ({"value_forward": "convolution 3"}, "value_forward='convolution 3'.*number of groups"),
        ({"value_forward": "convolution_depth 3"}, "value_forward='convolution_depth 3'.*number of groups"),
        ({"value_forward": "convolution_depth -3 1"}, "value_forward='convolution_depth -3 1'.*negative radius"),
        ({"qk": "convolution_mixed 3"}, "qk='convolution_mixed 3'.*number of groups"),
        ({"qk": "convolution x 1"}, "qk='convolution x 1'.*radius"),
        ({"qk": None}, "`qk` must be a string, got None"),
        ({"attention_kernel": "convbert", "num_attention_heads": 5}, "convbert.*even `num_attention_heads`, got 5"),
        ({"remove_qk": True, "attention_head_size": 12}, "needs heads .* head size .48. equal to `hidden_size` .32."),
        ({"qk": "none", "attention_head_size": 12}, "needs heads .* head size .48. equal to `hidden_size` .32."),
        ({"value_forward": "convolution 3 5"}, "must divide .*32.*, got 5"),
        ({"value_forward": "convolution_mixed 3 32"}, r"must divide .*outputs \(16\), got 32"),
        ({"qk": "convolution 3 0"}, "must be at least 1, got 0"),
        (
            {"value_forward": "convolution_mixed 3 1", "num_attention_heads": 3, "attention_head_size": 5},
            "even number of channels.*15",
        ),
        ({"pad_token_id": 120}, "`pad_token_id` must be .*119, got 120"),
        ({"is_decoder": True}, "`is_decoder=True` is not supported"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_reference_flags_that_mean_nothing(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(REFUSED, match=message):
        from_reference_flags(SIZES | flags)


@pytest.mark.parametrize(
    "flags", [{"remove_qk": True, "attention_head_size": 12}, {"value_forward": "convolution 3 5"}]
)
def test_reference_flags_raise_value_errors(flags: dict[str, Any]) -> None:
    """As the docstring of `from_reference_flags` promises."""
    with pytest.raises(ValueError):
        from_reference_flags(SIZES | flags)


def test_no_term_left_at_radius_zero() -> None:
    """`convq_convk 0` leaves no score at all, in the original a plain mean of the values: refused, not changed."""
    with pytest.raises(REFUSED, match="term"):
        from_reference_flags(SIZES | {"attention_kernel": "convq_convk 0"})


def test_flags_of_the_golden_folders(golden: Path) -> None:
    """Every recorded variant: trainable parameters as counted in the original."""
    from modeling_convbert_composite import ConvBertCompositeForPreTraining, ConvBertCompositeForSequenceClassification

    classes = {
        "BertForMaskedLM": ConvBertCompositeForMaskedLM,
        "BertForPreTraining": ConvBertCompositeForPreTraining,
        "BertForSequenceClassification": ConvBertCompositeForSequenceClassification,
        "BertModel": ConvBertCompositeModel,
    }
    folders = [path for path in (golden / "golden").iterdir() if (path / "meta.json").is_file()]
    assert len(folders) == 27
    for folder in folders:
        meta = json.loads((folder / "meta.json").read_text())
        config = from_reference_flags(json.loads((folder / "config.json").read_text()))
        with torch.device("meta"):
            model = classes[meta["model_class"]](config)
        count = sum(parameter.numel() for parameter in model.parameters())
        # Projections that nothing reads are not created: the original keeps queries and keys of every kernel.
        unread = (
            0
            if config.query_key_product
            else sum(
                (32 * 32 + 32) * config.num_hidden_layers
                for is_read in (config.uses_query, config.uses_key)
                if not is_read
            )
        )
        assert count + unread == meta["parameters_trainable"], folder.name
