# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
What must hold before a folder is published: nothing in it that harms its users or its owner, code as installed, and
proof that it loads in a process that lacks the package, with the same outputs. Every check raises a ValueError of one
line that names the file and the way out.
"""

import fnmatch
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from .card_sections import MARK_PATTERN
from .cards import REPOSITORY_ID, auto_class_of, make_card, read_card, read_config
from .configuration_convbert_composite import ConvBertCompositeConfig
from .modeling_convbert_composite import auto_map
from .run_folders import CHECKPOINTS, DATA, RECORDS
from .saved_files import CARD_FILE, CONFIG_FILE, INDEX_FILE, WEIGHTS_PATTERN, code_files, read_object


# What a training leaves behind that no user of the model needs. Some of it is pickled.
LEFT_OUT = (
    "checkpoint-*",
    "last-checkpoint",
    CHECKPOINTS,
    "runs",
    "tensorboard",
    "predictions-*.jsonl",
    ".git",
    ".cache",
    "__pycache__",
    ".ipynb_checkpoints",
    ".DS_Store",
    "training_args.bin",
    "optimizer.pt",
    "optimizer.bin",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
    "trainer_state.json",
    "*.partial",
)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.joblib", "*.npy", "*.npz")
PICKLE_START = re.compile(rb"\x80[\x02-\x05]")
SECRET_NAMES = (
    ".env*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "*.netrc",
    "_netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".htpasswd",
    "credentials*",
    "*secret*",
    "token",
    "token.txt",
    "*_token",
    "stored_tokens",
)
SECRET_CONTENT = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bhf_[A-Za-z0-9]{30,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}"
    rb"|\bgithub_pat_[A-Za-z0-9_]{50,}|\bsk-[A-Za-z0-9_-]{32,}|\bxox[abprs]-[A-Za-z0-9-]{20,}"
)
LARGEST_TEXT = 2 << 20

# The same weights on the same machine: nothing but the order of sums may differ.
TOLERANCE = 1e-5


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def sort_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Files to publish, and the names of those that are left out, folders with a slash."""
    chosen, left_out = [], []
    for place, folders, names in os.walk(folder):
        here = Path(place)
        for name in sorted(folders):
            # Or it holds the training text that `pretrain` prepared.
            if matches(name, LEFT_OUT) or (here / name / RECORDS[DATA]).is_file():
                folders.remove(name)
                left_out.append(f"{(here / name).relative_to(folder).as_posix()}/")
            elif (here / name).is_symlink():
                raise ValueError(f"{str(here / name)!r} is a link to a folder: replace it by what it links to.")
        folders.sort()
        for name in sorted(names):
            file = here / name
            if matches(name, LEFT_OUT):
                left_out.append(file.relative_to(folder).as_posix())
            else:
                chosen.append(file)
    return chosen, left_out


def check_files(folder: Path, chosen: list[Path]) -> None:
    """Refuses links that lead out of the folder, pickles, and what looks like a secret."""
    for file in chosen:
        if not file.resolve().is_relative_to(folder.resolve()) or not file.is_file():
            raise ValueError(f"{str(file)!r} is a link that leads out of the folder: replace it by a copy.")
        with file.open("rb") as stream:
            start = stream.read(4)
        if matches(file.name, PICKLES) or PICKLE_START.match(start):
            raise ValueError(
                f"{str(file)!r} is or may be a pickle, which can run code when it is loaded: remove it. Weights "
                "belong in safetensors files."
            )
        if matches(file.name, SECRET_NAMES):
            raise ValueError(f"{str(file)!r} looks like a secret by its name: move it out of the folder.")
        is_text = file.stat().st_size <= LARGEST_TEXT and file.suffix != ".safetensors"
        if is_text and SECRET_CONTENT.search(file.read_bytes()):
            raise ValueError(f"{str(file)!r} holds what looks like an access token or a private key: remove it.")


def check_code(folder: Path) -> None:
    """The code in the folder is the installed package's, all of it, and config.json points to it alone."""
    for file in code_files():
        copy = folder / file.name
        state = "lacks" if not copy.is_file() else "differs in" if copy.read_bytes() != file.read_bytes() else ""
        if state:
            raise ValueError(
                f"{str(folder)!r} {state} {file.name} of the installed package: load the model and save it again."
            )
    values = read_object(folder / CONFIG_FILE) or {}
    if values.get("auto_map") != auto_map():
        raise ValueError(
            f"`auto_map` in {str(folder / CONFIG_FILE)!r} does not name this folder's code for every Auto class: load "
            "the model and save it again."
        )
    settings = read_object(folder / "tokenizer_config.json") or {}
    if "auto_map" in settings:
        raise ValueError(
            f"{str(folder / 'tokenizer_config.json')!r} asks for code of its own (`auto_map`): remove it."
        )


def check_weights(folder: Path) -> None:
    """Weights are there, whole and finite."""
    files = sorted(folder.glob(WEIGHTS_PATTERN))
    if not files:
        raise ValueError(f"{str(folder)!r} holds no {WEIGHTS_PATTERN}: save the model there first.")
    index = read_object(folder / INDEX_FILE) or {}
    weight_map = index.get("weight_map")
    shards = {str(name) for name in weight_map.values()} if isinstance(weight_map, dict) else set()
    missing = sorted(shards - {file.name for file in files})
    if missing:
        raise ValueError(f"{str(folder / missing[0])!r} is missing, though {INDEX_FILE} names it.")
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    if not tensors.get_tensor(name).isfinite().all():
                        raise ValueError(f"Tensor {name!r} of {str(file)!r} holds NaN or infinite values.")
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{str(file)!r} is damaged or not a safetensors file: {error}") from error


def check_finite(model: transformers.PreTrainedModel) -> None:
    """A ValueError that names the first tensor of a model with NaN or infinite values."""
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise ValueError(f"Tensor {name!r} of the model holds NaN or infinite values: nothing was saved.")


def checked_card(folder: Path) -> str:
    """
    The text of the card to publish: a generated one refreshed, one that was written by hand as it is.

    Raises:
        ValueError: metadata that cannot be read, or that names something impossible.
    """
    file = folder / CARD_FILE
    card = read_card(file)
    if card is None or MARK_PATTERN.search(card.text):
        card = make_card(folder)
    data = card.data.to_dict()
    for key in ("base_model", "datasets"):
        names = data.get(key) or []
        for name in [names] if isinstance(names, str) else names:
            if not isinstance(name, str) or not REPOSITORY_ID.fullmatch(name):
                raise ValueError(f"`{key}` in the metadata of {str(file)!r} must be repository ids, got {name!r}.")
    return str(card)


def check_loading(folder: Path) -> float:
    """
    Loads the folder here through the package and elsewhere without it, and compares all outputs.

    Returns the largest difference.

    Raises:
        ValueError: weights are missing or unknown, it does not load without the package, or outputs differ.
    """
    config = read_config(folder)
    auto_class = auto_class_of(config)
    inputs = probe_inputs(config, auto_class)
    model, info = getattr(transformers, auto_class).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    # A bare encoder may have been saved without its pooler, which is then drawn anew at each load.
    has_pooler = not any(name.startswith("pooler.") for name in info["missing_keys"])
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(str(name) for name in info.get(kind) or () if not str(name).startswith("pooler."))
        if names:
            raise ValueError(f"The weights in {str(folder)!r} do not fit the model: {kind} {names[:3]}.")
    with torch.no_grad():
        expected = dict(model.eval()(**inputs).items())
    found = run_probe(folder, auto_class, inputs)
    if found.keys() != expected.keys():
        raise ValueError(f"Without the package the outputs are {sorted(found)}, with it {sorted(expected)}.")
    compared = [name for name in expected if has_pooler or name != "pooler_output"]
    worst = max(float((found[name] - expected[name]).abs().max()) for name in compared)
    scale = max(1.0, *(float(expected[name].abs().max()) for name in compared))
    if not worst <= TOLERANCE * scale:
        raise ValueError(f"Without the package the outputs of {str(folder)!r} differ by {worst:.1e}.")
    return worst


def probe_inputs(config: ConvBertCompositeConfig, auto_class: str) -> dict[str, torch.Tensor]:
    """Two texts of random ids, the second padded; one pair of choices for multiple choice."""
    length = min(12, config.length_limit or 12)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (2, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, -(length // 3) or length :] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if auto_class == "AutoModelForMultipleChoice":
        return {name: tensor[None].contiguous() for name, tensor in inputs.items()}
    return inputs


def run_probe(folder: Path, auto_class: str, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Outputs of `remote_probe.py`, which runs offline, without tokens and with an empty cache."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        save_file(inputs, scratch / "inputs.safetensors")
        environment = {key: value for key, value in os.environ.items() if "TOKEN" not in key}
        environment |= {
            "HF_HOME": str(scratch / "home"),
            "HF_HUB_OFFLINE": "1",
            "HF_MODULES_CACHE": str(scratch / "modules"),
        }
        program = Path(__file__).with_name("remote_probe.py")
        # -P: neither the program's folder nor the working folder is a place of imports.
        command = [sys.executable, "-P", str(program), str(folder.resolve()), auto_class]
        command += [str(scratch / "inputs.safetensors"), str(scratch / "outputs.safetensors")]
        result = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            reason = next((line for line in reversed(result.stderr.splitlines()) if line.strip()), "no reason given")
            raise ValueError(f"{str(folder)!r} does not load without the package: {reason.strip()}")
        return load_file(scratch / "outputs.safetensors")
