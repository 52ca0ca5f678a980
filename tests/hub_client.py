# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
A user of the Hub in a process of its own: own cache, own token, with or without the package. The libraries read their
settings when they are imported, so every user needs a process; it is kept, since imports take seconds.
"""

import os
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any


PACKAGE = "modeling_convbert_composite"


class ClientError(Exception):
    """What a step raised in the client's process: `kinds` are the names of its class and bases."""

    def __init__(self, kinds: list[str], message: str, trace: str):
        super().__init__(f"{kinds[0]}: {message}")
        self.kinds, self.message, self.trace = kinds, message, trace


class Client:
    """Runs steps (functions of `hub_steps`, which imports nothing of the package at the top) in its process."""

    def __init__(self, home: Path, endpoint: str, token: str | None = None, *, plugin: bool = False, **env: str):
        self.home = home
        settings = {
            "HF_HOME": str(home),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "DISABLE_SAFETENSORS_CONVERSION": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_TOKEN": token or "",
            **env,
        }
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=prepare, initargs=(settings, plugin))

    def run(self, step: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The step's result; a `ClientError` for whatever it raises."""
        result, error = self.pool.submit(attempt, step, arguments, options).result(timeout=300)
        if error is not None:
            raise ClientError(*error)
        return result

    def close(self) -> None:
        self.pool.shutdown()


def prepare(settings: dict[str, str], plugin: bool) -> None:
    """Runs first in the new process, before any library is imported."""
    os.environ.update(settings)
    if not settings["HF_TOKEN"]:
        del os.environ["HF_TOKEN"]
    if not plugin:
        # An import of the package fails as if it were not installed.
        sys.modules[PACKAGE] = None  # type: ignore[assignment]


def attempt(step: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
    """Result and None, or None and what describes the error: errors of the libraries cannot travel themselves."""
    try:
        return step(*arguments, **options), None
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        if error.__cause__ is not None:
            kinds.append(type(error.__cause__).__name__)
        return None, (kinds, str(error), traceback.format_exc())
