# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The modules of ConvBertComposite that own parameters: embeddings, projections, attention, layers, pooler, MLM head.

They call the maths of `attention_convbert_composite.py` and repeat none of it. Letters as there: B batch, H heads,
L length, D head size, C channels of the hidden states, A = H * D.
"""

import math

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.pytorch_utils import apply_chunking_to_forward
from transformers.utils import TransformersKwargs

from .attention_convbert_composite import (
    TAP_WEIGHTS,
    add_up,
    attention_map_of_taps,
    convolution,
    depthwise_separable,
    depthwise_values,
    dynamic_convolution,
    fixed_kernel,
    is_additive,
    key_kernel,
    narrow_mask,
    position_bias,
    query_kernel,
    zero_padding,
)
from .backends_convbert_composite import backend_with_terms, eager_attention_forward
from .configuration_convbert_composite import ConvBertCompositeConfig
from .fast_attention_convbert_composite import KernelTerms
from .packing_convbert_composite import Packing


class ConvBertCompositeEmbeddings(nn.Module):
    """Words, segments and, if the config says so, absolute positions; LayerNorm; projection to the encoder's width."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__()
        self.config = config
        width = config.embedding_width
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        if config.type_vocab_size > 0:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        if config.position_embedding_type == "absolute":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        if config.has_embedding_projection:
            self.projection = nn.Linear(width, config.hidden_size)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        text_positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`text_positions` (B, L) where each token is in its text, if rows hold several. -> (B, L, C)."""
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds  # (B, L, E)
        if self.config.type_vocab_size > 0:
            if token_type_ids is None:
                token_type_ids = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        if self.config.position_embedding_type == "absolute":
            if position_ids is None:
                position_ids = self.make_position_ids(input_ids, embeddings, text_positions)
            embeddings = embeddings + self.position_embeddings(position_ids)
        embeddings = self.dropout(self.LayerNorm(embeddings))
        return self.projection(embeddings) if self.config.has_embedding_projection else embeddings

    def make_position_ids(
        self, input_ids: torch.Tensor | None, embeddings: torch.Tensor, text_positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Position ids (B or 1, L) by `config.position_ids_rule`; too long an input is a ValueError."""
        length, limit = embeddings.shape[1], self.config.length_limit or 0
        position_ids = torch.arange(length, device=embeddings.device)[None]
        if text_positions is not None:
            position_ids = text_positions
            if length > limit:
                length = int(position_ids.max()) + 1
        if self.config.position_ids_rule == "skip_padding":
            # The config refuses this rule without a pad id.
            pad = self.config.pad_token_id or 0
            if input_ids is None or text_positions is not None:
                position_ids = position_ids + pad + 1
            else:
                is_token = torch.ne(input_ids, pad)
                position_ids = is_token.cumsum(1) * is_token + pad
                if length > limit:
                    length = int(position_ids.max()) - pad
        if length > limit:
            raise ValueError(
                f"An input of {length} tokens is longer than the position table: "
                f"`max_position_embeddings={self.config.max_position_embeddings}` allows {limit}. Truncate the input "
                '(`tokenizer(..., truncation=True)`) or use a model with `position_embedding_type="none"`.'
            )
        return position_ids


class ConvBertCompositeConvolution(nn.Conv1d):
    """One grouped convolution over positions, (B, L, C) -> (B, L, outputs)."""

    def __init__(self, inputs: int, outputs: int, kernel_size: int, groups: int):
        super().__init__(inputs, outputs, kernel_size, padding=kernel_size // 2, groups=groups)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return convolution(hidden_states, self.weight, self.bias, self.groups)


class ConvBertCompositeSeparableConvolution(nn.Module):
    """Depthwise convolution, activation if there is one, linear map: (B, L, C) -> (B, L, outputs)."""

    def __init__(self, inputs: int, width: int, outputs: int, kernel_size: int, activation: str | None):
        super().__init__()
        channels = math.ceil(width / inputs) * inputs
        self.depthwise = ConvBertCompositeConvolution(inputs, channels, kernel_size, groups=inputs)
        self.pointwise = nn.Linear(channels, outputs)
        self.activation = ACT2FN[activation] if activation is not None else None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return depthwise_separable(
            hidden_states,
            (self.depthwise.weight, self.depthwise.bias),
            (self.pointwise.weight, self.pointwise.bias),
            self.activation,
        )


class ConvBertCompositeMixedProjection(nn.Module):
    """The first half of the channels from a convolution, the second from a linear map."""

    def __init__(self, convolutional: nn.Module, linear: nn.Linear):
        super().__init__()
        self.convolution = convolutional
        self.linear = linear

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.convolution(hidden_states), self.linear(hidden_states)], dim=-1)


def build_projection(config: ConvBertCompositeConfig, part: str, width: int) -> nn.Module:
    """The projection of `part`, `query_key` or `value`, to `width` channels, as the config's `{part}_*` fields say."""
    kind, kernel_size, groups, activation, mixed = (
        getattr(config, f"{part}_{field}") for field in ("projection", "kernel_size", "groups", "activation", "mixed")
    )
    inputs = config.hidden_size
    if kind == "none":
        return nn.Identity()
    if kind == "linear":
        return nn.Linear(inputs, width)
    outputs = width // 2 if mixed else width
    if kind == "convolution":
        convolutional: nn.Module = ConvBertCompositeConvolution(inputs, outputs, kernel_size, groups)
    else:
        convolutional = ConvBertCompositeSeparableConvolution(
            inputs, width, outputs, kernel_size, config.hidden_act if activation else None
        )
    if not mixed:
        return convolutional
    return ConvBertCompositeMixedProjection(convolutional, nn.Linear(inputs, width - outputs))


class ConvBertCompositeDynamicConvolution(nn.Module):
    """ConvBERT's span-based dynamic convolution heads; `config.dynamic_convolution_mode` says which form."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__()
        self.heads = config.dynamic_convolution_heads
        self.weights_of = TAP_WEIGHTS[config.dynamic_convolution_mode]
        # transformers' ConvBERT is alone in having neither a bias here nor dropout on its kernels.
        is_convbert = config.dynamic_convolution_mode == "convbert"
        self.dropout = nn.Dropout(0.0 if is_convbert else config.attention_probs_dropout_prob)
        taps = config.dynamic_convolution_kernel_size
        self.depthwise = ConvBertCompositeConvolution(config.hidden_size, config.hidden_size, taps, config.hidden_size)
        if is_convbert:
            self.depthwise.bias = None
        self.pointwise = nn.Linear(config.hidden_size, config.query_key_size)
        self.kernel = nn.Linear(config.query_key_size, self.heads * taps)

    def forward(
        self, hidden_states: torch.Tensor, query: torch.Tensor, values: torch.Tensor, token_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        `hidden_states` (B, L, C), `query` (B, L, A of the score heads), `values` (B, L, H, D) of these heads ->
        output (B, L, H, D) and tap weights (B, L, H, T).
        """
        span = self.pointwise(self.depthwise(hidden_states))
        logits = self.kernel(span * query).unflatten(-1, (self.heads, -1))  # (B, L, H, T)
        weights = self.dropout(self.weights_of(logits, token_mask))
        return dynamic_convolution(weights, values), weights


class ConvBertCompositeSelfAttention(nn.Module):
    """Composite attention: owns the projections and kernels, and adds up the terms that the config names."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__()
        self.config = config
        self.is_causal = False
        self.scaling = config.head_size**-0.5
        heads, size, slots = config.num_score_heads, config.head_size, config.kernel_size

        if config.uses_query:
            self.query = build_projection(config, "query_key", config.query_key_size)
        if config.uses_key:
            self.key = build_projection(config, "query_key", config.query_key_size)
        self.value = build_projection(config, "value", config.value_size)

        table = (heads, size, slots) if config.kernels_per_head else (size, slots)
        if config.fixed_kernel:
            self.fixed_kernel = nn.Parameter(torch.empty(heads, slots))
        if config.query_kernel:
            self.query_kernel = nn.Parameter(torch.empty(table))
        if config.key_kernel:
            self.key_kernel = nn.Parameter(torch.empty(table))
        if config.depthwise_kernel:
            width = config.value_size
            self.depthwise_kernel = ConvBertCompositeConvolution(width, width, slots, groups=width)
            # Frozen, it is a buffer: whoever unfreezes all parameters must not train it by accident.
            scale = torch.empty(heads)
            self.depthwise_scale = nn.Parameter(scale) if config.depthwise_scale == "learned" else nn.Buffer(scale)
        if config.dynamic_convolution_heads > 0:
            self.dynamic_convolution = ConvBertCompositeDynamicConvolution(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_mask: torch.Tensor | None = None,
        packing: Packing | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        `hidden_states` (B, L, C), `attention_mask` in the backend's form, `token_mask` (B, L) True at tokens,
        `packing` where texts are if rows hold several -> output (B, L, A) and, from backends that have them, attention
        weights (B, H, L, L).
        """
        if packing is None:
            return self.attend_and_convolve(hidden_states, attention_mask, token_mask, None, **kwargs)
        output, weights = self.attend_and_convolve(
            packing.spread(hidden_states), attention_mask, packing.token_mask, packing.borders, **kwargs
        )
        return packing.collect(output), None if weights is None else packing.collect_pairs(weights)

    def attend_and_convolve(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        token_mask: torch.Tensor | None,
        borders: torch.Tensor | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same for rows as they are; `borders` (B, L, 2) of the texts in them, or None."""
        config = self.config
        if config.convolves_hidden_states:
            hidden_states = zero_padding(hidden_states, token_mask)
        query = self.query(hidden_states) if config.uses_query else self.no_projection(hidden_states)
        key = self.key(hidden_states) if config.uses_key else self.no_projection(hidden_states)
        flat_values = self.value(hidden_states)  # (B, L, A)
        if borders is not None:
            # Beyond a text's border even those convolutions see zeros that read padding otherwise.
            flat_values = zero_padding(flat_values, token_mask)
        values = flat_values.unflatten(-1, (config.num_attention_heads, config.head_size))  # (B, L, H, D)

        score_values = values[:, :, : config.num_score_heads]
        output, weights = self.attend(query, key, score_values, attention_mask, borders, **kwargs)
        if config.depthwise_kernel:
            output = output + depthwise_values(
                flat_values,
                token_mask,
                self.depthwise_kernel.weight,
                self.depthwise_kernel.bias,
                self.depthwise_scale,
            )
        if config.dynamic_convolution_heads > 0:
            convolved, taps = self.dynamic_convolution(
                hidden_states, query, values[:, :, config.num_score_heads :], token_mask
            )
            output = torch.cat([output, convolved], dim=2)
            if weights is not None:
                weights = torch.cat([weights, attention_map_of_taps(taps)], dim=1)
        return output.flatten(2), weights

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        values: torch.Tensor,
        attention_mask: torch.Tensor | None,
        borders: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention by scores: `query`, `key` (B, L, A), `values` (B, L, H, D) -> (B, L, H, D) and the weights."""
        config = self.config
        query, key = self.split_heads(query), self.split_heads(key)
        values = values.transpose(1, 2)  # (B, H, L, D)
        terms = self.kernel_terms(query, key)
        if not config.query_key_product:
            query = key = torch.zeros_like(values)
        attention = backend_with_terms(config._attn_implementation)
        if attention is None:
            return self.attend_with_bias(query, key, values, attention_mask, terms, **kwargs)
        output, _ = attention(
            self,
            query,
            key,
            values,
            attention_mask,
            scaling=self.scaling,
            dropout=self.dropout_rate,
            terms=terms,
            borders=borders,
            **kwargs,
        )
        return output, None

    def attend_with_bias(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        values: torch.Tensor,
        attention_mask: torch.Tensor | None,
        terms: KernelTerms,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same for backends that want all terms as one bias (B, H, L, L). All (B, H, L, D)."""
        backend = self.config._attn_implementation
        window = terms.kernel_size if terms.window else None
        bias = position_bias(terms.query_slots, terms.key_slots, query.shape[2], window)
        bias = None if bias is None else bias.to(query.dtype)
        if backend != "eager" and is_additive(attention_mask):
            # What backends take beside a bias differs between them and between versions; a bias alone they all take.
            bias = add_up(bias, narrow_mask(attention_mask, values.dtype))
            attention_mask = None
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(backend, eager_attention_forward)
        output, weights = attention(
            self,
            query,
            key,
            values,
            attention_mask,
            scaling=self.scaling,
            dropout=self.dropout_rate,
            position_bias=bias,
            **kwargs,
        )
        return output, weights if backend == "eager" else None

    @property
    def dropout_rate(self) -> float:
        return self.config.attention_probs_dropout_prob if self.training else 0.0

    def no_projection(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Zeros (B, L, A of the score heads), in place of a query or key that nothing reads."""
        return hidden_states.new_zeros(*hidden_states.shape[:2], self.config.query_key_size)

    def split_heads(self, states: torch.Tensor) -> torch.Tensor:
        """(B, L, A) -> (B, H, L, D)."""
        return states.unflatten(-1, (-1, self.config.head_size)).transpose(1, 2)

    def kernel_terms(self, query: torch.Tensor, key: torch.Tensor) -> KernelTerms:
        """The slot scores of all kernel terms. `query`, `key` (B, H, L, D)."""
        config = self.config
        query_slots = key_slots = None
        if config.fixed_kernel:
            query_slots = fixed_kernel(self.fixed_kernel)
        if config.query_kernel:
            by_query = query_kernel(query, self.query_kernel, self.scaling)
            if query_slots is not None and query_slots.dtype == by_query.dtype:
                # In place where it can be, as these are the largest of the terms. Autocast has two dtypes.
                query_slots = by_query.add_(query_slots)
            else:
                query_slots = add_up(query_slots, by_query)
        if config.key_kernel:
            key_slots = key_kernel(key, self.key_kernel, self.scaling)
        window = config.beyond_kernel == "window"
        if window and query_slots is None:
            # A window without a kernel on the query's side is a fixed kernel of zeros.
            query_slots = query.new_zeros(1, query.shape[1], 1, config.kernel_size)
        return KernelTerms(query_slots, key_slots, config.kernel_size, window)


class ConvBertCompositeSubLayerOutput(nn.Module):
    """What ends a sub-layer: linear map, dropout, residual, LayerNorm."""

    def __init__(self, config: ConvBertCompositeConfig, inputs: int):
        super().__init__()
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + residual)


class ConvBertCompositeAttention(nn.Module):
    """Self-attention and its output map."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__()
        self.self = ConvBertCompositeSelfAttention(config)
        self.output = ConvBertCompositeSubLayerOutput(config, config.value_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        token_mask: torch.Tensor | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        attended, _ = self.self(hidden_states, attention_mask, token_mask, **kwargs)
        return self.output(attended, hidden_states)


class ConvBertCompositeIntermediate(nn.Module):
    """The wide half of the feed-forward block."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states))


class ConvBertCompositeLayer(GradientCheckpointingLayer):
    """One post-norm encoder layer, (B, L, C) -> (B, L, C)."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__()
        self.chunk_size_feed_forward = config.chunk_size_feed_forward
        self.attention = ConvBertCompositeAttention(config)
        self.intermediate = ConvBertCompositeIntermediate(config)
        self.output = ConvBertCompositeSubLayerOutput(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        token_mask: torch.Tensor | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        attended = self.attention(hidden_states, attention_mask, token_mask, **kwargs)
        return apply_chunking_to_forward(self.feed_forward, self.chunk_size_feed_forward, 1, attended)

    def feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.output(self.intermediate(hidden_states), hidden_states)


class ConvBertCompositeEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__()
        self.layer = nn.ModuleList([ConvBertCompositeLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        token_mask: torch.Tensor | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        for layer in self.layer:
            # Positional, as gradient checkpointing and the recording of hidden states need it.
            hidden_states = layer(hidden_states, attention_mask, token_mask, **kwargs)
        return hidden_states


class ConvBertCompositePooler(nn.Module):
    """The first token's state through a linear map and `classifier_act`: (B, L, C) -> (B, C)."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.classifier_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states[:, 0]))


class ConvBertCompositeMLMHead(nn.Module):
    """Linear map to the embeddings' width, activation, LayerNorm, decoder: (B, L, C) -> (B, L, vocabulary)."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_width)
        self.activation = ACT2FN[config.mlm_act or config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.embedding_width, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.embedding_width, config.vocab_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.LayerNorm(self.activation(self.dense(hidden_states))))


__all__ = [
    "ConvBertCompositeConvolution",
    "ConvBertCompositeEmbeddings",
    "ConvBertCompositeEncoder",
    "ConvBertCompositeLayer",
    "ConvBertCompositeMLMHead",
    "ConvBertCompositePooler",
    "ConvBertCompositeSelfAttention",
]
