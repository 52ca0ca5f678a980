# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The folder of a long run: what it refuses to overwrite, what it records, and where it goes on."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from transformers.utils import logging

from modeling_convbert_composite import records
from modeling_convbert_composite.cards import write_card
from modeling_convbert_composite.configuration_convbert_composite import ConvBertCompositeConfig
from modeling_convbert_composite.saved_files import CONFIG_FILE, read_object
from modeling_convbert_composite.settings import plain, refuse_other_settings


logger = logging.get_logger(__name__)

RESULTS = "results.json"
CHECKPOINTS, DATA = "checkpoints", "data"
# The record in the folders that runs make, by which they are told from those of other people.
RECORDS = {CHECKPOINTS: "settings.json", DATA: "prepared.json"}


def is_of_a_run(path: Path) -> bool:
    """
    Whether a run has made this file or folder of its output before its first checkpoint: records, or what a kill has
    left of them.
    """
    if path.name in RECORDS:
        return (path / RECORDS[path.name]).is_file() or (path.is_dir() and not any(path.iterdir()))
    if path.name.startswith(f".{DATA}."):
        return all(part.name == DATA for part in path.iterdir())
    return path.name == "tensorboard"


class RunSettings(Protocol):
    """The settings that every run has."""

    @property
    def output(self) -> Path: ...
    @property
    def resume(self) -> bool: ...
    @property
    def overwrite(self) -> bool: ...
    @property
    def keep_checkpoints(self) -> bool: ...


@dataclass(frozen=True)
class RunFolder:
    """
    `settings.output`, while a run is in it: checkpoints and settings in `checkpoints/`, `results.json` at the end.

    `free`: names of settings that may differ when a run is resumed. `saves_model`: whether the model is written, too.
    """

    settings: RunSettings
    free: frozenset[str]
    saves_model: bool = True

    @property
    def results(self) -> Path:
        return self.settings.output / RESULTS

    @property
    def checkpoints(self) -> Path:
        return self.settings.output / CHECKPOINTS

    @property
    def record(self) -> Path:
        return self.checkpoints / RECORDS[CHECKPOINTS]

    def check(self) -> None:
        """
        Raises:
            FileExistsError: the output is a file, or holds something that is neither to be resumed nor replaced.
        """
        output = self.settings.output
        if output.exists() and not output.is_dir():
            raise FileExistsError(f"{output} is a file; --output must be a folder.")
        if self.checkpoints.exists() and not is_of_a_run(self.checkpoints):
            raise FileExistsError(
                f"{self.checkpoints} holds something else than a run's checkpoints; move it, or take another --output."
            )
        if self.settings.overwrite or not output.is_dir() or self.has_no_result_yet():
            return
        if not self.settings.resume:
            raise FileExistsError(
                f"{output} is not empty. Take another --output, --overwrite it, or --resume its run."
            )
        if not (self.results.is_file() or self.record.is_file()):
            raise FileExistsError(f"{output} holds no run that --resume could go on with; take another --output.")

    def has_no_result_yet(self) -> bool:
        """Whether there is nothing but what a run prepares before its first step."""
        is_ours = all(is_of_a_run(path) for path in self.settings.output.iterdir())
        return is_ours and not any(self.checkpoints.glob("checkpoint-*"))

    def finished_results(self) -> dict[str, Any] | None:
        """What a run that is to be resumed has found, if it has come to its end already."""
        if not self.settings.resume or not self.results.is_file():
            return None
        found = records.read_json(self.results)
        refuse_other_settings(found["settings"], self.settings, self.free, self.settings.output)
        self.close()
        return found | {name: records.with_nans(found[name]) for name in ("metrics", "measures") if name in found}

    def prepare(self) -> None:
        """Makes the folder and records the settings; refuses to go on with those of another run. Main process only."""
        if not records.is_main_process():
            return
        if self.settings.resume and self.record.is_file():
            refuse_other_settings(records.read_json(self.record), self.settings, self.free, self.settings.output)
            return
        if self.settings.overwrite:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            self.results.unlink(missing_ok=True)
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        records.write_json(self.record, plain(self.settings))

    def close(self) -> None:
        """What follows `results.json`, once more if a kill came between: the card, and checkpoints that may go."""
        if not records.is_main_process():
            return
        output = self.settings.output
        config = read_object(output / CONFIG_FILE) or {}
        # Models of other kinds get no card.
        if self.saves_model and config.get("model_type") == ConvBertCompositeConfig.model_type:
            write_card(output)
        if not self.settings.keep_checkpoints:
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def last_checkpoint(self) -> str | None:
        """Where to resume: the last checkpoint that was written to its end, which is the state of the Trainer."""
        if not self.settings.resume:
            return None
        found = []
        for folder in self.checkpoints.glob("checkpoint-*"):
            try:
                records.read_json(folder / "trainer_state.json")
            except (OSError, ValueError):
                continue
            found.append((int(folder.name.rpartition("-")[2]), str(folder)))
        if not found:
            logger.warning(f"{self.settings.output} has no whole checkpoint; starting from the beginning.")
            return None
        return max(found)[1]
