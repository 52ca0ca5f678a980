# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
What users do with the Hub, as functions that run in a process of their own (`hub_client.Client`). Nothing of the
package is imported at the top, since some users do not have it.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, ModelCard
from transformers import AutoConfig, AutoModel, AutoTokenizer


torch.set_num_threads(1)

# Inputs that every head takes, but for multiple choice.
IDS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 1, 1, 1]]
MASK = [[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]]

Outputs = dict[str, list[Any]]


def run_model(model: Any, auto_class: str) -> Outputs:
    """Every output tensor of the model for the fixed inputs, as nested lists."""
    inputs = {"input_ids": torch.tensor(IDS), "attention_mask": torch.tensor(MASK)}
    if auto_class == "AutoModelForMultipleChoice":
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    with torch.no_grad():
        output = model.eval()(**inputs)
    return {name: tensor.tolist() for name, tensor in output.items()}


def load_and_run(name: str, auto_class: str = "AutoModelForMaskedLM", **options: Any) -> Outputs:
    """Loads a folder or repository, by its code unless told otherwise, and runs it."""
    options = {"trust_remote_code": True, **options}
    return run_model(getattr(transformers, auto_class).from_pretrained(name, **options), auto_class)


def load_all(names: dict[str, str], **options: Any) -> dict[str, Outputs]:
    """Auto class -> outputs of the folder or repository that is named for it."""
    return {auto_class: load_and_run(name, auto_class, **options) for auto_class, name in names.items()}


def class_module(name: str, auto_class: str = "AutoModel", **options: Any) -> str:
    """The module that the loaded class comes from."""
    return str(type(getattr(transformers, auto_class).from_pretrained(name, **options)).__module__)


def tokenize(name: str, text: str) -> list[int]:
    return list(AutoTokenizer.from_pretrained(name, trust_remote_code=True)(text)["input_ids"])


def resave(source: str, target: str, auto_class: str, change: float = 0.0, **options: Any) -> Outputs:
    """Loads, changes every weight a little, saves elsewhere; returns the outputs of what was saved."""
    options = {"trust_remote_code": True, **options}
    model = getattr(transformers, auto_class).from_pretrained(source, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(change)
    model.save_pretrained(target)
    return run_model(model, auto_class)


def resave_config(source: str, target: str) -> None:
    AutoConfig.from_pretrained(source, trust_remote_code=True).save_pretrained(target)


def build_from_config(folder: str, auto_class: str) -> str:
    """Builds a fresh model of a config by its remote code."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    model = getattr(transformers, auto_class).from_config(config, trust_remote_code=True)
    return type(model).__name__


def train(
    source: str, output: str, auto_class: str, trainer: str = "Trainer", steps: int = 2, **arguments: Any
) -> Outputs:
    """Fine-tunes for a few steps with the Trainer, saves at the end; returns the outputs."""
    from transformers import Trainer, TrainingArguments

    trainer_class: Any = Trainer
    if trainer != "Trainer":
        from modeling_convbert_composite.hub_trainer import HubTrainer as trainer_class
    model = getattr(transformers, auto_class).from_pretrained(source, trust_remote_code=True)
    text = {"input_ids": IDS[0], "attention_mask": MASK[0]}
    labels: dict[str, Any] = {"labels": IDS[0]} if auto_class == "AutoModelForMaskedLM" else {"labels": 1}
    settings = {
        "output_dir": output,
        "max_steps": steps,
        "per_device_train_batch_size": 2,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "learning_rate": 1e-2,
        **arguments,
    }
    runner = trainer_class(model=model, args=TrainingArguments(**settings), train_dataset=[{**text, **labels}] * 8)
    runner.train()
    if settings.get("push_to_hub"):
        runner.push_to_hub()
    else:
        runner.save_model()
    return run_model(runner.model, auto_class)


def api(method: str, *arguments: Any, **options: Any) -> Any:
    """A call of `HfApi`, its result as plain values."""
    return plain(getattr(HfApi(), method)(*arguments, **options))


def plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, str | int | float | bool | None):
        return str(value) if isinstance(value, str) else value
    if hasattr(value, "__dict__"):
        return {name: plain(item) for name, item in vars(value).items() if not name.startswith("_")}
    return str(value)


def download(repo: str, path: str, **options: Any) -> str:
    from huggingface_hub import hf_hub_download

    return hf_hub_download(repo, path, **options)


def card_of(repo: str) -> dict[str, Any]:
    """Metadata and text of a repository's card."""
    card = ModelCard.load(repo)
    return {"data": card.data.to_dict(), "text": card.text}


def push_folder(folder: str, repo: str, **options: Any) -> dict[str, Any]:
    """`push` of the package."""
    from modeling_convbert_composite.hub import push

    return plain(push(folder, repo, **options))


def push_unproved(folder: str, repo: str, **options: Any) -> dict[str, Any]:
    """`push` without its load in a third process, which takes seconds and has tests of its own."""
    from unittest.mock import patch

    with patch("modeling_convbert_composite.hub.check_loading", return_value=0.0):
        return push_folder(folder, repo, **options)


def push_model(folder: str, repo: str, auto_class: str = "AutoModelForMaskedLM", **options: Any) -> dict[str, Any]:
    """The library's own way: `model.push_to_hub`."""
    model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)
    return plain(model.push_to_hub(repo, **options))


def run_command(*arguments: str) -> tuple[int, str, str]:
    """The command line: exit code, standard output and error."""
    import contextlib
    import io

    from modeling_convbert_composite.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(arguments))
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()


def run_command_as(token: str, *arguments: str) -> tuple[int, str, str]:
    """The command line as somebody else, or with an empty token as nobody."""
    from unittest.mock import patch

    with patch.dict(os.environ, HF_TOKEN=token):
        return run_command(*arguments)


def push_dataset(folder: str, repo: str, **options: Any) -> None:
    """The library's own way: `push_to_hub` of what a folder of `save_to_disk` holds."""
    from datasets import load_from_disk

    load_from_disk(folder).push_to_hub(repo, **options)


def cached_files() -> list[str]:
    """Everything under the cache of this user, temporary files included."""
    home = Path(os.environ["HF_HOME"])
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


def load_in_parallel(name: str, folder: str, processes: int) -> list[str]:
    """
    Loads a repository in several processes at once, all with the same cache, which has nothing of it; returns what
    each said. A folder is loaded before, so that they need not all import the same libraries.
    """
    from multiprocessing import get_context

    AutoModel.from_pretrained(folder, trust_remote_code=True)
    context = get_context("fork")
    queue: Any = context.Queue()
    barrier = context.Barrier(processes)
    workers = [context.Process(target=load_when_all_are_ready, args=(name, barrier, queue)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    answers = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    return answers


def load_when_all_are_ready(name: str, barrier: Any, queue: Any) -> None:
    barrier.wait()
    try:
        model = AutoModel.from_pretrained(name, trust_remote_code=True)
        queue.put(f"loaded {type(model).__name__}")
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")


def save_shards(source: str, target: str) -> None:
    transformers.AutoModelForMaskedLM.from_pretrained(source, trust_remote_code=True).save_pretrained(
        target, max_shard_size="40KB"
    )


def snapshot(repo: str) -> str:
    from huggingface_hub import snapshot_download

    return snapshot_download(repo)


def load_from_within(folder: str, spelling: str) -> Outputs:
    """Loads a folder by a relative path."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        return load_and_run(spelling)
    finally:
        os.chdir(before)


def resave_without_modules(source: str, target: str) -> None:
    """Saves a model whose code has been deleted from the cache meanwhile."""
    import shutil

    model = transformers.AutoModelForMaskedLM.from_pretrained(source, trust_remote_code=True)
    code = Path(str(sys.modules[type(model).__module__].__file__)).parent
    aside = shutil.move(code, f"{code}.aside")
    try:
        model.save_pretrained(target)
    finally:
        shutil.move(aside, code)
