# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Model cards: facts that are known, none that are not, and what people wrote kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import ALL_HEADS, HEADS, Head
from huggingface_hub import ModelCard, ModelCardData
from original import original_flags, write_original
from test_cli import run

from modeling_convbert_composite.card_sections import parse
from modeling_convbert_composite.cards import PLACE, TASKS, adopt_sections, write_card
from modeling_convbert_composite.configuration import list_presets
from modeling_convbert_composite.conversion import convert
from modeling_convbert_composite.model_cards import render


RESULTS: dict[str, Any] = {
    "task": "text-classification",
    "dataset": {
        "name": "reviews",
        "fingerprint": "0123abcd",
        "files": ["/home/somebody/train.csv"],
        "counts": {"train": 1200, "validation": 300},
    },
    "metrics": {"validation": {"accuracy": 0.875, "f1": 0.8612}, "test": {"accuracy": 0.87}},
    "settings": {"learning_rate": 3e-5, "epochs": 3, "nested": {"a": 1}},
    "environment": {"torch": "2.13.0", "transformers": "5.24.0"},
    "seed": 42,
    "base_model": "ann/composite",
    "command": "convbert-composite finetune ann/composite reviews",
}

TRAINER_CARD = """---
library_name: transformers
tags:
- generated_from_trainer
---

<!-- This model card has been generated automatically according to the information the Trainer had access to. -->

# x

On an unknown dataset.

## Model description

More information needed

## Training procedure

### Results

| 1 |
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    HEADS["sequence"].build().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def card_of(folder: Path) -> ModelCard:
    return ModelCard.load(folder / "README.md")


def give_results(folder: Path, **changes: Any) -> None:
    (folder / "results.json").write_text(json.dumps(RESULTS | changes))


@pytest.mark.parametrize("head", ALL_HEADS, ids=lambda head: head.name)
def test_a_card_of_every_head(head: Head, tmp_path: Path) -> None:
    model = head.build()
    model.save_pretrained(tmp_path / "m")
    write_card(tmp_path / "m")
    card = card_of(tmp_path / "m")
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": TASKS[head.auto_class],
        "tags": ["convbert_composite", "composite-attention"],
    }
    assert "softmax_j(q_i.k_j * s + F[h, slot(j-i)] + q_i.U[slot(j-i)] * s + mask) v" in card.text
    assert f"{model.num_parameters():,} parameters (F32)" in card.text
    assert f'{head.auto_class}.from_pretrained("path/to/this/folder", trust_remote_code=True)' in card.text
    assert list(parse(card.text).sections) == ["Attention", "Use", "Limits", "Citation"]


def test_unknown_facts_are_left_out(folder: Path) -> None:
    text = str(write_card(folder))
    for word in (
        "None",
        "unknown",
        "license",
        "nformation needed",
        "base_model",
        "Training",
        "Results",
        "tokenizer =",
    ):
        assert word not in text


def test_results_become_training_results_and_model_index(folder: Path) -> None:
    give_results(folder)
    write_card(folder)
    card = card_of(folder)
    for part in (
        "**Started from:** ann/composite",
        "**Data:** reviews",
        "**Examples:** train 1,200, validation 300",
        "**Seed:** 42",
        "`convbert-composite finetune ann/composite reviews`",
        "torch 2.13.0, transformers 5.24.0",
        "| learning_rate | 3e-05 |",
        "| validation | f1 | 0.8612 |",
        "| test | accuracy | 0.87 |",
        "[ann/composite](https://huggingface.co/ann/composite)",
    ):
        assert part in card.text
    assert "/home/somebody" not in str(card)
    assert card.data.base_model == "ann/composite"
    assert card.data.metrics == ["accuracy", "f1"]
    assert card.data.datasets is None
    found = {(r.dataset_name, r.dataset_split, r.metric_type, r.metric_value) for r in card.data.eval_results}
    assert found == {
        ("reviews", "validation", "accuracy", 0.875),
        ("reviews", "validation", "f1", 0.8612),
        ("reviews", "test", "accuracy", 0.87),
    }


def test_data_of_the_hub(folder: Path) -> None:
    """Named beside the data of the model that it was made from, unless the author says otherwise."""
    digests = {"train": "0123456789abcdef" * 4, "validation": "fedcba9876543210" * 4, "test": None}
    data = {"name": "you/reviews", "hub_id": "you/reviews", "fingerprint": digests}
    base = folder.parent / "base"
    base.mkdir()
    (base / "README.md").write_text("---\ndatasets: wikipedia\n---\n")
    give_results(folder, dataset=data, base_model=str(base))
    write_card(folder)
    card = card_of(folder)
    assert card.data.datasets == ["wikipedia", "you/reviews"]
    assert {result.dataset_type for result in card.data.eval_results} == {"you/reviews"}
    fingerprint = "**Fingerprint of the data:** train 0123456789abcdef, validation fedcba9876543210\n"
    assert fingerprint in card.text
    write_card(folder, metadata={"datasets": ["mine"]})
    write_card(folder)
    assert card_of(folder).data.datasets == ["mine"]


def test_new_results_take_the_place_of_old_ones(folder: Path) -> None:
    give_results(folder)
    write_card(folder)
    give_results(folder, metrics={"test": {"accuracy": 0.5}}, settings={})
    write_card(folder)
    assert [result.metric_value for result in card_of(folder).data.eval_results] == [0.5]
    assert "0.875" not in card_of(folder).text
    (folder / "results.json").unlink()
    write_card(folder)
    assert "Results" not in parse(card_of(folder).text).sections


@pytest.mark.parametrize(
    "results",
    [
        {},
        {
            "metrics": [],
            "dataset": 3,
            "settings": "x",
            "environment": None,
            "seed": "s",
            "command": 1,
            "base_model": [],
        },
        {"metrics": {"test": {"a": None, "b": "x", "c": True, "d": float("nan"), "e": {}}}},
        {"dataset": {"name": None}, "task": None},
    ],
)
def test_results_of_any_shape(results: dict[str, Any], folder: Path) -> None:
    (folder / "results.json").write_text(json.dumps(results))
    assert "eval_results" not in str(write_card(folder))
    assert "None" not in card_of(folder).text


def test_values_cannot_break_out_of_their_place(folder: Path) -> None:
    give_results(folder, command="x\n\n## Evil\n\n---\nlicense: evil", settings={"a | b\n## Evil": "c | d"})
    write_card(folder, title="one\n## Evil")
    card = card_of(folder)
    assert "Evil" not in parse(card.text).sections
    assert card.data.license is None
    assert r"| a \| b ## Evil | c \| d |" in card.text


def test_what_people_wrote_is_kept(folder: Path) -> None:
    write_card(folder, metadata={"license": "mit"})
    file = folder / "README.md"
    text = file.read_text()
    text = text.replace("# model\n", "# My title\n\nMy introduction.\n")
    text = text.replace("## Limits", "## Findings\n\nMine.\n\n```text\n## not a heading\n```\n\n## Limits")
    text = text.replace("- composite-attention", "- composite-attention\n- my-tag").replace(
        "## Use\n", "## Use\n\nGone.\n"
    )
    file.write_text(text + "\n## Thanks\n\nTo all.\n")
    give_results(folder)
    write_card(folder)
    card = card_of(folder)
    sections = parse(card.text).sections
    assert list(sections) == [
        *("Attention", "Use", "Findings", "Training", "Results", "Limits", "Citation", "Thanks"),
    ]
    assert sections["Findings"] == "Mine.\n\n```text\n## not a heading\n```"
    assert "# My title\n\nMy introduction." in card.text
    assert "Gone." not in card.text
    assert card.data.license == "mit"
    assert card.data.tags == ["convbert_composite", "composite-attention", "my-tag"]
    before = file.read_text()
    write_card(folder)
    assert file.read_text() == before


def test_a_card_that_was_not_generated_is_kept_whole(folder: Path) -> None:
    """A section of a generated one's name wins, also at the next refresh."""
    (folder / "README.md").write_text("# Mine\n\nAll mine.\n\n## Use\n\nAs I say.\n\n## More\n\nMine.\n")
    for _ in range(2):
        write_card(folder)
        sections = parse(card_of(folder).text).sections
        assert sections["Use"] == "As I say."
        assert sections["More"] == "Mine."
        assert list(sections) == ["Attention", "Use", "More", "Limits", "Citation"]
        assert "All mine." in card_of(folder).text


def test_blanks_of_other_programs_go(folder: Path) -> None:
    # What transformers' `push_to_hub` makes when a repository has no card.
    said = "This is the model card of a transformers model. This model card has been automatically generated."
    blank = ModelCard.from_template(ModelCardData(), model_id="x", model_description=said)
    blank.save(folder / "README.md")
    write_card(folder)
    assert "nformation Needed" not in (folder / "README.md").read_text()
    (folder / "README.md").write_text(TRAINER_CARD)
    write_card(folder)
    sections = parse(card_of(folder).text).sections
    assert "Model description" not in sections
    assert sections["Training procedure"] == "### Results\n\n| 1 |"
    assert "unknown dataset" not in card_of(folder).text
    own = "---\nlicense: mit\n---\n\n# Mine\n\n## Training procedure\n\nOld.\n"
    joined = ModelCard(adopt_sections(own, TRAINER_CARD))
    assert joined.data.to_dict()["license"] == "mit"
    assert joined.data.tags == ["generated_from_trainer"]
    assert parse(joined.text).sections == {"Training procedure": "### Results\n\n| 1 |"}


def test_a_conversion_carries_licence_and_origin(tmp_path: Path) -> None:
    source = write_original(tmp_path / "source", original_flags(attention_kernel="qk_convfixed_convq 3"))
    header = "license: cc-by-sa-4.0\nlanguage:\n- en\ndatasets: wikipedia\nbase_model: lab/first\nwidget: x"
    (source / "README.md").write_text(f"---\n{header}\n---\n\n# Original\n")
    report = convert(source, tmp_path / "out")
    card = card_of(tmp_path / "out")
    assert (card.data.license, card.data.language, card.data.base_model) == ("cc-by-sa-4.0", ["en"], "lab/first")
    assert "widget" not in card.data.to_dict()
    assert f"| logits | {report.differences['logits']:.1e} |" in card.text
    assert report.source_sha256 in card.text
    # A fine-tuned copy knows where it comes from.
    tuned = tmp_path / "tuned"
    HEADS["sequence"].build().save_pretrained(tuned)
    (tuned / "results.json").write_text(json.dumps({"base_model": str(tmp_path / "out")}))
    write_card(tuned)
    assert card_of(tuned).data.license == "cc-by-sa-4.0"
    assert "**Started from:** out" in card_of(tuned).text


@pytest.mark.parametrize(
    "readme", ["---\na: [\n---\n", "no header", "---\nlicense: [1, 2]\nlanguage: ''\n---\n", "\xff"]
)
def test_a_strange_card_of_a_source_is_passed_over(readme: str, tmp_path: Path) -> None:
    source = write_original(tmp_path / "source", original_flags(attention_kernel="qk_convfixed_convq 3"))
    (source / "README.md").write_bytes(readme.encode("latin-1"))
    assert convert(source, tmp_path / "out").source_card == {}


def test_the_verb(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--license", "apache-2.0", "--language", "en, de", "--title", "Tiny", "--base-model", "lab/first"]
    assert run("card", str(folder), *options) == 0
    assert "Wrote" in capsys.readouterr().out
    card = card_of(folder)
    assert (card.data.license, card.data.language, card.data.base_model) == ("apache-2.0", ["en", "de"], "lab/first")
    assert "# Tiny" in card.text
    for bad, message in (("nowhere", "is not a folder"), (".", "is missing")):
        assert run("card", str(tmp_path / bad)) == 1
        assert message in capsys.readouterr().err
    (folder / "results.json").write_text("{")
    before = (folder / "README.md").read_bytes()
    assert run("card", str(folder)) == 1
    assert "not valid JSON" in capsys.readouterr().err
    assert (folder / "README.md").read_bytes() == before


# Rendered cards


def test_rendered_cards_are_up_to_date() -> None:
    """`python -m modeling_convbert_composite.model_cards.render` writes them."""
    rendered = render.render_all()
    assert {name: (render.FOLDER / name).read_text(encoding="utf-8") for name in rendered} == rendered
    others = {file.name for file in render.FOLDER.glob("*.md")} - rendered.keys()
    assert others == {"card_template.md", "preset_template.md", "citation.md"}
    for text in rendered.values():
        assert ModelCard(text).data.library_name == "transformers"


def test_every_preset_has_a_card() -> None:
    covered = [preset for presets, _ in render.PRESET_CARDS.values() for preset in presets]
    # The card of a shipped checkpoint stands for its preset.
    assert sorted([*covered, *render.CHECKPOINT_CARDS]) == list_presets()


@pytest.mark.parametrize("name", ["bert-composite", "bert-convbert", "tiny"])
def test_the_use_of_a_rendered_card_runs(name: str) -> None:
    block = parse(render.render_preset_card(name)).sections["Use"].split("```python\n")[1].split("```")[0]
    namespace: dict[str, Any] = {}
    exec(block, namespace)
    assert namespace["model"].num_parameters() > 0


def test_the_use_of_a_generated_card_runs(folder: Path) -> None:
    text = parse(str(write_card(folder))).sections["Use"]
    for block in text.split("```python\n")[1:]:
        exec(block.split("```")[0].replace(PLACE, str(folder)), {})
