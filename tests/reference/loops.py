# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The whole encoder as plain loops, slow and without a single line of the package: what the tests compare with.

Loops run over batch, heads, queries and keys; only channels are vectors. Everything keeps the dtype of the parameters
(float64 in the tests) and can be differentiated, so that gradients are compared as well.

    score[h,i,j] =  q_i.k_j / sqrt(D)  +  F[h, slot(j-i)]  +  q_i.U[slot(j-i)] / sqrt(D)  +  k_j.T[slot(i-j)] / sqrt(D)
    a[h,i,.] = softmax over the keys j that are tokens;   y_i = sum_j a[h,i,j] v_j  +  g_h (W * v + bias)_i
    slot(n) = clip(n, -K, K) + K

Letters: B batch, H heads, L length, D head size, K half-width, R = 2K + 1 slots, C hidden size, A = H * D, T taps.
`Rows` is one text: a list of L vectors. `Parameters` are state-dict entries, with names below the module in question.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


Rows = list[torch.Tensor]
Parameters = Mapping[str, torch.Tensor]

ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_new": lambda x: x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "relu": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": torch.tanh,
}


def under(parameters: Parameters, name: str) -> dict[str, torch.Tensor]:
    """The parameters below module `name`, their names cut accordingly."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in parameters.items() if key.startswith(prefix)}


def slot(offset: int, kernel_size: int) -> int:
    """clip(n, -K, K) + K."""
    half_width = kernel_size // 2
    return min(max(offset, -half_width), half_width) + half_width


def product_score(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """q_i.k_j / sqrt(D); both (D,)."""
    return torch.dot(query, key) / math.sqrt(len(query))


def fixed_score(table: Rows, i: int, j: int) -> torch.Tensor:
    """F[slot(j - i)] of one head; `table` R numbers."""
    return table[slot(j - i, len(table))]


def query_score(query: torch.Tensor, table: Rows, i: int, j: int) -> torch.Tensor:
    """q_i.U[slot(j - i)] / sqrt(D); `table` R vectors (D,)."""
    return torch.dot(query, table[slot(j - i, len(table))]) / math.sqrt(len(query))


def key_score(key: torch.Tensor, table: Rows, i: int, j: int) -> torch.Tensor:
    """k_j.T[slot(i - j)] / sqrt(D), the offset seen from the key; `table` R vectors (D,)."""
    return torch.dot(key, table[slot(i - j, len(table))]) / math.sqrt(len(key))


def softmax(scores: Rows) -> Rows:
    """Of a list of numbers."""
    top = torch.stack(scores).detach().max()
    powers = [torch.exp(score - top) for score in scores]
    total = sum(powers[1:], powers[0])
    return [power / total for power in powers]


def attend(scores: list[torch.Tensor | None], values: Rows, attended: list[torch.Tensor | float]) -> torch.Tensor:
    """sum_j softmax(scores)_j v_j over the keys whose score is not None. Writes the weights into `attended`."""
    keys = [j for j, score in enumerate(scores) if score is not None]
    output = torch.zeros_like(values[0])
    if keys:
        for j, weight in zip(keys, softmax([scores[j] for j in keys]), strict=True):
            attended[j] = weight.detach()
            output = output + weight * values[j]
    return output


def convolve(states: Rows, weight: torch.Tensor, bias: torch.Tensor | None, groups: int) -> Rows:
    """y_i = bias + sum_n W_n x_(i+n), group by group; nothing outside the text. `weight` (outputs, C / groups, R)."""
    half_width = weight.shape[-1] // 2
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    result = []
    for i in range(len(states)):
        parts = []
        for group in range(groups):
            rows = slice(group * outputs, (group + 1) * outputs)
            part = torch.zeros(outputs, dtype=weight.dtype) if bias is None else bias[rows]
            for n in range(-half_width, half_width + 1):
                if 0 <= i + n < len(states):
                    part = (
                        part + weight[rows, :, n + half_width] @ states[i + n][group * inputs : (group + 1) * inputs]
                    )
            parts.append(part)
        result.append(torch.cat(parts))
    return result


def convolve_depthwise(states: Rows, weight: torch.Tensor, bias: torch.Tensor | None) -> Rows:
    """Each channel by itself: channel o of the m * C outputs reads channel o // m. `weight` (m * C, 1, R)."""
    half_width = weight.shape[-1] // 2
    multiplier = weight.shape[0] // len(states[0])
    reads = [channel // multiplier for channel in range(weight.shape[0])]
    result = []
    for i in range(len(states)):
        output = torch.zeros(weight.shape[0], dtype=weight.dtype) if bias is None else bias
        for n in range(-half_width, half_width + 1):
            if 0 <= i + n < len(states):
                output = output + weight[:, 0, n + half_width] * states[i + n][reads]
        result.append(output)
    return result


def linear(states: Rows, parameters: Parameters, name: str) -> Rows:
    """W x + b at every position."""
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    return [weight @ state + bias for state in states]


def project(config: Any, part: str, states: Rows, parameters: Parameters, name: str) -> Rows:
    """Queries, keys (`part` "query_key") or values ("value") of one text, L vectors (A,)."""
    kind = getattr(config, f"{part}_projection")
    if kind == "none":
        return states
    if kind == "linear":
        return linear(states, parameters, name)
    mixed = getattr(config, f"{part}_mixed")
    convolution = f"{name}.convolution" if mixed else name
    if kind == "convolution":
        weight, bias = parameters[f"{convolution}.weight"], parameters[f"{convolution}.bias"]
        convolved = convolve(states, weight, bias, getattr(config, f"{part}_groups"))
    else:
        weight, bias = (parameters[f"{convolution}.depthwise.{end}"] for end in ("weight", "bias"))
        channels = convolve_depthwise(states, weight, bias)
        if getattr(config, f"{part}_activation"):
            channels = [ACTIVATIONS[config.hidden_act](channel) for channel in channels]
        convolved = linear(channels, parameters, f"{convolution}.pointwise")
    if not mixed:
        return convolved
    halves = zip(convolved, linear(states, parameters, f"{name}.linear"), strict=True)
    return [torch.cat([first, second]) for first, second in halves]


def dynamic_kernels(config: Any, states: Rows, queries: Rows, parameters: Parameters) -> list[torch.Tensor]:
    """kernel(pointwise(depthwise(x)) * q) at every position: L tensors (heads, T)."""
    weight, bias = parameters["depthwise.weight"], parameters.get("depthwise.bias")
    span = linear(convolve_depthwise(states, weight, bias), parameters, "pointwise")
    products = [z * q for z, q in zip(span, queries, strict=True)]
    return [logits.reshape(config.dynamic_convolution_heads, -1) for logits in linear(products, parameters, "kernel")]


def dynamic_head(
    config: Any, kernels: list[torch.Tensor], values: Rows, tokens: list[bool], i: int, attended: list
) -> torch.Tensor:
    """One head at query i; `kernels` L tensors (T,), `values` L vectors (D,)."""
    length, taps = len(values), config.dynamic_convolution_kernel_size
    if config.dynamic_convolution_mode == "convbert":
        weights = softmax(list(kernels[i].unbind()))
        output = torch.zeros_like(values[0])
        for tap, weight in enumerate(weights):
            j = i + tap - taps // 2
            if 0 <= j < length:
                attended[j] = weight.detach()
                output = output + weight * values[j]
        return output
    scores: list[torch.Tensor | None] = [None] * length
    for j in range(length):
        if abs(j - i) <= taps // 2 and tokens[j]:
            made_at = i if config.dynamic_convolution_mode == "span" else j
            scores[j] = kernels[made_at][j - i + taps // 2]
    return attend(scores, values, attended)


def split(states: Rows, heads: int) -> list[Rows]:
    """L vectors (A,) -> for each head L vectors (D,)."""
    return [[state.chunk(heads)[head] for state in states] for head in range(heads)]


def kernel_table(config: Any, table: torch.Tensor, head: int) -> Rows:
    """The R vectors (D,) of one head; `table` (D, R), or (heads, D, R) if per head."""
    return list((table[head] if config.kernels_per_head else table).unbind(-1))


def head_scores(
    config: Any, parameters: Parameters, head: int, queries: Rows | None, keys: Rows | None, length: int
) -> list[list[torch.Tensor]]:
    """The sum of the terms for all pairs of one head: L lists of L numbers."""
    zero = torch.zeros((), dtype=parameters["zero"].dtype)
    fixed = list(parameters["fixed_kernel"][head].unbind()) if config.fixed_kernel else []
    by_query = kernel_table(config, parameters["query_kernel"], head) if config.query_kernel else []
    by_key = kernel_table(config, parameters["key_kernel"], head) if config.key_kernel else []
    scores = []
    for i in range(length):
        row = []
        for j in range(length):
            score = zero
            if config.query_key_product:
                score = score + product_score(queries[i], keys[j])
            if config.fixed_kernel:
                score = score + fixed_score(fixed, i, j)
            if config.query_kernel:
                score = score + query_score(queries[i], by_query, i, j)
            if config.key_kernel:
                score = score + key_score(keys[j], by_key, i, j)
            row.append(score)
        scores.append(row)
    return scores


def convolves_hidden_states(config: Any) -> bool:
    """Whether a convolution reads the hidden states and must find zeros at padding."""
    return (
        config.query_key_projection in ("convolution", "depthwise_separable")
        or config.value_projection in ("convolution", "depthwise_separable")
        or (config.dynamic_convolution_heads > 0 and config.dynamic_convolution_mode != "convbert")
    )


def self_attention(
    config: Any, parameters: Parameters, states: Rows, tokens: list[bool], pairs: torch.Tensor | None
) -> tuple[Rows, torch.Tensor]:
    """
    One text: L vectors (C,) -> L vectors (A,) and the attention map (H, L, L). `tokens` says which positions are no
    padding, `pairs` (score heads, L, L) is added to the scores, -inf hides.
    """
    length, heads = len(states), config.num_attention_heads
    score_heads = heads - config.dynamic_convolution_heads
    parameters = {**parameters, "zero": torch.zeros((), dtype=states[0].dtype)}
    if convolves_hidden_states(config):
        states = [state if token else torch.zeros_like(state) for state, token in zip(states, tokens, strict=True)]
    needs_key = config.query_key_product or config.key_kernel
    needs_query = config.query_key_product or config.query_kernel or config.dynamic_convolution_heads > 0
    queries = project(config, "query_key", states, parameters, "query") if needs_query else None
    keys = project(config, "query_key", states, parameters, "key") if needs_key else None
    flat_values = project(config, "value", states, parameters, "value")
    values = split(flat_values, heads)
    queries_of = split(queries, score_heads) if needs_query else [None] * score_heads
    keys_of = split(keys, score_heads) if needs_key else [None] * score_heads

    attended: list = [[[0.0] * length for _ in range(length)] for _ in range(heads)]
    outputs: list[Rows] = [[] for _ in range(length)]  # by query, then by head
    for head in range(score_heads):
        scores = head_scores(config, parameters, head, queries_of[head], keys_of[head], length)
        for i in range(length):
            row = [visible_score(config, scores[i][j], i, j, tokens, pairs, head) for j in range(length)]
            outputs[i].append(attend(row, values[head], attended[head][i]))
    if config.depthwise_kernel:
        add_depthwise(config, parameters, flat_values, tokens, outputs)
    if config.dynamic_convolution_heads > 0:
        kernels = dynamic_kernels(config, states, queries, under(parameters, "dynamic_convolution"))
        for number in range(config.dynamic_convolution_heads):
            head = score_heads + number
            of_head = [kernel[number] for kernel in kernels]
            for i in range(length):
                outputs[i].append(dynamic_head(config, of_head, values[head], tokens, i, attended[head][i]))
    numbers = [[[float(weight) for weight in row] for row in head] for head in attended]
    maps = torch.tensor(numbers, dtype=states[0].dtype)
    return [torch.cat(parts) for parts in outputs], maps


def visible_score(
    config: Any, score: torch.Tensor, i: int, j: int, tokens: list[bool], pairs: torch.Tensor | None, head: int
) -> torch.Tensor | None:
    """None if query i may not see key j: padding, beyond the window, hidden by `pairs`."""
    if not tokens[j] or (config.beyond_kernel == "window" and abs(j - i) > config.kernel_size // 2):
        return None
    if pairs is None:
        return score
    return None if pairs[head, i, j] == -math.inf else score + pairs[head, i, j]


def add_depthwise(config: Any, parameters: Parameters, values: Rows, tokens: list[bool], outputs: list[Rows]) -> None:
    """Adds g_h (W * v + bias)_i to every head's output; v is zero at padding."""
    values = [value if token else torch.zeros_like(value) for value, token in zip(values, tokens, strict=True)]
    convolved = convolve_depthwise(values, parameters["depthwise_kernel.weight"], parameters["depthwise_kernel.bias"])
    for i, row in enumerate(convolved):
        for head, part in enumerate(row.chunk(config.num_attention_heads)):
            outputs[i][head] = outputs[i][head] + parameters["depthwise_scale"][head] * part


@dataclass
class Outputs:
    """`hidden_states` (B, L, C), first what enters the encoder, then of each layer; `attentions` (B, H, L, L)."""

    hidden_states: list[torch.Tensor]
    attentions: list[torch.Tensor]


def layer_norm(config: Any, states: Rows, parameters: Parameters, name: str) -> Rows:
    """(x - mean) / sqrt(variance + eps) * weight + bias."""
    result = []
    for state in states:
        centred = state - state.mean()
        scale = torch.sqrt((centred * centred).mean() + config.layer_norm_eps)
        result.append(centred / scale * parameters[f"{name}.weight"] + parameters[f"{name}.bias"])
    return result


def look_up(config: Any, table: torch.Tensor, ids: list[int]) -> Rows:
    """Rows of the word embeddings; the padding token's row learns nothing from being looked up."""
    return [table[token].detach() if token == config.pad_token_id else table[token] for token in ids]


def position_numbers(config: Any, ids: list[int] | None, length: int) -> list[int]:
    """Rows of the position table: 0, 1, 2, ..., or counting only ids that are not padding, from pad + 1."""
    if config.position_ids_rule == "sequential":
        return list(range(length))
    pad = config.pad_token_id
    if ids is None:
        return [pad + 1 + i for i in range(length)]
    numbers, seen = [], 0
    for token in ids:
        seen += token != pad
        numbers.append(pad if token == pad else pad + seen)
    return numbers


def embed(
    config: Any,
    parameters: Parameters,
    words: Rows,
    ids: list[int] | None,
    segments: list[int],
    positions: list[int] | None,
) -> Rows:
    """Word + segment + position, LayerNorm, projection: L vectors (C,)."""
    if positions is None:
        positions = position_numbers(config, ids, len(words))
    states = []
    for i, state in enumerate(words):
        if config.type_vocab_size > 0:
            state = state + parameters["token_type_embeddings.weight"][segments[i]]
        if config.position_embedding_type == "absolute":
            state = state + parameters["position_embeddings.weight"][positions[i]]
        states.append(state)
    states = layer_norm(config, states, parameters, "LayerNorm")
    has_projection = config.embedding_projection
    if has_projection is None:
        has_projection = config.embedding_size is not None and config.embedding_size != config.hidden_size
    return linear(states, parameters, "projection") if has_projection else states


def layer(
    config: Any, parameters: Parameters, states: Rows, tokens: list[bool], pairs: torch.Tensor | None
) -> tuple[Rows, torch.Tensor]:
    """Attention, residual, LayerNorm; feed-forward, residual, LayerNorm. One text."""
    attended, maps = self_attention(config, under(parameters, "attention.self"), states, tokens, pairs)
    attended = linear(attended, parameters, "attention.output.dense")
    attended = [x + y for x, y in zip(states, attended, strict=True)]
    attended = layer_norm(config, attended, parameters, "attention.output.LayerNorm")
    wide = [ACTIVATIONS[config.hidden_act](state) for state in linear(attended, parameters, "intermediate.dense")]
    output = [x + y for x, y in zip(attended, linear(wide, parameters, "output.dense"), strict=True)]
    return layer_norm(config, output, parameters, "output.LayerNorm"), maps


def encode(
    config: Any,
    parameters: Parameters,
    input_ids: torch.Tensor | None,
    token_mask: torch.Tensor | None = None,
    token_type_ids: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    inputs_embeds: torch.Tensor | None = None,
    pairs: torch.Tensor | None = None,
) -> Outputs:
    """
    The encoder. `parameters` of a base model or of a model with a head; `token_mask` (B, L), not 0 at tokens; `pairs`
    (B, score heads, L, L) to add to all scores, -inf hides.
    """
    parameters = under(parameters, "convbert_composite") or parameters
    batch, length = (input_ids if inputs_embeds is None else inputs_embeds).shape[:2]
    hidden_states: list[list[torch.Tensor]] = [[] for _ in range(config.num_hidden_layers + 1)]
    attentions: list[list[torch.Tensor]] = [[] for _ in range(config.num_hidden_layers)]
    for row in range(batch):
        tokens = [True] * length if token_mask is None else [bool(token) for token in token_mask[row].tolist()]
        segments = [0] * length if token_type_ids is None else token_type_ids[row].tolist()
        positions = None if position_ids is None else position_ids[row].tolist()
        ids = None if input_ids is None else input_ids[row].tolist()
        if inputs_embeds is None:
            words = look_up(config, parameters["embeddings.word_embeddings.weight"], ids)
        else:
            words = list(inputs_embeds[row].unbind())
        states = embed(config, under(parameters, "embeddings"), words, ids, segments, positions)
        hidden_states[0].append(torch.stack(states))
        for number in range(config.num_hidden_layers):
            of_layer = under(parameters, f"encoder.layer.{number}")
            states, maps = layer(config, of_layer, states, tokens, None if pairs is None else pairs[row])
            hidden_states[number + 1].append(torch.stack(states))
            attentions[number].append(maps)
    return Outputs([torch.stack(rows) for rows in hidden_states], [torch.stack(maps) for maps in attentions])


def pool(config: Any, parameters: Parameters, hidden_states: torch.Tensor) -> torch.Tensor:
    """act(W x_0 + b): (B, L, C) -> (B, C)."""
    parameters = under(parameters, "convbert_composite") or parameters
    pooled = linear([text[0] for text in hidden_states], parameters, "pooler.dense")
    return torch.stack([ACTIVATIONS[config.classifier_act](state) for state in pooled])


def mlm_logits(config: Any, parameters: Parameters, hidden_states: torch.Tensor) -> torch.Tensor:
    """Linear map to E, activation, LayerNorm, word embeddings and a bias: (B, L, C) -> (B, L, vocabulary)."""
    parameters = under(parameters, "mlm_head")
    texts = []
    for text in hidden_states:
        states = linear(list(text.unbind()), parameters, "dense")
        states = [ACTIVATIONS[config.mlm_act or config.hidden_act](state) for state in states]
        texts.append(torch.stack(linear(layer_norm(config, states, parameters, "LayerNorm"), parameters, "decoder")))
    return torch.stack(texts)
