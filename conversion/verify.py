# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The proof: source and converted model on the same random, padded input, compared output by output."""

import re
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from modeling_convbert_composite import ConvBertCompositeConfig, ConvBertCompositePreTrainedModel
from modeling_convbert_composite.conversion.families import FAMILIES, REFUSED
from modeling_convbert_composite.conversion.families.base import (
    HEADS,
    Family,
    Forward,
    Outputs,
    Plan,
    named_outputs,
    plan_conversion,
    some,
)
from modeling_convbert_composite.conversion.remote_sources import find_source
from modeling_convbert_composite.conversion.report import REPORT_FILE, ConversionReport
from modeling_convbert_composite.conversion.sources import (
    ConversionError,
    Source,
    one_line_errors,
    read_json,
    read_source,
)


DEFAULT_TOLERANCE = 1e-4

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

# Attention in float64 on the CPU: beyond this length the proof would take minutes.
LONGEST_PROOF = 1600


@one_line_errors
def verify(
    source: str | Path,
    converted: str | Path,
    *,
    revision: str | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
) -> ConversionReport:
    """
    Proves again that a converted folder computes what its source does.

    Args:
        source: folder or repository id of the original checkpoint, with its `revision`. converted: our folder.
        tolerance: largest allowed difference.

    What was converted with another family, or cast to another dtype, is compared likewise: the cast itself is left
    out, by comparing the saved weights with a cast of the conversion.

    Returns:
        the report; `passed` is False above the tolerance.

    Raises:
        ConversionError: either folder cannot be read, they have different heads, or the position table was dropped.
    """
    origin = read_source(find_source(source, revision))
    told = earlier_report(Path(converted))
    if told.get("positions_dropped"):
        raise ConversionError(
            f"{str(converted)!r} was converted with `--drop-absolute`: its outputs differ from the source's on "
            "purpose."
        )
    family = detect_family(origin, told.get("family"))
    plan = plan_conversion(family, origin)
    head = plan.head
    model = load_converted(converted, head)
    if told.get("cast_difference"):
        model = undo_cast(model, plan, str(told.get("dtype")))
    return ConversionReport(
        family=family.name,
        head=head,
        source=str(source) if revision is None else f"{source}@{revision}",
        source_sha256=origin.sha256,
        differences=prove(family, origin, head, model),
        tolerance=tolerance,
        parameters=model.num_parameters(),
    )


def earlier_report(converted: Path) -> dict[str, Any]:
    """What `convert` noted beside the weights, as far as it can be read."""
    try:
        return read_json(converted / REPORT_FILE)
    except ConversionError:
        return {}


def undo_cast(model: ConvBertCompositePreTrainedModel, plan: Plan, dtype: str) -> ConvBertCompositePreTrainedModel:
    """The conversion before its cast, once the saved weights are seen to be exactly that cast."""
    whole = build_model(plan)
    saved, expected = model.state_dict(), whole.state_dict()
    for name, tensor in expected.items():
        if name not in saved or not torch.equal(saved[name], tensor.to(DTYPES[dtype]).float()):
            raise ConversionError(f"{name!r} is not what the source gives when it is cast to {dtype}.")
    return whole


def build_model(plan: Plan) -> ConvBertCompositePreTrainedModel:
    """
    Our model with the plan's tensors, in float32.

    Raises:
        ConversionError: a tensor is missing, left over or of another shape, by name.
    """
    options = {} if plan.head else {"add_pooling_layer": any(name.startswith("pooler.") for name in plan.tensors)}
    # Without memory, so that a config of absurd sizes is found out by its shapes.
    with torch.device("meta"):
        model = HEADS[plan.head](plan.config, **options)
    expected = model.state_dict()
    missing = sorted(expected.keys() - plan.tensors.keys())
    if missing:
        raise ConversionError(f"The source has nothing for {some(missing)}.")
    for name, tensor in plan.tensors.items():
        if name not in expected:
            raise ConversionError(f"The source has {name!r}, which config.json leaves no room for.")
        if tensor.shape != expected[name].shape:
            raise ConversionError(
                f"{name!r} has shape {tuple(tensor.shape)} in the source, where its config.json gives "
                f"{tuple(expected[name].shape)}."
            )
    model.load_state_dict(
        {name: tensor.to(torch.float32, copy=True) for name, tensor in plan.tensors.items()}, assign=True
    )
    model.tie_weights()
    return model.eval()


def detect_family(source: Source, name: str | None = None) -> Family:
    """The family of a source, by its content, or the one asked for."""
    if name is not None:
        if name not in FAMILIES:
            raise ConversionError(f"There is no family {name!r}. Families: {', '.join(FAMILIES)}.")
        family = FAMILIES[name]
        if source.model_type not in family.model_types:
            raise ConversionError(
                f"Family {name!r} reads the model types {', '.join(family.model_types)}; config.json says "
                f"{source.model_type!r}. If it is wrong, correct it there."
            )
        return family
    if source.model_type == ConvBertCompositeConfig.model_type:
        raise ConversionError(f"{str(source.folder)!r} is a ConvBertComposite already.")
    if source.model_type in REFUSED:
        raise ConversionError(f"Model type {source.model_type!r} cannot be converted: {REFUSED[source.model_type]}.")
    found = next((family for family in FAMILIES.values() if family.matches(source)), None)
    if found is None:
        raise ConversionError(
            f"A source with `model_type` {source.model_type!r}{did_you_mean(source.model_type)} and tensors such as "
            f"{some(list(source.tensors), 2)} belongs to none of the families {', '.join(FAMILIES)}."
        )
    return found


def did_you_mean(model_type: str) -> str:
    """A hint where a model type looks like a misspelt one that transformers knows."""
    squeezed = re.sub(r"[-_ ]", "", model_type.lower())
    known = next((name for name in CONFIG_MAPPING_NAMES if re.sub(r"[-_]", "", name) == squeezed), None)
    return f" (did you mean {known!r}?)" if known not in (None, model_type) else ""


def load_converted(folder: str | Path, head: str) -> ConvBertCompositePreTrainedModel:
    """Our model from its folder, float32, with nothing missing and nothing left over."""
    folder = Path(folder)
    model_type = read_json(folder / "config.json").get("model_type")
    if model_type != ConvBertCompositeConfig.model_type:
        raise ConversionError(f"{str(folder)!r} is not a converted folder: its model type is {model_type!r}.")
    loaded: Any = HEADS[head].from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    model, info = loaded
    lacking = [name for name in info["missing_keys"] if head or "pooler" not in name]
    for complaint, names in (("lacks", lacking), ("also holds", info["unexpected_keys"])):
        if names:
            raise ConversionError(
                f"{str(folder)!r} {complaint} {some(sorted(names))}: it is not the conversion of that source."
            )
    return model.eval()


def prove(family: Family, source: Source, head: str, model: ConvBertCompositePreTrainedModel) -> dict[str, float]:
    """Largest absolute difference of every output, over all proof inputs, at real tokens."""
    return compare(family.reference(source, head), model, proof_inputs(model.config, head))


def largest_change(
    before: ConvBertCompositePreTrainedModel, after: ConvBertCompositePreTrainedModel, head: str
) -> dict[str, float]:
    """Largest difference of every output between two of our models."""
    return compare(lambda **inputs: forward(before, inputs), after, proof_inputs(before.config, head))


def forward(model: ConvBertCompositePreTrainedModel, inputs: dict[str, torch.Tensor]) -> Outputs:
    with torch.no_grad():
        return named_outputs(model(**inputs, output_hidden_states=True))


def compare(
    reference: Forward, model: ConvBertCompositePreTrainedModel, batches: list[dict[str, torch.Tensor]]
) -> dict[str, float]:
    """Largest difference of every output between a forward pass and a model, over some inputs."""
    worst: dict[str, float] = {}
    for inputs in batches:
        expected = reference(**inputs)
        outputs = forward(model, inputs)
        for name, difference in differences(expected, outputs, inputs["attention_mask"]).items():
            # Written so that NaN stays: max() would lose it.
            worst[name] = worst[name] if difference <= worst.get(name, -1.0) else difference
    return worst


def proof_inputs(config: ConvBertCompositeConfig, head: str) -> list[dict[str, torch.Tensor]]:
    """
    A padded batch (a full row, right padding, a hole, a short row, left padding), longer than every kernel where the
    position table allows it, and one short text alone.
    """
    generator = torch.Generator().manual_seed(0)
    length = proof_length(config)
    mask = torch.ones(5, length, dtype=torch.long)
    mask[1, length * 2 // 3 :] = 0
    mask[2, length // 2] = 0
    mask[3, max(1, length // 5) :] = 0
    mask[4, : length // 3] = 0
    if head == "ForMultipleChoice":
        mask = mask[None]
    batch = random_inputs(config, mask, generator)
    alone = random_inputs(config, torch.ones_like(mask[..., :1, : min(7, length)]), generator)
    return [batch, alone]


def proof_length(config: ConvBertCompositeConfig) -> int:
    """Tokens of the longest proof input: more than the widest kernel reaches, and within the position table."""
    widest = max(config.kernel_size, config.query_key_kernel_size, config.value_kernel_size)
    reach = widest // 2
    length = min(max(24, reach + max(8, reach // 8)), LONGEST_PROOF)
    return length if config.length_limit is None else min(length, config.length_limit)


def reach_note(config: ConvBertCompositeConfig) -> list[str]:
    """A remark if kernels reach farther than the proof's inputs are long."""
    reach = config.kernel_size // 2
    if reach < LONGEST_PROOF:
        return []
    return [
        f"The proof's inputs have {proof_length(config)} tokens, the kernels reach {reach}: the rest is not proved."
    ]


def random_inputs(
    config: ConvBertCompositeConfig, mask: torch.Tensor, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Random ids, the pad id where the mask is 0, random segments, as a model's keyword arguments."""
    ids = torch.randint(0, config.vocab_size, mask.shape, generator=generator)
    types = torch.randint(0, max(config.type_vocab_size, 1), mask.shape, generator=generator)
    if config.pad_token_id is not None:
        ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
        ids[mask == 0] = config.pad_token_id
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def differences(expected: Outputs, outputs: Outputs, mask: torch.Tensor) -> dict[str, float]:
    """Largest differences by name: per token where the mask is 1, per text where its first token is real."""
    is_token = mask.flatten(0, -2).bool()
    found = {}
    for name, reference in expected.items():
        if name not in outputs:
            raise ConversionError(f"The converted model has no output {name!r}.")
        difference = (outputs[name].double() - reference.double()).abs()
        if name == "logits" and mask.dim() == 3:
            difference = difference.flatten()  # (1, choices)
        per_token = difference.shape[:2] == is_token.shape
        selected = difference[is_token] if per_token else difference[is_token[:, 0]]
        found[name] = float(selected.max()) if not selected.isnan().any() else float("nan")
    return found
