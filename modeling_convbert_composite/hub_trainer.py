# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
A Trainer that keeps the model's own card. transformers' Trainer writes a card of its own over README.md whenever it
pushes; here what it knows (hyperparameters, results of the run) is added to the card that stands there instead.
"""

from pathlib import Path
from typing import Any

from transformers import Trainer

from .cards import adopt_sections, write_card
from .saved_files import CARD_FILE, CONFIG_FILE


class HubTrainer(Trainer):
    """transformers' Trainer in everything but `create_model_card`."""

    def create_model_card(self, *arguments: Any, **facts: Any) -> None:
        """
        Writes or refreshes the card in `output_dir`.

        Arguments are the Trainer's: `language`, `license`, `tags`, `dataset`, ...
        """
        if not self.is_world_process_zero():
            return
        file = Path(str(self.args.output_dir)) / CARD_FILE
        own = file.read_text(encoding="utf-8") if file.is_file() else None
        super().create_model_card(*arguments, **facts)
        if own is not None:
            file.write_text(adopt_sections(own, file.read_text(encoding="utf-8")), encoding="utf-8")
        if (file.parent / CONFIG_FILE).is_file():
            write_card(file.parent, title=facts.get("model_name"))
