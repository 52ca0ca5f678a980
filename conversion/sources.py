# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Reading a checkpoint folder that nobody has vouched for: config and tensors, nothing else. Pickles are read by torch's
weights-only loader and no code of the source runs. What is read as text or copied lies in the folder; only weight
files may be links that lead out of it.
"""

import functools
import hashlib
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING

from modeling_convbert_composite.saved_files import read_object


WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

# Prefixes that wrappers leave on every name: DistributedDataParallel and torch.compile.
WRAPPER_PREFIX = re.compile(r"^((module|_orig_mod)\.)+")

LFS_POINTER = b"version https://git-lfs"

OLD_LAYER_NORM = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


# What a checkpoint is made of; other kinds (sparse, quantised, complex) have no place in ours.
DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


class ConversionError(ValueError):
    """A source that cannot be converted, with the reason in one line."""


@dataclass(frozen=True)
class Source:
    """
    A checkpoint as it was found: its folder, its config.json, its tensors under their own names, its digest, remarks.
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    sha256: str
    notes: tuple[str, ...] = ()

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    def defaults(self) -> dict[str, Any]:
        """What transformers takes for the fields that config.json leaves out; nothing for an unknown model type."""
        if self.model_type not in CONFIG_MAPPING:
            return {}
        return dict(CONFIG_MAPPING[self.model_type]().to_dict())

    def has(self, pattern: str) -> bool:
        """Whether a tensor's name matches the regular expression somewhere."""
        return any(re.search(pattern, name) for name in self.tensors)


Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def one_line_errors(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """
    For what reads files of strangers: whatever goes wrong inside becomes a ConversionError of one line, the original
    error its cause.
    """

    @functools.wraps(function)
    def guarded(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return function(*arguments, **options)
        except ConversionError:
            raise
        except Exception as error:
            raise ConversionError(f"{type(error).__name__}: {one_line(error)}") from error

    return guarded


def one_line(error: BaseException, longest: int = 300) -> str:
    """An exception's text on one line; of a config's validation error the reason alone."""
    if isinstance(error, StrictDataclassError) and error.__cause__ is not None:
        error = error.__cause__
    text = re.sub(r"\s+", " ", str(error)).strip()
    return text if len(text) <= longest else text[:longest] + " ..."


def read_source(folder: str | Path) -> Source:
    """
    Reads config.json and the weights of `folder` (safetensors or .bin, sharded or not).

    Raises:
        ConversionError: anything missing, damaged, unsafe or not finite, naming file or tensor.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConversionError(f"{str(folder)!r} is not a folder; a source is a folder with config.json and weights.")
    config = read_json(inside(folder, folder / "config.json"))
    # Weights may be links, as people keep large files elsewhere: nothing but tensors is read from them.
    files = weight_files(folder)
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        for name, tensor in read_tensors(file).items():
            if name in tensors:
                raise ConversionError(f"Tensor {name!r} stands in more than one file of {str(folder)!r}.")
            tensors[name] = tensor
    tensors = clean_names(tensors)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ConversionError(f"Tensor {name!r} of {str(folder)!r} holds NaN or infinite values.")
    if "model_type" in config:
        return Source(folder, config, tensors, sha256_of(files))
    model_type = infer_model_type(tensors)
    note = f"config.json has no `model_type`; by the names of the tensors it was taken as {model_type!r}."
    return Source(folder, {"model_type": model_type, **config}, tensors, sha256_of(files), (note,))


def inside(folder: Path, file: Path) -> Path:
    """The file, if it lies in `folder` once links are followed; the Hub's cache may link into its own blobs."""
    place = folder.resolve()
    roots = [place, *([place.parent.parent / "blobs"] if place.parent.name == "snapshots" else [])]
    try:
        target = file.resolve()
    except (OSError, RuntimeError) as error:
        raise ConversionError(f"{str(file)!r} is a link that leads nowhere.") from error
    if not any(target.is_relative_to(root) for root in roots):
        raise ConversionError(f"{str(file)!r} leads out of its folder by a link, and was not read.")
    return file


def infer_model_type(tensors: dict[str, torch.Tensor]) -> str:
    """
    The model type of files from before there was one, by the prefix of the tensors' names.

    Raises:
        ConversionError: names without a prefix, which several model types share.
    """
    names = set(tensors)
    for prefix in ("albert", "roberta", "electra", "distilbert", "mpnet", "convbert", "bert"):
        if any(name.startswith(f"{prefix}.") for name in names):
            return prefix
    if any(name.startswith("deberta.") for name in names):
        return "deberta" if any(name.endswith("self.in_proj.weight") for name in names) else "deberta-v2"
    raise ConversionError("config.json has no `model_type`, and the tensors' names do not tell: add it to the file.")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; anything else is a ConversionError."""
    try:
        content = read_object(file)
    except ValueError as error:
        raise ConversionError(str(error)) from error
    if content is None:
        raise ConversionError(f"{str(file)!r} is missing.")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder, shards expanded, safetensors before pickles."""
    found = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if found is None:
        raise ConversionError(f"No weights in {str(folder)!r}: looked for {', '.join(WEIGHT_FILES)}.")
    if found.suffix != ".json":
        return [found]
    weight_map = read_json(found).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConversionError(f"{str(found)!r} has no `weight_map`.")
    shards = sorted({str(name) for name in weight_map.values()})
    for shard in shards:
        if Path(shard).name != shard or shard in ("", ".", ".."):
            raise ConversionError(f"{str(found)!r} names the shard {shard!r}, which is not a file of its own folder.")
        if not (folder / shard).is_file():
            raise ConversionError(f"{str(folder / shard)!r} is missing, though {found.name} names it.")
    return [folder / shard for shard in shards]


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Name -> tensor of one weight file, on the CPU."""
    with file.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise ConversionError(f"{str(file)!r} is a pointer of Git LFS, not the weights: run `git lfs pull`.")
    if file.suffix == ".safetensors":
        try:
            content = load_file(file)
        except (SafetensorError, OSError, ValueError) as error:
            raise ConversionError(f"{str(file)!r} is damaged or not a safetensors file: {error}.") from error
    else:
        content = read_pickle(file)
    if not isinstance(content, dict) or not content:
        raise ConversionError(f"{str(file)!r} must hold named tensors, got {type(content).__name__}.")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise ConversionError(f"{str(file)!r} holds {name!r}, which is no named tensor.")
        if tensor.layout != torch.strided or tensor.dtype not in DTYPES:
            kind = f"{tensor.dtype}, {tensor.layout}".replace("torch.", "")
            raise ConversionError(f"Tensor {name!r} of {str(file)!r} is of a kind that is not read ({kind}).")
    return dict(content)


def read_pickle(file: Path) -> Any:
    """What a torch file holds, by the loader that runs no code."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise ConversionError(
            f"{str(file)!r} is not a plain file of tensors and was not loaded, since a pickle can run code: {reason}"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConversionError(f"{str(file)!r} is damaged or not a torch file: {reason}") from error


def clean_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names without wrapper prefixes and with today's LayerNorm names."""
    cleaned = [(clean_name(name), tensor) for name, tensor in tensors.items()]
    doubled = [name for name, count in Counter(name for name, _ in cleaned).items() if count > 1]
    if doubled:
        raise ConversionError(f"Several tensors would be named {doubled[0]!r} once wrapper prefixes are off.")
    return dict(cleaned)


def clean_name(name: str) -> str:
    name = WRAPPER_PREFIX.sub("", name)
    for old, new in OLD_LAYER_NORM.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def sha256_of(files: list[Path]) -> str:
    """One digest over the weight files, in order."""
    digest = hashlib.sha256()
    for file in files:
        for block in blocks(file):
            digest.update(block)
    return digest.hexdigest()


def blocks(file: Path, size: int = 1 << 20) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while block := stream.read(size):
            yield block
