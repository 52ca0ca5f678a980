# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
One round trip with a real Hub, in a private repository that is deleted afterwards. Runs only if
CONVBERT_COMPOSITE_HUB_TOKEN holds a token with the right to write (CONTRIBUTING.md).
"""

import os
import uuid
from pathlib import Path

import hub_steps as steps
import pytest
from helpers import HEADS
from hub_client import Client


TOKEN = os.environ.get("CONVBERT_COMPOSITE_HUB_TOKEN")
ENDPOINT = os.environ.get("CONVBERT_COMPOSITE_HUB_ENDPOINT", "https://huggingface.co")


@pytest.mark.skipif(not TOKEN, reason="set CONVBERT_COMPOSITE_HUB_TOKEN to a token that may write")
def test_a_round_trip_with_a_live_hub(tmp_path: Path) -> None:
    HEADS["mlm"].build().save_pretrained(tmp_path / "model")
    publisher = Client(tmp_path / "publisher", ENDPOINT, TOKEN, plugin=True)
    reader = Client(tmp_path / "reader", ENDPOINT, TOKEN)
    repo = f"{publisher.run(steps.api, 'whoami')['name']}/convbert-composite-test-{uuid.uuid4().hex[:8]}"
    try:
        report = publisher.run(steps.push_folder, str(tmp_path / "model"), repo, private=True, tag="v1")
        expected = publisher.run(steps.load_and_run, str(tmp_path / "model"))
        for revision in ("main", "v1", report["commit"]):
            assert reader.run(steps.load_and_run, repo, revision=revision) == expected
        assert "convbert_composite" in reader.run(steps.card_of, repo)["data"]["tags"]
    finally:
        publisher.run(steps.api, "delete_repo", repo, missing_ok=True)
        publisher.close()
        reader.close()
