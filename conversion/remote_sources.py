# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Sources by repository id: config, weights and tokenizer of a revision, never its code."""

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from modeling_convbert_composite.conversion.sources import ConversionError, one_line


REPOSITORY_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")

SMALL_FILES = ["*.json", "*.txt", "*.model", "README.md"]
SAFETENSORS = "model*.safetensors"
PICKLES = "pytorch_model*.bin"


def find_source(source: str | Path, revision: str | None) -> Path:
    """
    The local folder of a source: itself, or a download of the repository of that id.

    Raises:
        ConversionError: no such folder, no such repository, no connection, a revision of a local folder.
    """
    if Path(source).exists() or not REPOSITORY_ID.fullmatch(str(source)):
        if revision is not None:
            raise ConversionError(f"A revision ({revision!r}) belongs to a repository; {str(source)!r} is a path.")
        return Path(source)
    try:
        folder = Path(snapshot_download(str(source), revision=revision, allow_patterns=[*SMALL_FILES, SAFETENSORS]))
        if not any(folder.glob(SAFETENSORS)):
            snapshot_download(str(source), revision=revision, allow_patterns=[*SMALL_FILES, PICKLES])
    except (OSError, HFValidationError) as error:
        raise ConversionError(
            f"{str(source)!r} is no folder here, and as a repository it could not be fetched: {one_line(error)}"
        ) from error
    return folder
