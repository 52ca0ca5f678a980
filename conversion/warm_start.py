# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""From a pre-trained encoder to the start of a composite one: kernels of zeros added, the position table dropped."""

from collections.abc import Sequence

import torch
from huggingface_hub.errors import StrictDataclassError

from modeling_convbert_composite import ConvBertCompositeConfig, ConvBertCompositePreTrainedModel
from modeling_convbert_composite.conversion.families.base import Plan, encoder_prefix
from modeling_convbert_composite.conversion.sources import ConversionError, one_line


TERMS = {"fixed": "fixed_kernel", "query": "query_kernel", "key": "key_kernel"}
DEFAULT_KERNEL_SIZE = 17


def add_terms(plan: Plan, terms: Sequence[str], kernel_size: int | None) -> None:
    """
    Switches kernel terms on in a plan, all zeros: the outputs stay what they were.

    Args:
        terms: of `TERMS`. kernel_size: R, if the plan has no kernels yet; 17 by default.

    Raises:
        ConversionError: an unknown term, one that is on already, another size than the kernels that are there.
    """
    unknown = [term for term in terms if term not in TERMS]
    if unknown:
        raise ConversionError(f"There is no term {unknown[0]!r} to add: choose among {', '.join(TERMS)}.")
    if not terms:
        if kernel_size is not None:
            raise ConversionError(f"A kernel size ({kernel_size}) belongs to added terms (`--add-terms`).")
        return
    config = plan.config
    present = [name for name in TERMS.values() if getattr(config, name)]
    doubled = [term for term in terms if TERMS[term] in present]
    if doubled:
        raise ConversionError(f"The source has a {doubled[0]} kernel already.")
    if present and kernel_size not in (None, config.kernel_size):
        raise ConversionError(
            f"The source has kernels of {config.kernel_size} slots; `--kernel-size` must be the same."
        )
    size = config.kernel_size if present else kernel_size or DEFAULT_KERNEL_SIZE
    plan.config = changed(config, kernel_size=size, **{TERMS[term]: True for term in terms})
    shared = (plan.config.head_size, size)
    per_head = (plan.config.num_score_heads, *shared)
    shapes = {
        "fixed": (plan.config.num_score_heads, size),
        "query": per_head if plan.config.kernels_per_head else shared,
        "key": per_head if plan.config.kernels_per_head else shared,
    }
    for layer in range(plan.config.num_hidden_layers):
        for term in terms:
            name = f"{encoder_prefix(plan.head)}encoder.layer.{layer}.attention.self.{TERMS[term]}"
            plan.tensors[name] = torch.zeros(shapes[term])


def changed(config: ConvBertCompositeConfig, **fields: object) -> ConvBertCompositeConfig:
    """A copy of a config with other fields, validated again."""
    try:
        return ConvBertCompositeConfig.from_dict(config.to_dict() | fields)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ConversionError(one_line(error)) from error


def drop_positions(model: ConvBertCompositePreTrainedModel) -> ConvBertCompositePreTrainedModel:
    """
    The model without its position table. Every token gets the mean of the rows instead, by way of the segment table
    (of one row, if there was none), so that states keep their place. Outputs change.
    """
    config = model.config
    if config.position_embedding_type != "absolute":
        raise ConversionError("The source has no position table to drop.")
    tensors = dict(model.state_dict())
    prefix = encoder_prefix("head" if hasattr(model, "convbert_composite") else "")
    positions = tensors.pop(f"{prefix}embeddings.position_embeddings.weight")
    if config.position_ids_rule == "skip_padding":
        positions = positions[(config.pad_token_id or 0) + 1 :]
    segments = f"{prefix}embeddings.token_type_embeddings.weight"
    before = tensors.get(segments, torch.zeros(1, positions.shape[1]))
    tensors[segments] = before + positions.mean(0)
    new_config = changed(config, position_embedding_type="none", type_vocab_size=len(before))
    options = {} if prefix else {"add_pooling_layer": model.pooler is not None}
    dropped = type(model)(new_config, **options)
    dropped.load_state_dict(tensors)
    return dropped.eval()
