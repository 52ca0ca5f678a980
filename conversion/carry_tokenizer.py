# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Brings the source's tokenizer along: the paper's SentencePiece models are rebuilt, others are carried over."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from modeling_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.conversion.convert_tokenizer import (
    build_tokenizer,
    digit_comma_pieces,
    save_tokenizer,
)
from modeling_convbert_composite.conversion.families.base import is_original
from modeling_convbert_composite.conversion.sources import ConversionError, Source, inside, one_line, read_json


SENTENCEPIECE_FILES = ("spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    *SENTENCEPIECE_FILES,
)


# Of tokenizer_config.json what describes a tokenizer. Anything else may be a path to read, or code to run.
SETTINGS = {
    "tokenizer_class",
    "model_max_length",
    "model_input_names",
    "padding_side",
    "truncation_side",
    "clean_up_tokenization_spaces",
    "added_tokens_decoder",
    "additional_special_tokens",
    "extra_special_tokens",
    *(f"{name}_token" for name in ("unk", "sep", "pad", "cls", "mask", "bos", "eos")),
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "do_basic_tokenize",
    "never_split",
    "add_prefix_space",
    "trim_offsets",
    "errors",
    "keep_accents",
    "remove_space",
    "split_by_punct",
    "vocab_type",
    "add_bos_token",
    "add_eos_token",
}


def carry_tokenizer(
    source: Source, chosen: str | Path | None, output: Path, config: ConvBertCompositeConfig
) -> list[str]:
    """
    Saves the tokenizer into `output`, from the source or from `chosen` (a SentencePiece file or a folder).

    Returns remarks for the user. A source without a tokenizer is one, not an error; a `chosen` one must be there.
    """
    place = Path(chosen) if chosen is not None else source.folder
    model_file = place if place.is_file() else find_sentencepiece(place)
    if model_file is not None and (place.is_file() or is_original(source)):
        return rebuild_sentencepiece(model_file, output, config)
    files = [inside(place, place / name) for name in TOKENIZER_FILES if (place / name).is_file()]
    if not any(file.name in ("tokenizer.json", "vocab.txt", "vocab.json", *SENTENCEPIECE_FILES) for file in files):
        if chosen is not None:
            raise ConversionError(f"{str(place)!r} holds no tokenizer: looked for {', '.join(TOKENIZER_FILES)}.")
        return ["The source has no tokenizer, so none was saved; pass one with `--tokenizer`."]
    tokenizer = load_untrusted(files, source.model_type)
    save(tokenizer, output, config)
    return size_note(tokenizer, config)


def find_sentencepiece(folder: Path) -> Path | None:
    found = next((folder / name for name in SENTENCEPIECE_FILES if (folder / name).is_file()), None)
    return None if found is None else inside(folder, found)


def rebuild_sentencepiece(model_file: Path, output: Path, config: ConvBertCompositeConfig) -> list[str]:
    """The tokenizer of the paper's code as tokenizer.json."""
    try:
        tokenizer = build_tokenizer(
            model_file,
            model_max_length=config.length_limit,
            return_token_type_ids=config.type_vocab_size > 1,
        )
        pieces = digit_comma_pieces(model_file)
    except (ValueError, OSError, ImportError) as error:
        raise ConversionError(one_line(error)) from error
    save_tokenizer(tokenizer, output)
    notes = size_note(tokenizer, config)
    if pieces:
        notes.append(
            f"The vocabulary has {len(pieces)} pieces that end in digit and comma. The original splits them again, "
            "which tokenizer.json cannot express: texts with a comma after a digit may get other ids."
        )
    return notes


def load_untrusted(files: list[Path], model_type: str) -> PreTrainedTokenizerBase:
    """
    Loads a tokenizer from copies of its plain files: no code, no config of the source that could ask for any.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in files:
            if file.suffix == ".json":
                (folder / file.name).write_text(json.dumps(read_settings(file)), encoding="utf-8")
            else:
                shutil.copyfile(file, folder / file.name)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
        try:
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # the tokenizers library raises bare Exceptions
            raise ConversionError(f"The source's tokenizer cannot be loaded: {one_line(error)}") from error


def read_settings(file: Path) -> Any:
    """A JSON file of the tokenizer; of its settings only those that are known to be harmless."""
    if file.name == "tokenizer_config.json":
        return {name: value for name, value in read_json(file).items() if name in SETTINGS}
    if file.name in ("special_tokens_map.json", "tokenizer.json"):
        return read_json(file)
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConversionError(f"{str(file)!r} is not valid JSON: {error}.") from error


def save(tokenizer: PreTrainedTokenizerBase, output: Path, config: ConvBertCompositeConfig) -> None:
    limit = config.length_limit
    if limit is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, limit)
    set_segments(tokenizer, config)
    tokenizer.save_pretrained(output)


def set_segments(tokenizer: PreTrainedTokenizerBase, config: ConvBertCompositeConfig) -> None:
    """
    Has the tokenizer return segment ids just if the model has more than one segment. Classes differ in their defaults,
    and ALBERT's lost them in transformers 5.
    """
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    if config.type_vocab_size > 1:
        names.insert(1, "token_type_ids")
    tokenizer.model_input_names = names
    tokenizer.init_kwargs["model_input_names"] = names


def size_note(tokenizer: PreTrainedTokenizerBase, config: ConvBertCompositeConfig) -> list[str]:
    """A remark if the tokenizer and the word embeddings do not fit each other."""
    if len(tokenizer) < config.vocab_size // 2:
        return [
            f"The tokenizer has only {len(tokenizer)} tokens, the model {config.vocab_size} rows: is it the right one?"
        ]
    if len(tokenizer) <= config.vocab_size:
        return []
    return [
        f"The tokenizer has {len(tokenizer)} tokens, the model only {config.vocab_size} rows: the two do not belong "
        "together, or the model needs `resize_token_embeddings`."
    ]
