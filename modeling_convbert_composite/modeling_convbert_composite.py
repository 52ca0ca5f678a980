# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
ConvBertComposite: a BERT whose attention scores are a sum of terms that the config names.

The maths stands in `attention_convbert_composite.py`, the losses in `losses_convbert_composite.py`; here are the
modules that own parameters, and the task heads.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.pytorch_utils import apply_chunking_to_forward
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .attention_convbert_composite import (
    TAP_WEIGHTS,
    attention_map_of_taps,
    convolution,
    depthwise_separable,
    depthwise_values,
    dynamic_convolution,
    eager_attention,
    fixed_kernel,
    key_kernel,
    masked_score,
    position_bias,
    query_kernel,
    zero_padding,
)
from .configuration_convbert_composite import ConvBertCompositeConfig
from .losses_convbert_composite import (
    classification_loss,
    cross_entropy,
    question_answering_loss,
    resolve_problem_type,
    sentence_loss,
)


# Arguments that BERT models elsewhere take. They end in **kwargs here, where they would be ignored in silence.
REFUSED_ARGUMENTS = {
    "head_mask": "transformers 5 has no head masks; zero the head's rows in `attention.output.dense` instead",
    "encoder_hidden_states": "ConvBertComposite is an encoder and has no cross-attention",
    "encoder_attention_mask": "ConvBertComposite is an encoder and has no cross-attention",
    "past_key_values": "ConvBertComposite is an encoder and keeps no cache",
    "cache": "ConvBertComposite is an encoder and keeps no cache",
}


# --------------------------------------------------------------------------------------------------------- embeddings


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
    ) -> torch.Tensor:
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds  # (B, L, E)
        if self.config.type_vocab_size > 0:
            if token_type_ids is None:
                token_type_ids = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        if self.config.position_embedding_type == "absolute":
            if position_ids is None:
                position_ids = self.make_position_ids(input_ids, embeddings)
            embeddings = embeddings + self.position_embeddings(position_ids)
        embeddings = self.dropout(self.LayerNorm(embeddings))
        return self.projection(embeddings) if self.config.has_embedding_projection else embeddings

    def make_position_ids(self, input_ids: torch.Tensor | None, embeddings: torch.Tensor) -> torch.Tensor:
        """Position ids (B or 1, L) by `config.position_ids_rule`; too long an input is a ValueError."""
        length, limit = embeddings.shape[1], self.config.max_position_embeddings
        position_ids = torch.arange(length, device=embeddings.device)[None]
        if self.config.position_ids_rule == "skip_padding":
            offset = self.config.pad_token_id + 1
            position_ids = position_ids + offset
            limit = limit - offset
            if input_ids is not None:
                is_token = input_ids != self.config.pad_token_id
                position_ids = is_token.cumsum(1) * is_token + self.config.pad_token_id
                if length > limit:
                    length = int(position_ids.max()) - self.config.pad_token_id
        if length > limit:
            raise ValueError(
                f"An input of {length} tokens is longer than the position table: "
                f"`max_position_embeddings={self.config.max_position_embeddings}` allows {limit}. Truncate the input "
                '(`tokenizer(..., truncation=True)`) or use a model with `position_embedding_type="none"`.'
            )
        return position_ids


# -------------------------------------------------------------------------------------- projections of q, k and v


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


# ---------------------------------------------------------------------------------------------------------- attention


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


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: torch.Tensor | None = None,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The maths of `eager_attention` behind the signature of transformers' attention interface."""
    output, weights = eager_attention(query, key, value, attention_mask, position_bias, scaling, dropout)
    return output.transpose(1, 2), weights


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
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        `hidden_states` (B, L, C), `attention_mask` in the backend's form, `token_mask` (B, L) True at tokens ->
        output (B, L, A) and, from backends that have them, attention weights (B, H, L, L).
        """
        config = self.config
        if config.convolves_hidden_states:
            hidden_states = zero_padding(hidden_states, token_mask)
        query = self.query(hidden_states) if config.uses_query else None  # (B, L, A of the score heads)
        key = self.key(hidden_states) if config.uses_key else None
        flat_values = self.value(hidden_states)  # (B, L, A)
        values = flat_values.unflatten(-1, (config.num_attention_heads, config.head_size))  # (B, L, H, D)

        output, weights = self.attend(query, key, values[:, :, : config.num_score_heads], attention_mask, **kwargs)
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
        query: torch.Tensor | None,
        key: torch.Tensor | None,
        values: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention by scores: `query`, `key` (B, L, A), `values` (B, L, H, D) -> (B, L, H, D) and the weights."""
        config = self.config
        query, key = (self.split_heads(states) for states in (query, key))
        values = values.transpose(1, 2)  # (B, H, L, D)
        bias = self.score_bias(query, key, values)
        if not config.query_key_product:
            query = key = torch.zeros_like(values)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, eager_attention_forward)
        output, weights = attention(
            self,
            query,
            key,
            values,
            attention_mask,
            scaling=self.scaling,
            dropout=config.attention_probs_dropout_prob if self.training else 0.0,
            position_bias=bias,
            **kwargs,
        )
        return output, weights if config._attn_implementation == "eager" else None

    def split_heads(self, states: torch.Tensor | None) -> torch.Tensor | None:
        """(B, L, A) -> (B, H, L, D)."""
        return None if states is None else states.unflatten(-1, (-1, self.config.head_size)).transpose(1, 2)

    def score_bias(
        self, query: torch.Tensor | None, key: torch.Tensor | None, values: torch.Tensor
    ) -> torch.Tensor | None:
        """The sum of all kernel terms, (B or 1, H, L, L), or None. Arguments (B, H, L, D)."""
        config = self.config
        query_slots = key_slots = None
        if config.fixed_kernel:
            query_slots = fixed_kernel(self.fixed_kernel)
        if config.query_kernel:
            dynamic = query_kernel(query, self.query_kernel, self.scaling)
            query_slots = dynamic if query_slots is None else dynamic + query_slots
        if config.key_kernel:
            key_slots = key_kernel(key, self.key_kernel, self.scaling)
        window = config.kernel_size if config.beyond_kernel == "window" else None
        if window is not None and query_slots is None:
            # A window without a kernel on the query's side is a fixed kernel of zeros.
            query_slots = values.new_zeros(1, values.shape[1], 1, window)
        bias = position_bias(query_slots, key_slots, values.shape[2], window)
        if bias is None:
            return None
        if config._attn_implementation == "flex_attention":
            # It indexes the batch, so that a shared bias would be read out of bounds.
            bias = bias.expand(values.shape[0], -1, -1, -1)
        return bias.to(values.dtype)


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


# ------------------------------------------------------------------------------------------------------ model, masks


class ConvBertCompositePreTrainedModel(PreTrainedModel):
    """Start values, and what transformers must know about every ConvBertComposite model."""

    config_class = ConvBertCompositeConfig
    base_model_prefix = "convbert_composite"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ConvBertCompositeEmbeddings", "ConvBertCompositeLayer"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = False
    _supports_attention_backend = True
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": ConvBertCompositeLayer,
        "attentions": ConvBertCompositeSelfAttention,
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        """
        Linear maps and embeddings (the padding row too) N(0, initializer_range), biases 0, LayerNorm 1 and 0;
        convolutions U(-b, b) with b = fan_in ** -0.5, weight and bias; fixed kernels 0; query and key kernels U(-b, b)
        with b = R ** -0.5; the depthwise scale 1. As the code of the paper starts.
        """
        super()._init_weights(module)
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)
        elif isinstance(module, ConvBertCompositeConvolution):
            bound = (module.weight.shape[1] * module.weight.shape[2]) ** -0.5
            init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, ConvBertCompositeSelfAttention):
            bound = self.config.kernel_size**-0.5
            if self.config.fixed_kernel:
                init.zeros_(module.fixed_kernel)
            if self.config.query_kernel:
                init.uniform_(module.query_kernel, -bound, bound)
            if self.config.key_kernel:
                init.uniform_(module.key_kernel, -bound, bound)
            if self.config.depthwise_kernel:
                init.ones_(module.depthwise_scale)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args, **kwargs) -> str:
        if attn_implementation is not None and "flash" in attn_implementation:
            raise ValueError(
                f"`attn_implementation={attn_implementation!r}` is not supported: flash attention kernels take no "
                'additive bias, and the kernels of composite attention are one. Use "sdpa" (default), '
                '"flex_attention" or "eager".'
            )
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)

    def save_pretrained(self, *args, **kwargs):
        """As in transformers; `auto_map` names the config and every head, not only the one that is saved."""
        self.config.auto_map = auto_map()
        return super().save_pretrained(*args, **kwargs)


class ConvBertCompositeModel(ConvBertCompositePreTrainedModel):
    """
    The bare encoder, with a pooler over the first token.

    Args:
        config (`ConvBertCompositeConfig`): Sizes and attention terms.
        add_pooling_layer (`bool`, defaults to `True`): Whether to add the pooler.
    """

    def __init__(self, config: ConvBertCompositeConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = ConvBertCompositeEmbeddings(config)
        self.encoder = ConvBertCompositeEncoder(config)
        self.pooler = ConvBertCompositePooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding):
        self.embeddings.word_embeddings = value

    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, ...] | BaseModelOutputWithPooling:
        r"""
        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Token ids; either these or `inputs_embeds`.
            attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, `(batch_size, queries, keys)` or
                `(batch_size, 1 or heads, queries, keys)`, *optional*):
                bool, or integers and floats with 1 = attend and 0 = not; a float mask of 3 or 4 dimensions without a
                positive value is added to the scores instead. In masks of 3 or 4 dimensions a position that no query
                sees is padding.
            token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Segment ids, 0 if not given; ignored by a model without a segment table.
            position_ids (`torch.LongTensor` of shape `(batch_size or 1, sequence_length)`, *optional*):
                Rows of the position table; ignored by a model without one. Kernels count tokens, never these.
            inputs_embeds (`torch.Tensor` of shape `(batch_size, sequence_length, embedding_size)`, *optional*):
                Embeddings in place of `input_ids`.

        Raises:
            ValueError: both or neither of `input_ids` and `inputs_embeds`; an input longer than the position table;
                an argument that encoders do not have; a mask with borders that convolutions would cross.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Pass exactly one of `input_ids` and `inputs_embeds`.")
        for name, reason in REFUSED_ARGUMENTS.items():
            if kwargs.get(name) is not None:
                raise ValueError(f"`{name}` is not supported: {reason}.")
        hidden_states = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        attention_mask, token_mask = self.prepare_masks(attention_mask, hidden_states)
        hidden_states = self.encoder(hidden_states, attention_mask, token_mask, **kwargs)
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden_states,
            pooler_output=self.pooler(hidden_states) if self.pooler is not None else None,
        )

    def prepare_masks(
        self, attention_mask: torch.Tensor | None, hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The mask in the form that the attention backend wants, and a bool mask of tokens (B, L)."""
        if attention_mask is None:
            return None, None
        batch, length = hidden_states.shape[:2]
        expected = {
            2: (batch, length),
            3: (batch, length, length),
            4: (batch, attention_mask.shape[1], length, length),
        }
        if attention_mask.dim() == 4 and attention_mask.shape[2] == 1:
            attention_mask = attention_mask.expand(-1, -1, length, -1)
        if attention_mask.shape != expected.get(attention_mask.dim()):
            raise ValueError(
                f"`attention_mask` must have shape ({batch}, {length}), ({batch}, {length}, {length}) or "
                f"({batch}, 1 or heads, {length}, {length}), got {tuple(attention_mask.shape)}."
            )
        if attention_mask.dim() == 2:
            token_mask = attention_mask != 0
            mask = create_bidirectional_mask(
                config=self.config, inputs_embeds=hidden_states, attention_mask=token_mask
            )
            return mask, token_mask
        if attention_mask.dim() == 3:
            attention_mask = attention_mask[:, None]
        visible, additive = read_pairwise_mask(attention_mask, hidden_states.dtype)
        token_mask = visible.any(1).any(1)
        if self.config.has_convolution:
            refuse_borders(visible, token_mask)
        return additive, token_mask


def read_pairwise_mask(mask: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """
    A mask of pairs (B, 1 or H, L, L) of any dtype as who sees whom (bool) and as scores to add (`dtype`).

    Floats are ambiguous: 1 = attend, or an additive mask (0 = attend, very negative = not, in between a bias). A mask
    with a positive value is of the first kind.
    """
    hidden_score = masked_score(dtype)
    zeros = torch.zeros_like(mask, dtype=dtype)
    if not mask.is_floating_point():
        visible = mask != 0
        return visible, zeros.masked_fill(~visible, hidden_score)
    is_additive = ~(mask > 0).any()
    # Whoever writes an additive mask in float16 has -65504 at most, and the original code -10000.
    visible = torch.where(is_additive, mask > -9000, mask > 0)
    scores = torch.where(is_additive, mask.to(dtype), zeros)
    return visible, scores.masked_fill(~visible, hidden_score)


def refuse_borders(visible: torch.Tensor, token_mask: torch.Tensor) -> None:
    """Convolutions read neighbours whatever the mask says: refuse a mask that hides one token from another."""
    pairs = token_mask[:, None, :, None] & token_mask[:, None, None, :]
    crosses = (pairs & ~visible).any()
    message = (
        "`attention_mask` hides tokens from each other, but this model has convolutions (depthwise, in its projections "
        "or dynamic heads), which read across such borders. Give each text a row of its own, use the packing API "
        "(docs/packing.md), or a model whose terms are kernels of the scores only."
    )
    if torch.compiler.is_compiling():
        torch._assert_async(~crosses, message)
    elif crosses:
        raise ValueError(message)


# --------------------------------------------------------------------------------------------------------- task heads


class ConvBertCompositeTaskModel(ConvBertCompositePreTrainedModel):
    """What all heads share: the encoder, and for classifiers dropout and a linear map."""

    pooled = False

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.convbert_composite = ConvBertCompositeModel(config, add_pooling_layer=self.pooled)

    def add_classifier(self, outputs: int):
        rate = self.config.classifier_dropout
        self.dropout = nn.Dropout(self.config.hidden_dropout_prob if rate is None else rate)
        self.classifier = nn.Linear(self.config.hidden_size, outputs)

    def encode(self, **inputs) -> BaseModelOutputWithPooling:
        return self.convbert_composite(**inputs, return_dict=True)


class ConvBertCompositeMLMModel(ConvBertCompositeTaskModel):
    """What the heads with an MLM decoder share: the head, its tying, its resizing."""

    _tied_weights_keys = {  # noqa: RUF012
        "mlm_head.decoder.weight": "convbert_composite.embeddings.word_embeddings.weight"
    }

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__(config)
        self.mlm_head = ConvBertCompositeMLMHead(config)

    def get_output_embeddings(self) -> nn.Linear:
        return self.mlm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.mlm_head.decoder = new_embeddings


class ConvBertCompositeForMaskedLM(ConvBertCompositeMLMModel):
    """The encoder with a masked-language-modelling head."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, ...] | MaskedLMOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Ids to predict; -100 = ignored. Without any label the loss is 0.
        """
        outputs = self.encode(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.mlm_head(outputs.last_hidden_state)
        return MaskedLMOutput(
            loss=cross_entropy(logits, labels, kwargs.get("num_items_in_batch")),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


@dataclass
class ConvBertCompositeForPreTrainingOutput(ModelOutput):
    """
    Output of [`ConvBertCompositeForPreTraining`]: `loss` the sum of the losses whose labels were given,
    `prediction_logits` (batch_size, sequence_length, vocab_size), `seq_relationship_logits` (batch_size, 2).
    """

    loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None
    seq_relationship_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class ConvBertCompositeForPreTraining(ConvBertCompositeMLMModel):
    """The encoder with BERT's two pre-training heads: masked words, and a sentence pair's relation."""

    pooled = True

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__(config)
        self.sentence_head = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        sentence_order_label: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, ...] | ConvBertCompositeForPreTrainingOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Ids to predict; -100 = ignored.
        next_sentence_label (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            0 = the second sentence follows the first, 1 = it does not.
        sentence_order_label (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The same head under ALBERT's name: 0 = in order, 1 = swapped. Only one of the two may be given.

        Each loss counts if its labels are given. To have the Trainer evaluate, set `label_names` to those you have.
        """
        if next_sentence_label is not None and sentence_order_label is not None:
            raise ValueError("Pass only one of `next_sentence_label` and `sentence_order_label`: they share a head.")
        outputs = self.encode(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        prediction_logits = self.mlm_head(outputs.last_hidden_state)
        sentence_logits = self.sentence_head(outputs.pooler_output)
        sentence_labels = next_sentence_label if sentence_order_label is None else sentence_order_label
        num_items = kwargs.get("num_items_in_batch")
        losses = [
            cross_entropy(prediction_logits, labels, num_items),
            sentence_loss(sentence_logits, sentence_labels, labels, num_items),
        ]
        given = [loss for loss in losses if loss is not None]
        return ConvBertCompositeForPreTrainingOutput(
            loss=sum(given[1:], given[0]) if given else None,
            prediction_logits=prediction_logits,
            seq_relationship_logits=sentence_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ConvBertCompositeForSequenceClassification(ConvBertCompositeTaskModel):
    """The encoder with a classifier or a regression over the first token."""

    pooled = True

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__(config)
        self.add_classifier(config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, ...] | SequenceClassifierOutput:
        r"""
        labels (`torch.Tensor` of shape `(batch_size,)` or `(batch_size, num_labels)`, *optional*):
            Class ids (integers, one a text): cross-entropy. Values of shape `(batch_size, num_labels)`: several labels
            at once, or a regression if `config.problem_type="regression"`. With `num_labels=1`: a regression, of shape
            `(batch_size,)` or `(batch_size, 1)`. -100 = ignored.
        """
        outputs = self.encode(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None
        if labels is not None:
            problem_type = resolve_problem_type(self.config.problem_type, self.num_labels, labels)
            if self.config.problem_type != problem_type:
                # Kept, as BERT's head does: a pipeline reads it to choose between softmax, sigmoid and plain values.
                self.config.problem_type = problem_type
            loss = classification_loss(problem_type, logits, labels, kwargs.get("num_items_in_batch"))
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class ConvBertCompositeForTokenClassification(ConvBertCompositeTaskModel):
    """The encoder with a classifier over every token."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__(config)
        self.add_classifier(config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, ...] | TokenClassifierOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Class ids; -100 = ignored.
        """
        outputs = self.encode(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        return TokenClassifierOutput(
            loss=cross_entropy(logits, labels, kwargs.get("num_items_in_batch")),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ConvBertCompositeForQuestionAnswering(ConvBertCompositeTaskModel):
    """The encoder with scores for the start and the end of an answer."""

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, ...] | QuestionAnsweringModelOutput:
        r"""
        start_positions, end_positions (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            First and last token of the answer; a position outside the input is ignored.
        """
        outputs = self.encode(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        return QuestionAnsweringModelOutput(
            loss=question_answering_loss(
                start_logits, end_logits, start_positions, end_positions, kwargs.get("num_items_in_batch")
            ),
            start_logits=start_logits.contiguous(),
            end_logits=end_logits.contiguous(),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ConvBertCompositeForMultipleChoice(ConvBertCompositeTaskModel):
    """The encoder with one score a choice; `config.num_labels` plays no part."""

    pooled = True

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__(config)
        self.add_classifier(1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, ...] | MultipleChoiceModelOutput:
        r"""
        Inputs have one dimension more, `(batch_size, num_choices, sequence_length)`.

        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The right choice, from 0 to `num_choices - 1`.
        """
        num_choices = (input_ids if input_ids is not None else inputs_embeds).shape[1]
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        outputs = self.encode(
            **{name: None if tensor is None else tensor.flatten(0, 1) for name, tensor in inputs.items()}, **kwargs
        )
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(-1, num_choices)
        return MultipleChoiceModelOutput(
            loss=cross_entropy(logits, labels, kwargs.get("num_items_in_batch")),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# Which Auto class loads which model.
AUTO_MODEL_CLASSES = {
    "AutoModel": ConvBertCompositeModel,
    "AutoModelForPreTraining": ConvBertCompositeForPreTraining,
    "AutoModelForMaskedLM": ConvBertCompositeForMaskedLM,
    "AutoModelForSequenceClassification": ConvBertCompositeForSequenceClassification,
    "AutoModelForTokenClassification": ConvBertCompositeForTokenClassification,
    "AutoModelForQuestionAnswering": ConvBertCompositeForQuestionAnswering,
    "AutoModelForMultipleChoice": ConvBertCompositeForMultipleChoice,
}


def auto_map() -> dict[str, str]:
    """What config.json says to those who load a folder without the package: file and class of each Auto class."""
    models = {name: f"modeling_convbert_composite.{cls.__name__}" for name, cls in AUTO_MODEL_CLASSES.items()}
    return {"AutoConfig": "configuration_convbert_composite.ConvBertCompositeConfig", **models}


__all__ = [
    "AUTO_MODEL_CLASSES",
    "ConvBertCompositeForMaskedLM",
    "ConvBertCompositeForMultipleChoice",
    "ConvBertCompositeForPreTraining",
    "ConvBertCompositeForPreTrainingOutput",
    "ConvBertCompositeForQuestionAnswering",
    "ConvBertCompositeForSequenceClassification",
    "ConvBertCompositeForTokenClassification",
    "ConvBertCompositeModel",
    "ConvBertCompositePreTrainedModel",
]
