# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
ConvBertComposite: a BERT whose attention scores are a sum of terms that the config names.

The maths stands in `attention_convbert_composite.py`, the modules in `layers_convbert_composite.py`, the losses in
`losses_convbert_composite.py`; here are the models: the bare encoder and the task heads.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.dynamic_module_utils import custom_object_save
from transformers.masking_utils import create_bidirectional_mask
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
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .attention_convbert_composite import (
    masked_score,
    outside_borders,
    read_pairwise_mask,
    read_token_mask,
    refuse_borders,
)
from .backends_convbert_composite import backend_with_terms
from .configuration_convbert_composite import ConvBertCompositeConfig

# Not used here, but named: transformers makes sure of the files that this one names before it reads what those name,
# so that several first loads at the same time do not meet a file that is not there yet.
from .fast_attention_convbert_composite import KernelTerms as KernelTerms
from .layers_convbert_composite import (
    ConvBertCompositeConvolution,
    ConvBertCompositeEmbeddings,
    ConvBertCompositeEncoder,
    ConvBertCompositeLayer,
    ConvBertCompositeMLMHead,
    ConvBertCompositePooler,
    ConvBertCompositeSelfAttention,
)
from .losses_convbert_composite import (
    IGNORED,
    classification_loss,
    cross_entropy,
    question_answering_loss,
    resolve_problem_type,
    sentence_loss,
)
from .packing_convbert_composite import Packing, make_packing, positions_in_texts


# Arguments that BERT models elsewhere take. They end in **kwargs here, where they would be ignored in silence.
REFUSED_ARGUMENTS = {
    "head_mask": "transformers 5 has no head masks; zero the head's rows in `attention.output.dense` instead",
    "encoder_hidden_states": "ConvBertComposite is an encoder and has no cross-attention",
    "encoder_attention_mask": "ConvBertComposite is an encoder and has no cross-attention",
    "past_key_values": "ConvBertComposite is an encoder and keeps no cache",
    "cache": "ConvBertComposite is an encoder and keeps no cache",
}


class ConvBertCompositePreTrainedModel(PreTrainedModel):
    """Start values, and what transformers must know about every ConvBertComposite model."""

    config: ConvBertCompositeConfig
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
    def _init_weights(self, module: nn.Module) -> None:
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

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        if attn_implementation is not None and "flash" in attn_implementation:
            raise ValueError(
                f"`attn_implementation={attn_implementation!r}` is not supported: flash attention kernels take no "
                'additive bias, and the kernels of composite attention are one. Use "sdpa" (default), '
                '"flex_attention" or "eager".'
            )
        name = super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)
        # A backend that must be built or loaded says so here, where its name was given, not in the middle of a step.
        prepare = getattr(ALL_ATTENTION_FUNCTIONS.get(name), "prepare", None)
        if prepare is not None:
            prepare()
        return name

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """
        As in transformers; `auto_map` names the config and every head, not only the one that is saved.

        The Trainer's folders `checkpoint-N` leave the code beside themselves too: a Trainer that pushes while it
        trains publishes the folder above, and copies config and weights there from the checkpoint, but no code.
        """
        self.config.auto_map = auto_map()
        super().save_pretrained(save_directory, *args, **kwargs)
        folder = Path(save_directory)
        if re.fullmatch(r"checkpoint-\d+", folder.name):
            custom_object_save(self, folder.parent)


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

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = cast(nn.Embedding, value)

    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        sequence_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, ...] | BaseModelOutputWithPooling:
        r"""
        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Token ids; either these or `inputs_embeds`.
            attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, `(batch_size, queries, keys)` or
                `(batch_size, 1 or heads, queries, keys)`, *optional*):
                bool, or integers and floats with 1 = attend and 0 = not. A float mask with other values than these (or
                with zeros only, if it has 3 or 4 dimensions) is additive: 0 = attend, very negative = not. In masks of
                3 or 4 dimensions a position that no query sees is padding.
            token_type_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Segment ids, 0 if not given; ignored by a model without a segment table.
            position_ids (`torch.LongTensor` of shape `(batch_size or 1, sequence_length)`, *optional*):
                Rows of the position table; ignored by a model without one. Kernels count tokens, never these.
            inputs_embeds (`torch.Tensor` of shape `(batch_size, sequence_length, embedding_size)`, *optional*):
                Embeddings in place of `input_ids`.
            sequence_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                For rows that hold several texts: neighbouring tokens with the same id are of one text, and every text
                gets what it would get alone. Padding is what `attention_mask`, of two dimensions, says.

        Raises:
            ValueError: both or neither of `input_ids` and `inputs_embeds`; an input longer than the position table;
                an argument that encoders do not have; a mask with borders that convolutions would cross.
        """
        one_of(input_ids, inputs_embeds)
        for name, reason in REFUSED_ARGUMENTS.items():
            if kwargs.get(name) is not None:
                raise ValueError(f"`{name}` is not supported: {reason}.")
        if sequence_ids is None:
            hidden_states = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
            mask, token_mask = self.prepare_masks(attention_mask, hidden_states)
            hidden_states = self.encoder(hidden_states, mask, token_mask, **kwargs)
        else:
            token_mask = self.packed_token_mask(sequence_ids, attention_mask, input_ids, inputs_embeds)
            positions = positions_in_texts(sequence_ids, token_mask)
            hidden_states = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds, positions)
            packing = make_packing(self.config, sequence_ids, token_mask)
            mask = self.packed_mask(packing, hidden_states.dtype)
            hidden_states = self.encoder(hidden_states, mask, token_mask, packing=packing, **kwargs)
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden_states,
            pooler_output=self.pooler(hidden_states) if self.pooler is not None else None,
        )

    def packed_token_mask(
        self,
        sequence_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Which positions of packed rows are tokens, (B, L) bool, or None if all are."""
        shape = one_of(input_ids, inputs_embeds).shape[:2]
        for name, tensor in (("sequence_ids", sequence_ids), ("attention_mask", attention_mask)):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(
                    f"With `sequence_ids`, `{name}` must have the shape {tuple(shape)} of the input, got "
                    f"{tuple(tensor.shape)}: borders of texts come from `sequence_ids`, padding from `attention_mask`."
                )
        return None if attention_mask is None else read_token_mask(attention_mask)

    def packed_mask(self, packing: Packing, dtype: torch.dtype) -> torch.Tensor | None:
        """The borders as an additive mask (B, 1, S, S) for the backends that do not take them as they are."""
        if backend_with_terms(self.config._attn_implementation) is not None:
            return None
        hidden = outside_borders(packing.borders, slice(0, packing.borders.shape[1]))
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(hidden, masked_score(dtype))

    def prepare_masks(
        self, attention_mask: torch.Tensor | None, hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor | BlockMask | None, torch.Tensor | None]:
        """The mask in the form that the attention backend wants, and a bool mask of tokens (B, L)."""
        if attention_mask is None:
            return None, None
        batch, length = hidden_states.shape[:2]
        heads = {1, self.config.num_score_heads, self.config.num_attention_heads}
        if attention_mask.dim() == 4 and attention_mask.shape[2] == 1:
            attention_mask = attention_mask.expand(-1, -1, length, -1)
        shapes = [(batch, length), (batch, length, length), *((batch, n, length, length) for n in sorted(heads))]
        if tuple(attention_mask.shape) not in shapes:
            raise ValueError(
                f"`attention_mask` must have one of the shapes {', '.join(map(str, shapes))}, got "
                f"{tuple(attention_mask.shape)}."
            )
        if attention_mask.dim() == 2:
            token_mask = read_token_mask(attention_mask)
            return self.padding_mask(token_mask, hidden_states), token_mask
        if attention_mask.dim() == 3:
            attention_mask = attention_mask[:, None]
        visible, additive = read_pairwise_mask(attention_mask, hidden_states.dtype)
        token_mask = visible.any(1).any(1)
        if self.config.has_convolution:
            refuse_borders(visible, token_mask)
        # Of a mask per head, dynamic-convolution heads have no use for theirs.
        return additive[:, : self.config.num_score_heads], token_mask

    def padding_mask(self, token_mask: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor | BlockMask | None:
        """A mask of tokens (B, L) in the form that the attention backend wants, None if all are and it can know."""
        backend = self.config._attn_implementation
        # By key, as a mask of all queries' keys would be (B, 1, L, L); on GPUs flex skips blocks instead.
        is_by_key = backend == "sdpa" or (backend == "flex_attention" and hidden_states.device.type == "cpu")
        if not is_by_key:
            return create_bidirectional_mask(
                config=self.config, inputs_embeds=hidden_states, attention_mask=token_mask
            )
        is_full = not torch.compiler.is_compiling() and bool(token_mask.all())
        return None if is_full else token_mask[:, None, None]


def one_of(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
    """The one that was passed; a ValueError if it is neither or both."""
    given = [tensor for tensor in (input_ids, inputs_embeds) if tensor is not None]
    if len(given) != 1:
        raise ValueError("Pass exactly one of `input_ids` and `inputs_embeds`.")
    return given[0]


class ConvBertCompositeTaskModel(ConvBertCompositePreTrainedModel):
    """What all heads share: the encoder, and for classifiers dropout and a linear map."""

    pooled = False

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__(config)
        self.num_labels: int = config.num_labels or 0
        self.convbert_composite = ConvBertCompositeModel(config, add_pooling_layer=self.pooled)

    def add_classifier(self, outputs: int) -> None:
        rate = self.config.classifier_dropout
        self.dropout = nn.Dropout(self.config.hidden_dropout_prob if rate is None else rate)
        self.classifier = nn.Linear(self.config.hidden_size, outputs)

    def encode(self, **inputs: Any) -> BaseModelOutputWithPooling:
        return self.convbert_composite(**inputs, return_dict=True)


class ConvBertCompositeMLMModel(ConvBertCompositeTaskModel):
    """What the heads with an MLM decoder share: the head, its tying, its resizing."""

    _tied_weights_keys = {  # noqa: RUF012
        "mlm_head.decoder.weight": "convbert_composite.embeddings.word_embeddings.weight"
    }

    def __init__(self, config: ConvBertCompositeConfig):
        super().__init__(config)
        self.mlm_head = ConvBertCompositeMLMHead(config)
        self.ignore_decoder(config.tie_word_embeddings)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As in transformers. A decoder that was untied by hand is saved, whatever the config says."""
        self.ignore_decoder(self.mlm_head.decoder.weight is self.get_input_embeddings().weight)
        super().save_pretrained(save_directory, *args, **kwargs)

    def ignore_decoder(self, is_tied: bool) -> None:
        """A tied decoder is not in the file; told so, the Trainer does not warn that it is missing when it resumes."""
        self._keys_to_ignore_on_save = set(self._tied_weights_keys) if is_tied else set()

    def get_output_embeddings(self) -> nn.Linear:
        return self.mlm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.mlm_head.decoder = cast(nn.Linear, new_embeddings)


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
            loss=None if labels is None else cross_entropy(logits, labels, kwargs.get("num_items_in_batch")),
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
        losses = []
        if labels is not None:
            losses.append(cross_entropy(prediction_logits, labels, num_items))
        if sentence_labels is not None:
            losses.append(sentence_loss(sentence_logits, sentence_labels, labels, num_items))
        return ConvBertCompositeForPreTrainingOutput(
            loss=torch.stack(losses).sum() if losses else None,
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
        self.add_classifier(self.num_labels)
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
        self.add_classifier(self.num_labels)
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
            Class ids; -100 = ignored, and so is padding, whatever its label.
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
        if labels is not None and attention_mask is not None:
            labels = labels.masked_fill(~read_token_mask(attention_mask), IGNORED)
        return TokenClassifierOutput(
            loss=None if labels is None else cross_entropy(logits, labels, kwargs.get("num_items_in_batch")),
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
            First and last token of the answer; -100 and positions beyond the input are ignored.
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
        num_choices = one_of(input_ids, inputs_embeds).shape[1]
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
            loss=None if labels is None else cross_entropy(logits, labels, kwargs.get("num_items_in_batch")),
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
