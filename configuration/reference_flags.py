# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The flag strings of the paper's code, read once into the typed fields of our config.

The original tests its strings for substrings, with its own precedence and silent fallbacks; this file is the only
place that knows about them. Where the original crashes although the flags have a meaning (kernels without the
query-key product, depthwise projections of wider heads, ...), the config simply says what they mean.
"""

from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from modeling_convbert_composite import ConvBertCompositeConfig


# Keys that only the paper's code writes into a config.json of model type `bert`.
REFERENCE_KEYS = (
    "attention_kernel",
    "remove_qk",
    "remove_position_embeddings",
    "qk",
    "value_forward",
)

# Fields of BERT's config with the same name and meaning in ours.
BERT_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
    "id2label",
    "label2id",
    "problem_type",
    "is_decoder",
    "add_cross_attention",
)

# Copied as they are. What else stands in the file has no bearing on the architecture.
COPIED_FIELDS = (*BERT_FIELDS, "tie_word_embeddings", "num_labels")

# The original's default, not the hidden size.
DEFAULT_EMBEDDING_SIZE = 128


def from_reference_flags(flags: Mapping[str, Any]) -> ConvBertCompositeConfig:
    """
    The config of a model of the paper's code.

    Args:
        flags: its config.json as a dict. Flags left out take the original's defaults (dot-product attention, absolute
            positions, embeddings 128 wide).

    Raises:
        ValueError: a flag string without the numbers it needs, or that describes nothing (an odd number of heads with
            `convbert`, `remove_qk` with another width than the hidden size, ...), naming flag and value.

    ```python
    >>> config = from_reference_flags({"attention_kernel": "qk_convfixed_convq 8", "remove_position_embeddings": True})
    >>> config.fixed_kernel, config.query_kernel, config.kernel_size, config.position_embedding_type
    (True, True, 17, 'none')

    ```
    """
    try:
        return ConvBertCompositeConfig(**reference_fields(flags))
    except StrictDataclassError as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ValueError(f"These flags describe no model. {reason}") from error


def reference_fields(flags: Mapping[str, Any]) -> dict[str, Any]:
    """`from_reference_flags` before its last step: the fields of our config."""
    fields = {name: flags[name] for name in COPIED_FIELDS if flags.get(name) is not None}
    fields["embedding_size"] = flags.get("embedding_size", DEFAULT_EMBEDDING_SIZE)
    fields["position_embedding_type"] = "none" if flags.get("remove_position_embeddings") else "absolute"
    fields |= _head_size(flags)
    kernel = _text(flags, "attention_kernel", "dot_product")
    if kernel == "convbert":
        fields |= _convbert(fields.get("num_attention_heads", ConvBertCompositeConfig.num_attention_heads))
    else:
        fields |= _kernel_terms(kernel)
        fields |= _projections(flags)
    return fields


def _text(flags: Mapping[str, Any], name: str, default: str) -> str:
    value = flags.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be a string, got {value!r}.")
    return value


def _integer(flags: Mapping[str, Any], name: str, default: int) -> int:
    value = flags.get(name, default)
    if not isinstance(value, int) or (value < 1 and value != default):
        raise ValueError(f"`{name}` must be a whole number of at least 1, got {value!r}.")
    return value


def _head_size(flags: Mapping[str, Any]) -> dict[str, Any]:
    """-1 means hidden size / heads, rounded down; the heads then do not fill the hidden size."""
    hidden_size = _integer(flags, "hidden_size", ConvBertCompositeConfig.hidden_size)
    heads = _integer(flags, "num_attention_heads", ConvBertCompositeConfig.num_attention_heads)
    size = _integer(flags, "attention_head_size", -1)
    if size == -1:
        size = hidden_size // heads
    return {} if size * heads == hidden_size else {"attention_head_size": size}


def _convbert(heads: int) -> dict[str, Any]:
    """The original's `convbert`: half the heads dynamic convolutions of width 9. It ignores every other flag."""
    if heads % 2:
        raise ValueError(f"`attention_kernel='convbert'` needs an even `num_attention_heads`, got {heads}.")
    return {
        "fixed_kernel": False,
        "query_kernel": False,
        "dynamic_convolution_heads": heads // 2,
        "dynamic_convolution_kernel_size": 9,
        "dynamic_convolution_mode": "reference",
    }


def _kernel_terms(kernel: str) -> dict[str, Any]:
    """`<name> <radius>`, the name searched for substrings; without a lightweight part it is plain dot product."""
    name, *numbers = kernel.split() or [""]
    lightweight = {field: part in name for field, part in LIGHTWEIGHT_PARTS.items()}
    depthwise = "convolution" in name
    terms: dict[str, Any] = {
        "query_key_product": "qk" in name or "dot" in name or not any(lightweight.values()),
        "depthwise_kernel": depthwise,
        "depthwise_scale": "learned" if "convolution_scaled" in name else "frozen",
        **lightweight,
    }
    if depthwise or any(lightweight.values()):
        radius = _number("attention_kernel", kernel, numbers, 0, "radius")
        terms["kernel_size"] = 2 * radius + 1
        if radius == 0:
            # The original skips a table of one column; a constant kernel would change nothing but the key's.
            terms |= dict.fromkeys(LIGHTWEIGHT_PARTS, False)
    return terms


LIGHTWEIGHT_PARTS = {"fixed_kernel": "convfixed", "query_kernel": "convq", "key_kernel": "convk"}


def _projections(flags: Mapping[str, Any]) -> dict[str, Any]:
    query_key = _text(flags, "qk", "linear")
    if flags.get("remove_qk") or query_key == "none":
        fields: dict[str, Any] = {"query_key_projection": "none"}
    else:
        fields = _projection("qk", "query_key", query_key)
    return fields | _projection("value_forward", "value", _text(flags, "value_forward", "feedforward"))


def _projection(flag: str, part: str, value: str) -> dict[str, Any]:
    """`convolution[_depth][_mixed][_no_act] <radius> <groups>`, or anything else for a linear map."""
    if not value.startswith("convolution"):
        return {}
    name, *numbers = value.split()
    radius = _number(flag, value, numbers, 0, "radius")
    groups = _number(flag, value, numbers, 1, "number of groups")
    depthwise = "depth" in name
    return {
        f"{part}_projection": "depthwise_separable" if depthwise else "convolution",
        f"{part}_kernel_size": 2 * radius + 1,
        f"{part}_groups": 1 if depthwise else groups,
        f"{part}_activation": depthwise and "no_act" not in name,
        f"{part}_mixed": "mixed" in name,
    }


def _number(flag: str, value: str, numbers: list[str], index: int, meaning: str) -> int:
    try:
        number = int(numbers[index])
    except (IndexError, ValueError):
        raise ValueError(
            f"`{flag}={value!r}` needs a {meaning} as its word {index + 2}, a whole number of at least 0."
        ) from None
    if number < 0:
        raise ValueError(f"`{flag}={value!r}` has a negative {meaning}: it must be at least 0.")
    return number
