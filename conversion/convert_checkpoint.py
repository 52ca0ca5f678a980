# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
From a checkpoint of another family to ours: read, lay out, prove, save. Nothing is left behind unless the proof holds.

Run as `convbert-composite convert SOURCE OUTPUT`, as `python -m
modeling_convbert_composite.conversion.convert_checkpoint SOURCE OUTPUT`, or by the path of this file.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from modeling_convbert_composite import ConvBertCompositePreTrainedModel
from modeling_convbert_composite.cards import carried_metadata, write_card
from modeling_convbert_composite.conversion import warm_start
from modeling_convbert_composite.conversion.carry_sentence_transformer import carry_sentence_transformer
from modeling_convbert_composite.conversion.carry_tokenizer import carry_tokenizer
from modeling_convbert_composite.conversion.families.base import plan_conversion
from modeling_convbert_composite.conversion.remote_sources import find_source
from modeling_convbert_composite.conversion.report import REPORT_FILE, ConversionReport
from modeling_convbert_composite.conversion.sources import (
    ConversionError,
    Source,
    inside,
    one_line_errors,
    read_source,
)
from modeling_convbert_composite.conversion.verify import (
    DEFAULT_TOLERANCE,
    DTYPES,
    build_model,
    detect_family,
    largest_change,
    prove,
    reach_note,
)
from modeling_convbert_composite.saved_files import CARD_FILE


@one_line_errors
def convert(
    source: str | Path,
    output: str | Path,
    *,
    family: str | None = None,
    tokenizer: str | Path | None = None,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    overwrite: bool = False,
    add_terms: Sequence[str] = (),
    kernel_size: int | None = None,
    drop_absolute: bool = False,
) -> ConversionReport:
    """
    Converts a checkpoint, proves it, and saves model, tokenizer and report.

    Args:
        source: folder with config.json and weights (safetensors or .bin, sharded or not), or the id of a repository.
        output: folder to write; it must not exist yet, or hold an earlier model if `overwrite`.
        family: a name of `FAMILIES`; found by content if None.
        tokenizer: a SentencePiece `.model` file or a tokenizer folder, if not the source's own.
        revision: branch, tag or commit of a repository.
        dtype: `float32`, `float16` or `bfloat16`, by name or as torch's; None = the source's. The proof runs before
            any cast.
        tolerance: largest absolute difference of an output that still counts as equal.
        overwrite: replace `output`.
        add_terms: kernels to add, of `fixed`, `query`, `key`, all zeros: outputs stay equal, and that is proved.
        kernel_size: slots of added kernels, odd; 17 by default.
        drop_absolute: take the position table away after the proof; outputs then change, and the report says how much.

    Returns:
        the report, also saved as `conversion_report.json` and in the model card.

    Raises:
        ConversionError: the source cannot be converted, or the proof fails. `output` is then untouched.
    """
    # Absolute and without links, so that the folder itself is replaced and not a link to it.
    output = Path(output).resolve()
    dtype_name = None if dtype is None else str(dtype).removeprefix("torch.")
    if dtype_name is not None and dtype_name not in DTYPES:
        raise ConversionError(f"`dtype` must be one of {', '.join(DTYPES)}, got {dtype_name!r}.")
    if not tolerance > 0:
        raise ConversionError(f"`tolerance` must be above 0, got {tolerance}.")
    folder = find_source(source, revision)
    check_output(folder, output, overwrite)
    if tokenizer is not None and not Path(tokenizer).exists():
        raise ConversionError(f"The tokenizer {str(tokenizer)!r} is missing.")
    origin = read_source(folder)
    found = detect_family(origin, family)
    plan = plan_conversion(found, origin)
    warm_start.add_terms(plan, add_terms, kernel_size)
    model = build_model(plan)
    report = ConversionReport(
        family=found.name,
        head=plan.head,
        source=str(source) if revision is None else f"{source}@{revision}",
        source_sha256=origin.sha256,
        differences=prove(found, origin, plan.head, model),
        tolerance=tolerance,
        parameters=model.num_parameters(),
        dropped=plan.dropped,
        notes=[*plan.notes, *reach_note(plan.config)],
        source_card=source_card(source, origin),
    )
    if not report.passed:
        raise ConversionError(
            f"The converted model differs from its source by {report.worst:.1e} ({report.worst_output}), above the "
            f"tolerance {tolerance:.1e}. Nothing was written."
        )
    if drop_absolute:
        model = drop_positions(model, plan.head, report)
    save_dtype = DTYPES[dtype_name] if dtype_name else source_dtype(origin) if plan.exact else torch.float32
    report.dtype = str(save_dtype).removeprefix("torch.")
    report.cast_difference = cast_weights(model, save_dtype)
    with fresh_folder(output) as scratch:
        model.save_pretrained(scratch)
        report.notes += carry_tokenizer(origin, tokenizer, scratch, model.config)
        report.notes += carry_sentence_transformer(origin.folder, scratch)
        report.save(scratch)
        write_card(scratch, title=output.name)
    return report


def source_card(source: str | Path, origin: Source) -> dict[str, Any]:
    """What the card of the conversion takes over from the source's: licence, languages, data, where it came from."""
    is_repository = not Path(source).exists()
    readme = origin.folder / CARD_FILE
    carried = carried_metadata(inside(origin.folder, readme)) if readme.is_file() else {}
    return carried | ({"base_model": str(source)} if is_repository else {})


def drop_positions(
    model: ConvBertCompositePreTrainedModel, head: str, report: ConversionReport
) -> ConvBertCompositePreTrainedModel:
    """The model without its position table, and a remark about what that changed."""
    dropped = warm_start.drop_positions(model)
    change = max(largest_change(model, dropped, head).values())
    report.parameters = dropped.num_parameters()
    report.positions_dropped = True
    report.notes.append(
        f"The position table was dropped after the proof: outputs differ from the source's, by up to {change:.1e}. "
        "Train the model before you use it."
    )
    return dropped


def check_output(source: Path, output: Path, overwrite: bool) -> None:
    """Refuses an output that exists, unless it may be replaced and is a model folder of its own."""
    if Path.cwd().is_relative_to(output):
        raise ConversionError(f"{str(output)!r} is the working folder, or above it: choose a folder of its own.")
    place = source.resolve()
    if output.is_relative_to(place) or place.is_relative_to(output):
        raise ConversionError(f"{str(output)!r} and the source {str(source)!r} lie within each other: choose another.")
    if not output.exists():
        return
    if not output.is_dir():
        raise ConversionError(f"{str(output)!r} exists and is not a folder.")
    if not any(output.iterdir()):
        return
    if not overwrite:
        raise ConversionError(f"{str(output)!r} exists. Choose another folder, or replace it with `--overwrite`.")
    if not (output / REPORT_FILE).is_file():
        raise ConversionError(
            f"{str(output)!r} is not the result of a conversion (no {REPORT_FILE}), so it is not overwritten."
        )


def source_dtype(source: Source) -> torch.dtype:
    """The dtype of all floating-point tensors of the source if it is one we save, else float32."""
    kinds = {tensor.dtype for tensor in source.tensors.values() if tensor.is_floating_point()}
    kind = kinds.pop()
    return kind if not kinds and kind in DTYPES.values() else torch.float32


def cast_weights(model: ConvBertCompositePreTrainedModel, dtype: torch.dtype) -> float | None:
    """Casts the model; returns the largest change of a weight, None if there was nothing to cast."""
    if dtype == torch.float32:
        return None
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.nn.Module.to(model, dtype=dtype)
    return max(float((tensor.float() - before[name]).abs().max()) for name, tensor in model.state_dict().items())


@contextmanager
def fresh_folder(output: Path) -> Iterator[Path]:
    """A folder beside `output` that takes its place when the block ends well, and vanishes when it does not."""
    missing = [parent for parent in output.parents if not parent.exists()]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".convert.", suffix=".partial", dir=output.parent))
    except OSError as error:
        raise ConversionError(f"{str(output)!r} cannot be written: {error.strerror or error}.") from error
    try:
        yield folder
        make_readable(folder)
        replace_folder(folder, output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not output.exists():
            for parent in missing:
                parent.rmdir()


def make_readable(folder: Path) -> None:
    """mkdtemp and safetensors make private files; the result should be as readable as any other."""
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for file in folder.rglob("*"):
        file.chmod((0o777 if file.is_dir() else 0o666) & ~mask)


def replace_folder(folder: Path, output: Path) -> None:
    """Renames `folder` to `output`; an earlier one is deleted only once the new one stands."""
    if not output.exists():
        folder.rename(output)
        return
    aside = folder.with_suffix(".old")
    output.rename(aside)
    try:
        folder.rename(output)
    except OSError:
        aside.rename(output)
        raise
    shutil.rmtree(aside, ignore_errors=True)


if __name__ == "__main__":
    import sys

    from modeling_convbert_composite.cli import main

    main(["convert", *sys.argv[1:]])
