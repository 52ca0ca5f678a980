# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
A program, not a module: loads a saved folder as somebody does who has no convbert-composite, and writes its outputs.

    python -P remote_probe.py FOLDER AUTO_CLASS INPUTS.safetensors OUTPUTS.safetensors

`hub_checks` runs it in a process of its own, offline and with an empty cache. It runs the code in FOLDER, so that must
have been compared with the installed package before.
"""

import sys
from pathlib import Path


# An import of the package fails, wherever it is installed.
sys.modules["modeling_convbert_composite"] = None  # type: ignore[assignment]

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402


def main(folder: str, auto_class: str, inputs: str, outputs: str) -> None:
    transformers.logging.set_verbosity_error()
    if (Path(folder) / "tokenizer_config.json").is_file():
        transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)("a text")
    loader = getattr(transformers, auto_class)
    model = loader.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
    with torch.no_grad():
        result = model(**load_file(inputs))
    save_file({name: tensor.contiguous() for name, tensor in result.items()}, outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
