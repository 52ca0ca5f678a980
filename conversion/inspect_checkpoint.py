# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What a checkpoint folder holds, for `convbert-composite info`."""

from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.conversion.report import REPORT_FILE
from modeling_convbert_composite.conversion.sources import (
    ConversionError,
    one_line,
    read_json,
    read_source,
    weight_files,
)
from modeling_convbert_composite.conversion.verify import detect_family
from modeling_convbert_composite.description import features, formula
from modeling_convbert_composite.saved_files import stored_size


Section = tuple[str, list[list[str]]]


def describe_checkpoint(path: str | Path) -> list[Section]:
    """
    Titles and rows about a folder: architecture, sizes and origin of one of ours; family of one to convert.

    Raises:
        ConversionError: no such folder, or a damaged one.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConversionError(f"{str(folder)!r} is not a folder.")
    values = read_json(folder / "config.json")
    if values.get("model_type") != ConvBertCompositeConfig.model_type:
        return [describe_foreign(folder)]
    try:
        config = ConvBertCompositeConfig.from_dict(values)
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise ConversionError(f"{str(folder / 'config.json')!r} does not fit: {one_line(error)}") from error
    sections = [
        ("Architecture", [["class", ", ".join(config.architectures or ["not said"])], *architecture(config)]),
        ("Weights", weights(folder)),
    ]
    if (folder / REPORT_FILE).is_file():
        sections.append(("Origin", origin(read_json(folder / REPORT_FILE))))
    return sections


def architecture(config: ConvBertCompositeConfig) -> list[list[str]]:
    return [
        ["attention", formula(config)],
        ["features", "; ".join(features(config))],
        ["layers", str(config.num_hidden_layers)],
        ["hidden size", str(config.hidden_size)],
        ["embedding size", str(config.embedding_width)],
        ["heads", f"{config.num_attention_heads}, each {config.head_size} wide"],
        ["feed-forward", str(config.intermediate_size)],
        ["vocabulary", f"{config.vocab_size:,}"],
        ["segments", str(config.type_vocab_size)],
    ]


def weights(folder: Path) -> list[list[str]]:
    """Parameters and dtypes, from the headers of the files alone."""
    files = weight_files(folder)
    try:
        parameters, dtypes = stored_size(files)
    except ValueError as error:
        raise ConversionError(one_line(error)) from error
    return [
        ["parameters", f"{parameters:,}"],
        ["dtype", ", ".join(dtypes)],
        ["files", ", ".join(file.name for file in files)],
    ]


def origin(report: dict[str, Any]) -> list[list[str]]:
    """Rows about a conversion. The report is a file that anybody may have edited."""
    notes = report.get("notes")
    return [
        ["family", str(report.get("family"))],
        ["source", str(report.get("source"))],
        ["source SHA-256", str(report.get("source_sha256"))],
        ["largest difference", f"{number(report.get('worst'))} (tolerance {number(report.get('tolerance'))})"],
        *([["note", str(note)] for note in notes] if isinstance(notes, list) else []),
    ]


def number(value: Any) -> str:
    return f"{value:.1e}" if isinstance(value, int | float) else "not said"


def describe_foreign(folder: Path) -> Section:
    source = read_source(folder)
    family = detect_family(source)
    return (
        "Not converted yet",
        [
            ["family", family.name],
            ["what converts", family.exact],
            ["numbers in the file", f"{sum(tensor.numel() for tensor in source.tensors.values()):,}"],
            ["next", f"convbert-composite convert {folder} OUTPUT"],
        ],
    )
