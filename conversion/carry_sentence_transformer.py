# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Keeps what makes a folder a sentence-transformers model: its list of modules, and their settings and weights."""

import json
import shutil
from pathlib import Path

from modeling_convbert_composite.conversion.sources import ConversionError, inside


MODULES_FILE = "modules.json"
SETTINGS_FILES = ("config_sentence_transformers.json", "sentence_bert_config.json")

# A module is copied if it is the library's own, and only files that cannot run code.
OWN_MODULES = "sentence_transformers."
SAFE_SUFFIXES = (".json", ".safetensors", ".txt")


def carry_sentence_transformer(source: Path, output: Path) -> list[str]:
    """
    Copies the modules of a sentence-transformers folder, so that `SentenceTransformer(output)` gives the same
    embeddings. Returns remarks; nothing happens in other folders.
    """
    modules_file = source / MODULES_FILE
    if not modules_file.is_file():
        return []
    inside(source, modules_file)
    try:
        modules = json.loads(modules_file.read_text(encoding="utf-8"))
        paths = [str(module["path"]) for module in modules]
        kinds = [str(module["type"]) for module in modules]
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise ConversionError(f"{str(modules_file)!r} is not a list of modules: {error}.") from error
    foreign = [kind for kind in kinds if not kind.startswith(OWN_MODULES)]
    if foreign:
        return [
            f"The folder's sentence-transformers modules were not carried over: {foreign[0]!r} is code of its own."
        ]
    for name in (MODULES_FILE, *SETTINGS_FILES):
        if (source / name).is_file():
            shutil.copyfile(inside(source, source / name), output / name)
    return [note for path in paths if path for note in copy_module(source, output, path)]


def copy_module(source: Path, output: Path, path: str) -> list[str]:
    """Copies one module's folder; a remark for each file that is left behind."""
    if Path(path).name != path or path in (".", ".."):
        raise ConversionError(f"{MODULES_FILE} names the folder {path!r}, which is not inside its own.")
    notes = []
    for file in sorted((source / path).glob("*")):
        if file.suffix in SAFE_SUFFIXES:
            (output / path).mkdir(exist_ok=True)
            shutil.copyfile(inside(source, file), output / path / file.name)
        else:
            notes.append(f"{path}/{file.name} was not carried over: only {', '.join(SAFE_SUFFIXES)} files are.")
    return notes
