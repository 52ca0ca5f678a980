# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What a config means, in words and as a formula, for tables and cards."""

from .configuration_convbert_composite import ConvBertCompositeConfig


PROJECTION_WORDS = {"convolution": "convolution", "depthwise_separable": "depthwise-separable convolution"}


def score_terms(config: ConvBertCompositeConfig) -> dict[str, str]:
    """The attention terms that are on: name -> formula."""
    shared = "[h," if config.kernels_per_head else "["
    formulas = {
        "query_key_product": "q_i.k_j * s",
        "fixed_kernel": "F[h, slot(j-i)]",
        "query_kernel": f"q_i.U{shared}slot(j-i)] * s",
        "key_kernel": f"k_j.T{shared}slot(i-j)] * s",
    }
    return {name: formula for name, formula in formulas.items() if getattr(config, name)}


def formula(config: ConvBertCompositeConfig) -> str:
    """The attention of a config on one line."""
    scores = " + ".join(score_terms(config).values()) or "0"
    depthwise = " + g_h * depthwise(v)_i" if config.depthwise_kernel else ""
    return f"softmax_j({scores} + mask) v{depthwise}"


def legend(config: ConvBertCompositeConfig) -> str:
    """What the letters of `formula` mean, and whose formula it is if some heads do not attend."""
    text, half_width = formula(config), config.kernel_size // 2
    meanings = [
        *([f"slot(n) = clip(n, -{half_width}, {half_width}) + {half_width}"] if "slot(" in text else []),
        *(["s = D ** -0.5"] if " * s" in text else []),
    ]
    heads = " (of the heads that attend)" if config.dynamic_convolution_heads else ""
    return heads + (f", with {' and '.join(meanings)}" if meanings else "")


def features(config: ConvBertCompositeConfig) -> list[str]:
    """Everything about the attention and the positions that the config switches on, in words."""
    has_kernel = config.fixed_kernel or config.query_kernel or config.key_kernel
    words = [name.replace("_", " ") for name in score_terms(config)]
    if config.depthwise_kernel:
        words.append(f"depthwise kernel ({config.depthwise_scale} scale)")
    if has_kernel or config.depthwise_kernel or config.beyond_kernel == "window":
        words.append(f"kernels of {config.kernel_size} slots, {config.beyond_kernel} beyond")
    for part, label in (("query_key", "queries and keys"), ("value", "values")):
        words += projection_words(config, part, label)
    if config.dynamic_convolution_heads:
        words.append(
            f"{config.dynamic_convolution_heads} of {config.num_attention_heads} heads dynamic convolutions "
            f"({config.dynamic_convolution_mode}, {config.dynamic_convolution_kernel_size} taps)"
        )
    if config.position_embedding_type == "absolute":
        words.append(f"absolute positions ({config.max_position_embeddings} rows)")
    else:
        words.append("no absolute positions")
    return words


def projection_words(config: ConvBertCompositeConfig, part: str, label: str) -> list[str]:
    kind = getattr(config, f"{part}_projection")
    if kind == "linear":
        return []
    if kind == "none":
        return [f"{label} without a projection"]
    share = "half " if getattr(config, f"{part}_mixed") else ""
    return [f"{label} {share}{PROJECTION_WORDS[kind]} ({getattr(config, f'{part}_kernel_size')} taps)"]
