# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The trained checkpoints that the package ships, each a folder with its card."""

from pathlib import Path


FOLDER = Path(__file__).parent


def list_checkpoints() -> list[str]:
    """Names of the shipped checkpoints."""
    return sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def checkpoint_path(name: str) -> Path:
    """
    The folder of a shipped checkpoint, for `AutoModel.from_pretrained` and the tokenizer alike.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in list_checkpoints():
        raise ValueError(f"There is no shipped checkpoint {name!r}; there are: {', '.join(list_checkpoints())}.")
    return FOLDER / name


def find_model(name: str | Path) -> str:
    """
    What `from_pretrained` takes: the folder of a shipped checkpoint for its name, unless a model lies there.

    Raises:
        FileNotFoundError: what can only be a folder is none. (Hugging Face would call it a wrong repository id.)
    """
    text = str(name)
    if text.startswith((".", "/", "~")) and not Path(text).is_dir():
        names = ", ".join(list_checkpoints())
        raise FileNotFoundError(
            f"There is no folder {text}. A model is a folder, a repository id, or shipped: {names}."
        )
    return shipped_or_same(text)


def shipped_or_same(name: str) -> str:
    """`find_model`, of a model that need not be there."""
    is_shipped = name in list_checkpoints() and not (Path(name) / "config.json").is_file()
    return str(checkpoint_path(name)) if is_shipped else name
