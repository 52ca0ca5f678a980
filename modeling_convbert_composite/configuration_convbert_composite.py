# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The configuration of ConvBertComposite: which terms make up the attention scores, and all sizes."""

import difflib
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from huggingface_hub.dataclasses import strict, validated_field
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN


# Options of other models that this encoder does not have. Ignoring them would compute something else in silence.
UNSUPPORTED_OPTIONS = {
    "is_decoder": "ConvBertComposite is an encoder and has no causal mask",
    "add_cross_attention": "ConvBertComposite is an encoder and has no cross-attention",
}

# Raised when older code would misread what newer code saves: a new meaning of a field, other names of weights.
CODE_VERSION = 1


def check_code_version(version: int) -> None:
    """A ValueError for a checkpoint of newer code."""
    if version < 1:
        raise ValueError(f"`code_version` must be at least 1, got {version}.")
    if version > CODE_VERSION:
        raise ValueError(
            f"This checkpoint was saved by newer code (`code_version` {version}) than that which is loading it "
            f"({CODE_VERSION}). Upgrade convbert-composite; or load the checkpoint by its own code, with "
            "`trust_remote_code=True` in a process that does not import `modeling_convbert_composite`."
        )


@strict
class ConvBertCompositeConfig(PreTrainedConfig):
    r"""
    Configuration of [`ConvBertCompositeModel`] and its heads. The defaults give a BERT-base with composite attention
    (Chang et al. 2021, arXiv 2106.05505) in place of absolute positions. Letters: H heads, D head size, K half-width
    of a kernel in tokens, R = 2K + 1 its slots; the formulas stand in `attention_convbert_composite.py`.

    Args:
        code_version (`int`): Version of the code that saved the checkpoint; newer ones than this code's are refused.
        vocab_size (`int`, defaults to 30522): Rows of the word embeddings.
        hidden_size (`int`, defaults to 768): Width of the encoder.
        num_hidden_layers (`int`, defaults to 12): Layers of the encoder.
        num_attention_heads (`int`, defaults to 12): H, dynamic-convolution heads included.
        intermediate_size (`int`, defaults to 3072): Width of the feed-forward block.
        hidden_act (`str`, defaults to `"gelu"`): Activation of the feed-forward block.
        hidden_dropout_prob (`float`, defaults to 0.1): Dropout of embeddings and of each sub-layer.
        attention_probs_dropout_prob (`float`, defaults to 0.1): Dropout of attention weights and of dynamic kernels.
        max_position_embeddings (`int`, defaults to 512): Rows of the position table. A limit on the length only if
            `position_embedding_type="absolute"`.
        type_vocab_size (`int`, defaults to 2): Rows of the segment table; 0 = no table, segment ids are ignored.
        initializer_range (`float`, defaults to 0.02): Standard deviation of linear maps and embeddings at the start.
        layer_norm_eps (`float`, defaults to 1e-12): Epsilon of every LayerNorm.
        pad_token_id (`int`, *optional*, defaults to 0): Id of the padding token.
        classifier_dropout (`float`, *optional*): Dropout before a classifier; None = `hidden_dropout_prob`.
        tie_word_embeddings (`bool`, defaults to `True`): Whether the MLM decoder shares the word embeddings.
        embedding_size (`int`, *optional*): Width of the embeddings and of their LayerNorm; None = `hidden_size`.
        embedding_projection (`bool`, *optional*): Linear map with bias after the embeddings; None = only if the widths
            differ, True = always (ALBERT).
        attention_head_size (`int`, *optional*): D; None = `hidden_size / num_attention_heads`, which must be whole.
        position_embedding_type (`"none"` or `"absolute"`, defaults to `"none"`): Whether there is a position table.
        position_ids_rule (`"sequential"` or `"skip_padding"`, defaults to `"sequential"`): How position ids are made
            when none are given: 0, 1, 2, ..., or as RoBERTa counts (only tokens that are not padding, from
            `pad_token_id + 1`; padding itself gets `pad_token_id`).
        query_key_product (`bool`, defaults to `True`): Term q_i.k_j * s.
        fixed_kernel (`bool`, defaults to `True`): Term F[h, slot(j - i)].
        query_kernel (`bool`, defaults to `True`): Term q_i.U[slot(j - i)] * s.
        key_kernel (`bool`, defaults to `False`): Term k_j.T[slot(i - j)] * s.
        kernel_size (`int`, defaults to 17): R, odd; shared by all kernel terms.
        kernels_per_head (`bool`, defaults to `False`): U and T per head instead of shared by the heads of a layer.
        beyond_kernel (`"clip"` or `"window"`, defaults to `"clip"`): Keys farther than K tokens take the edge slot, or
            are not attended at all.
        depthwise_kernel (`bool`, defaults to `False`): Adds g_h times a depthwise convolution of the values to the
            output.
        depthwise_scale (`"frozen"` or `"learned"`, defaults to `"frozen"`): Whether g is trained.
        query_key_projection (`"linear"`, `"none"`, `"convolution"` or `"depthwise_separable"`, defaults to
            `"linear"`): How queries and keys are made; `"none"` = the hidden states themselves.
        query_key_kernel_size (`int`, defaults to 17): Width of that convolution, odd.
        query_key_groups (`int`, defaults to 1): Its groups (`"convolution"` only).
        query_key_activation (`bool`, defaults to `False`): `hidden_act` between its two steps
            (`"depthwise_separable"` only).
        query_key_mixed (`bool`, defaults to `False`): The first half of the channels from the convolution, the rest
            from a linear map.
        value_projection, value_kernel_size, value_groups, value_activation, value_mixed: The same for the values
            (without `"none"`).
        dynamic_convolution_heads (`int`, defaults to 0): How many heads, the last ones, are ConvBERT's span-based
            dynamic convolutions.
        dynamic_convolution_kernel_size (`int`, defaults to 9): Their width in tokens, odd.
        dynamic_convolution_mode (`"span"`, `"convbert"` or `"reference"`, defaults to `"span"`): span: the kernel is
            read at the query, renormalised at edges and pads, pads are never read. convbert: as transformers' ConvBERT
            (real tokens next to padding read it). reference: as the code of the paper (kernel read at the key).
        classifier_act (`str`, defaults to `"tanh"`): Activation of the pooler, and so of every first-token head.
        mlm_act (`str`, *optional*): Activation of the masked-LM head; None = `hidden_act`.

    Errors name the field, its value and what is allowed. A misspelt field is refused with a hint.

    ```python
    >>> from modeling_convbert_composite import ConvBertCompositeConfig, ConvBertCompositeModel

    >>> config = ConvBertCompositeConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4)
    >>> ConvBertCompositeModel(config).config.query_kernel
    True

    ```
    """

    model_type = "convbert_composite"

    # The first field, so that it is checked before fields that this code may not know.
    code_version: int = validated_field(check_code_version, default=CODE_VERSION)

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-12
    pad_token_id: int | None = 0
    classifier_dropout: float | int | None = None
    tie_word_embeddings: bool = True

    embedding_size: int | None = None
    embedding_projection: bool | None = None
    attention_head_size: int | None = None
    position_embedding_type: Literal["none", "absolute"] = "none"
    position_ids_rule: Literal["sequential", "skip_padding"] = "sequential"

    query_key_product: bool = True
    fixed_kernel: bool = True
    query_kernel: bool = True
    key_kernel: bool = False
    kernel_size: int = 17
    kernels_per_head: bool = False
    beyond_kernel: Literal["clip", "window"] = "clip"
    depthwise_kernel: bool = False
    depthwise_scale: Literal["frozen", "learned"] = "frozen"

    query_key_projection: Literal["linear", "none", "convolution", "depthwise_separable"] = "linear"
    query_key_kernel_size: int = 17
    query_key_groups: int = 1
    query_key_activation: bool = False
    query_key_mixed: bool = False
    value_projection: Literal["linear", "convolution", "depthwise_separable"] = "linear"
    value_kernel_size: int = 17
    value_groups: int = 1
    value_activation: bool = False
    value_mixed: bool = False

    dynamic_convolution_heads: int = 0
    dynamic_convolution_kernel_size: int = 9
    dynamic_convolution_mode: Literal["span", "convbert", "reference"] = "span"

    classifier_act: str = "tanh"
    mlm_act: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        _refuse_misspelt(kwargs, [field.name for field in fields(self)])
        for name, reason in UNSUPPORTED_OPTIONS.items():
            if kwargs.get(name):
                raise ValueError(f"`{name}={kwargs[name]!r}` is not supported: {reason}; leave it out or False.")
        # A classifier saved with two labels and reloaded with one is a regression: transformers refuses the left-over.
        if kwargs.get("num_labels") == 1 and self.problem_type == "single_label_classification":
            self.problem_type = None
        super().__post_init__(**kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """
        As in transformers. `auto_map` names what lies in the folder alone: never the code of another repository, and
        the models only if their code is there (a config that is saved by itself carries its own file).
        """
        folder = Path(save_directory)
        references: dict[str, str] = getattr(self, "auto_map", None) or {}
        self.auto_map = {
            name: reference
            for name, reference in references.items()
            if "--" not in reference and (folder / f"{reference.split('.')[0]}.py").is_file()
        }
        self.code_version = CODE_VERSION
        super().save_pretrained(save_directory, *args, **kwargs)

    # Derived sizes: properties, so that config.json holds each fact once.

    @property
    def head_size(self) -> int:
        """D, the channels of one head."""
        return self.attention_head_size or self.hidden_size // self.num_attention_heads

    @property
    def num_score_heads(self) -> int:
        """Heads that attend by scores; the others are dynamic convolutions."""
        return self.num_attention_heads - self.dynamic_convolution_heads

    @property
    def query_key_size(self) -> int:
        """Channels of queries and keys: those of the heads that attend by scores."""
        return self.num_score_heads * self.head_size

    @property
    def value_size(self) -> int:
        """Channels of the values, of all heads."""
        return self.num_attention_heads * self.head_size

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings before their projection."""
        return self.embedding_size or self.hidden_size

    @property
    def has_embedding_projection(self) -> bool:
        """Whether a linear map stands between embeddings and encoder."""
        if self.embedding_projection is None:
            return self.embedding_width != self.hidden_size
        return self.embedding_projection

    @property
    def length_limit(self) -> int | None:
        """The longest input in tokens that the position table takes, None without one."""
        if self.position_embedding_type != "absolute":
            return None
        skipped = (self.pad_token_id or 0) + 1 if self.position_ids_rule == "skip_padding" else 0
        return self.max_position_embeddings - skipped

    @property
    def uses_query(self) -> bool:
        """Whether anything reads a query."""
        return self.query_key_product or self.query_kernel or self.dynamic_convolution_heads > 0

    @property
    def uses_key(self) -> bool:
        """Whether anything reads a key."""
        return self.query_key_product or self.key_kernel

    @property
    def convolves_hidden_states(self) -> bool:
        """Whether a convolution reads neighbouring hidden states, which must then be zero at padding."""
        convolves_query_key = self.query_key_projection in ("convolution", "depthwise_separable")
        return (
            (convolves_query_key and (self.uses_query or self.uses_key))
            or self.value_projection != "linear"
            or (self.dynamic_convolution_heads > 0 and self.dynamic_convolution_mode != "convbert")
        )

    @property
    def has_convolution(self) -> bool:
        """Whether any convolution reads neighbouring positions (and so does not see the borders of packed texts)."""
        return self.convolves_hidden_states or self.depthwise_kernel or self.dynamic_convolution_heads > 0

    # Validation: every `validate_*` runs after construction and before saving.

    def validate_names(self) -> None:
        """An attribute that was set under a misspelt name would be saved, and refused when it is loaded."""
        names = [field.name for field in fields(self)]
        _refuse_misspelt(
            {key: value for key, value in vars(self).items() if key not in names and key[0] != "_"}, names
        )

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self._validate_sizes()
        self._validate_heads()
        self._validate_embeddings()
        self._validate_terms()
        for part, width in (("query_key", self.query_key_size), ("value", self.value_size)):
            self._validate_projection(part, width)
        self._validate_dynamic_convolution()

    def _validate_sizes(self) -> None:
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
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}.")
        for name in ("type_vocab_size", "dynamic_convolution_heads"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must be at least 0, got {getattr(self, name)}.")
        for name in (
            "kernel_size",
            "query_key_kernel_size",
            "value_kernel_size",
            "dynamic_convolution_kernel_size",
        ):
            size = getattr(self, name)
            if size < 1 or size % 2 == 0:
                raise ValueError(f"`{name}` must be odd and at least 1 (2 * half-width + 1), got {size}.")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"`{name}` must be between 0 and 1, got {value}.")
        for name in ("initializer_range", "layer_norm_eps"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must be at least 0, got {getattr(self, name)}.")
        for name in ("hidden_act", "classifier_act", "mlm_act"):
            value = getattr(self, name)
            if value is not None and value not in ACT2FN:
                raise ValueError(f"`{name}` must be one of {sorted(ACT2FN)}, got {value!r}.")

    def _validate_heads(self) -> None:
        if self.attention_head_size is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`num_attention_heads` ({self.num_attention_heads}) must divide `hidden_size` ({self.hidden_size}), "
                "or `attention_head_size` must say the size of a head."
            )
        if self.dynamic_convolution_heads >= self.num_attention_heads:
            raise ValueError(
                f"`dynamic_convolution_heads` must be below `num_attention_heads` ({self.num_attention_heads}), since "
                f"at least one head has to attend by scores; got {self.dynamic_convolution_heads}."
            )

    def _validate_embeddings(self) -> None:
        if self.embedding_projection is False and self.embedding_width != self.hidden_size:
            raise ValueError(
                f"`embedding_projection=False` needs `embedding_size` ({self.embedding_width}) equal to `hidden_size` "
                f"({self.hidden_size}); leave `embedding_projection` at None."
            )
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"`pad_token_id` must be None or between 0 and `vocab_size` - 1 = {self.vocab_size - 1}, got "
                f"{self.pad_token_id}."
            )
        if self.position_embedding_type == "absolute" and self.position_ids_rule == "skip_padding":
            if self.pad_token_id is None:
                raise ValueError('`position_ids_rule="skip_padding"` needs a `pad_token_id`, got None.')
            if self.max_position_embeddings <= self.pad_token_id + 1:
                raise ValueError(
                    "`max_position_embeddings` must be above `pad_token_id` + 1 with "
                    f'`position_ids_rule="skip_padding"`, got {self.max_position_embeddings} and {self.pad_token_id}.'
                )

    def _validate_terms(self) -> None:
        terms = ("query_key_product", "fixed_kernel", "query_kernel", "key_kernel", "depthwise_kernel")
        if not any(getattr(self, term) for term in terms):
            raise ValueError(f"At least one attention term must be on: {', '.join(f'`{term}`' for term in terms)}.")

    def _validate_projection(self, part: str, width: int) -> None:
        """`part` is `query_key` or `value`; `width` its output channels A."""
        kind = getattr(self, f"{part}_projection")
        groups, activation, mixed = (getattr(self, f"{part}_{option}") for option in ("groups", "activation", "mixed"))
        is_read = self.uses_query or self.uses_key
        if kind == "none" and is_read and width != self.hidden_size:
            raise ValueError(
                f'`{part}_projection="none"` needs heads * head size ({width}) equal to `hidden_size` '
                f"({self.hidden_size})."
            )
        if groups != 1 and kind != "convolution":
            raise ValueError(f'`{part}_groups={groups}` belongs to `{part}_projection="convolution"`, got {kind!r}.')
        if activation and kind != "depthwise_separable":
            raise ValueError(
                f'`{part}_activation=True` belongs to `{part}_projection="depthwise_separable"`, got {kind!r}.'
            )
        if mixed and kind not in ("convolution", "depthwise_separable"):
            raise ValueError(f"`{part}_mixed=True` needs a convolutional `{part}_projection`, got {kind!r}.")
        if mixed and width % 2:
            raise ValueError(f"`{part}_mixed=True` needs an even number of channels (heads * head size), got {width}.")
        outputs = width // 2 if mixed else width
        if self.hidden_size % groups or outputs % groups:
            raise ValueError(
                f"`{part}_groups` must divide the inputs (`hidden_size` {self.hidden_size}) and the convolution's "
                f"outputs ({outputs}), got {groups}."
            )

    def _validate_dynamic_convolution(self) -> None:
        if self.dynamic_convolution_heads == 0:
            return
        for name in ("query_key_projection", "value_projection"):
            if getattr(self, name) != "linear":
                raise ValueError(
                    f'`dynamic_convolution_heads={self.dynamic_convolution_heads}` needs `{name}="linear"`, got '
                    f"{getattr(self, name)!r}."
                )
        if self.depthwise_kernel:
            raise ValueError("`dynamic_convolution_heads` and `depthwise_kernel=True` exclude each other.")


def _refuse_misspelt(extra: dict[str, Any], names: list[str]) -> None:
    """Extra keys are kept, as in any transformers config, unless they look like a field that was meant."""
    for key in extra:
        close = difflib.get_close_matches(key, names, n=1, cutoff=0.85)
        if close:
            raise ValueError(f"`{key}` is not a field of ConvBertCompositeConfig. Did you mean `{close[0]}`?")


__all__ = ["ConvBertCompositeConfig"]
