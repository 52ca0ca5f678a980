# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The losses of the heads by hand, and through transformers' Trainer: accumulation, empty labels, resuming."""

import itertools
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import HEADS, IGNORED, OPTIONS, assert_states_equal, random_ids, randomise, state_copy, text_batch
from test_pipelines import word_tokenizer
from torch.nn import functional
from transformers import DataCollatorForLanguageModeling, PreTrainedModel, Trainer, TrainingArguments

from modeling_convbert_composite import ConvBertCompositeForSequenceClassification


Rows = list[dict[str, torch.Tensor]]

# 8 texts, 11 tokens long; row r has LABELLED[r] words to predict: uneven within and between micro-batches of 2.
ROWS, LENGTH = 8, 11
LABELLED = (1, 2, 9, 4, 0, 1, 7, 3)
EVENLY_LABELLED = (3,) * ROWS


def rows_of(columns: dict[str, torch.Tensor]) -> Rows:
    """A dataset of one dict a text."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def word_labels(limit: int, labelled: tuple[int, ...] = LABELLED) -> torch.Tensor:
    """Labels (rows, LENGTH), as many in a row as `labelled` says."""
    labels = torch.full((len(labelled), LENGTH), IGNORED)
    for row, count in enumerate(labelled):
        labels[row, :count] = torch.randint(0, limit, (count,))
    return labels


def arguments(folder: Path, **overrides: Any) -> TrainingArguments:
    """One step of plain SGD, nothing that would hide the size of a gradient."""
    settings = {
        "output_dir": str(folder),
        "max_steps": 1,
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "per_device_train_batch_size": ROWS,
    }
    return TrainingArguments(**(settings | overrides))


def train(model: PreTrainedModel, rows: Rows, folder: Path, **overrides: Any) -> Trainer:
    """Trains and returns the trainer."""
    trainer = Trainer(model=model, args=arguments(folder, **overrides), train_dataset=rows)
    trainer.train()
    return trainer


def classes(limit: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, limit, shape)


def accumulation_cases() -> dict[str, Any]:
    """Name -> head, config overrides and labels of ROWS texts."""
    some_ignored = torch.tensor([1, IGNORED, 0, 2, IGNORED, IGNORED, 1, 0])
    some_values = torch.tensor([0.5, -100.0, 1.5, 2.5, -100.0, -100.0, 0.25, 4.0])
    several_ignored = torch.tensor([[1.0, 0.0, 1.0]] * ROWS)
    several_ignored[2, 1:] = IGNORED
    several_ignored[5] = IGNORED
    return {
        "mlm": ("mlm", {}, lambda: {"labels": word_labels(100)}),
        "mlm_depthwise": ("mlm", OPTIONS["value_separable_depthwise"], lambda: {"labels": word_labels(100)}),
        "token": ("token", {}, lambda: {"labels": word_labels(3)}),
        "pretraining_words": ("pretraining", {}, lambda: {"labels": word_labels(100)}),
        "pretraining_next": ("pretraining", {}, lambda: {"next_sentence_label": classes(2, ROWS)}),
        "pretraining_order": ("pretraining", {}, lambda: {"sentence_order_label": classes(2, ROWS)}),
        "pretraining_both": (
            "pretraining",
            {},
            lambda: {"labels": word_labels(100, EVENLY_LABELLED), "next_sentence_label": classes(2, ROWS)},
        ),
        "single_label": ("sequence", {}, lambda: {"labels": classes(3, ROWS)}),
        "single_label_uneven": ("sequence", {}, lambda: {"labels": some_ignored}),
        "multi_label": ("sequence", {}, lambda: {"labels": classes(2, ROWS, 3).float()}),
        "multi_label_uneven": ("sequence", {}, lambda: {"labels": several_ignored}),
        "regression": ("sequence", {"num_labels": 1}, lambda: {"labels": torch.randn(ROWS)}),
        "regression_column": ("sequence", {"num_labels": 1}, lambda: {"labels": torch.randn(ROWS, 1)}),
        "regression_uneven": ("sequence", {"num_labels": 1}, lambda: {"labels": some_values}),
        "regression_of_three": (
            "sequence",
            {"num_labels": 3, "problem_type": "regression"},
            lambda: {"labels": torch.randn(ROWS, 3)},
        ),
        "answer": (
            "answer",
            {},
            lambda: {"start_positions": classes(LENGTH, ROWS), "end_positions": classes(LENGTH, ROWS)},
        ),
        "choice": ("choice", {}, lambda: {"labels": classes(2, ROWS)}),
        "choice_uneven": ("choice", {}, lambda: {"labels": some_ignored.clamp(max=1)}),
    }


@pytest.mark.parametrize("case", accumulation_cases())
def test_accumulation_does_not_change_a_step(case: str, tmp_path: Path) -> None:
    """
    8 x 1 against 2 x 4, uneven label counts: the same weights after one step.

    Two limits, as the Trainer counts `labels` and nothing else:
    - PreTraining with both losses: a micro-batch's sentence loss weighs as its share of the word labels, so that
      uneven counts of those shift weight between the micro-batches (here: even counts);
    - QuestionAnswering: no `labels`, so no count: answers outside the input make micro-batches uneven (here: none).
    """
    name, overrides, make_labels = accumulation_cases()[case]
    head = HEADS[name]
    labels = make_labels()
    after = []
    for batch, steps in ((ROWS, 1), (2, 4)):
        model = randomise(head.model_class(head.config(**overrides)), scale=0.2)
        before = state_copy(model)
        rows = rows_of(head.inputs(model.config, ROWS, LENGTH, padded=False) | labels)
        train(model, rows, tmp_path, per_device_train_batch_size=batch, gradient_accumulation_steps=steps)
        after.append(state_copy(model))
        assert max((after[-1][key] - before[key]).abs().max() for key in before) > 1e-3
    for key, tensor in after[0].items():
        torch.testing.assert_close(
            after[1][key], tensor, atol=1e-6, rtol=0, msg=lambda text, key=key: f"{key}: {text}"
        )


def test_accumulated_weights_of_both_pretraining_losses_add_up() -> None:
    """The weights of the sentence losses of one step add up to 1, whatever the counts of word labels."""
    head = HEADS["pretraining"]
    model = head.build()
    inputs = text_batch(model.config, ROWS, LENGTH, padded=False)
    words, order = word_labels(100), torch.zeros(ROWS, dtype=torch.long)
    count = (words != IGNORED).sum()
    losses, sentence_losses, shares = [], [], []
    for start in range(0, ROWS, 2):
        part = slice(start, start + 2)
        output = model(
            **{key: tensor[part] for key, tensor in inputs.items()},
            labels=words[part],
            sentence_order_label=order[part],
            num_items_in_batch=count,
        )
        losses.append(output.loss)
        sentence_losses.append(functional.cross_entropy(output.seq_relationship_logits, order[part]))
        shares.append((words[part] != IGNORED).sum() / count)
    whole = model(**inputs, labels=words)
    expected = whole.loss + sum(share * loss for share, loss in zip(shares, sentence_losses, strict=True))
    torch.testing.assert_close(sum(losses), expected, atol=1e-5, rtol=1e-5)
    assert sum(shares).item() == pytest.approx(1)


@pytest.mark.parametrize("as_tensor", [True, False], ids=["tensor", "int"])
@pytest.mark.parametrize("name", ["mlm", "token", "sequence", "choice", "answer", "pretraining"])
def test_num_items_in_batch(name: str, as_tensor: bool) -> None:
    """The loss is the sum over labels divided by the count that is given."""
    head = HEADS[name]
    model = head.build()
    inputs, labels = head.inputs(model.config), head.labels(model.config)
    counted = {key: (value != IGNORED).sum().item() for key, value in labels.items()}
    labels.pop("next_sentence_label", None)
    mean = model(**inputs, **labels).loss
    count = counted["start_positions"] if name == "answer" else counted["labels"]
    given = torch.tensor(4 * count) if as_tensor else 4 * count
    torch.testing.assert_close(model(**inputs, **labels, num_items_in_batch=given).loss * 4, mean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=str)
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16", "autocast"])
def test_regression(precision: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Mean squared error, [B] and [B, 1], without a broadcast to [B, B]."""
    model = HEADS["sequence"].build(num_labels=1)
    inputs = text_batch(model.config)
    labels = torch.tensor([0.0, 2.5, 5.0]).to(dtype)
    if precision in ("float64", "bfloat16"):
        model = model.to(getattr(torch, precision))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        output = model(**inputs, labels=labels.view(shape))
    expected = (output.logits.detach().double()[:, 0] - labels.double()).square().mean()
    torch.testing.assert_close(output.loss.double(), expected, atol=1e-5, rtol=1e-5)
    assert output.loss.dtype == (torch.float64 if precision == "float64" else torch.float32)
    output.loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert model.config.problem_type == "regression"


def test_regression_of_several_values() -> None:
    model = HEADS["sequence"].build(problem_type="regression")
    inputs, labels = text_batch(model.config), torch.randn(3, 3)
    output = model(**inputs, labels=labels)
    torch.testing.assert_close(output.loss, functional.mse_loss(output.logits, labels))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_single_label(dtype: torch.dtype) -> None:
    model = HEADS["sequence"].build()
    inputs, labels = text_batch(model.config), torch.tensor([2, 0, 1])
    output = model(**inputs, labels=labels.to(dtype))
    torch.testing.assert_close(output.loss, functional.cross_entropy(output.logits, labels))
    assert model.config.problem_type == "single_label_classification"


def test_single_label_as_a_column() -> None:
    """Class ids of shape [B, 1], as BERT's head takes them."""
    model = HEADS["sequence"].build()
    inputs, labels = text_batch(model.config), torch.tensor([2, 0, 1])
    output = model(**inputs, labels=labels[:, None])
    torch.testing.assert_close(output.loss, functional.cross_entropy(output.logits, labels))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool], ids=str)
def test_multi_label(dtype: torch.dtype) -> None:
    model = HEADS["sequence"].build()
    inputs, labels = text_batch(model.config), torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 0]])
    output = model(**inputs, labels=labels.to(dtype))
    expected = functional.binary_cross_entropy_with_logits(output.logits, labels.float())
    torch.testing.assert_close(output.loss, expected)
    assert model.config.problem_type == "multi_label_classification"


@pytest.mark.parametrize("labels", [torch.rand(3), torch.rand(3, 2), torch.zeros(3, 3, 1)], ids=["1d", "2d", "3d"])
def test_labels_that_fit_no_loss(labels: torch.Tensor) -> None:
    model = HEADS["sequence"].build()
    with pytest.raises(
        ValueError, match=r"`labels` must be integers of shape \(batch_size,\) or .*, or of shape .*, got"
    ):
        model(**text_batch(model.config), labels=labels)


@pytest.mark.parametrize(
    ("left_over", "num_labels", "labels", "used"),
    [
        ("single_label_classification", 1, torch.tensor([0.5, 1.5, 3.0]), "regression"),
        ("regression", 3, torch.tensor([0, 2, 1]), "single_label_classification"),
        ("multi_label_classification", 3, torch.tensor([0, 2, 1]), "single_label_classification"),
        ("single_label_classification", 3, torch.ones(3, 3), "multi_label_classification"),
        ("regression", 3, torch.ones(3, 3), "regression"),
        ("multi_label_classification", 1, torch.ones(3, 1), "multi_label_classification"),
    ],
)
def test_a_problem_type_left_over(left_over: str, num_labels: int, labels: torch.Tensor, used: str) -> None:
    """In memory: what fits the labels is used, the configured type only where both would fit."""
    model = HEADS["sequence"].build(num_labels=num_labels)
    model.config.problem_type = left_over
    output = model(**text_batch(model.config), labels=labels)
    logits = output.logits
    expected = {
        "regression": lambda: functional.mse_loss(logits.flatten(), labels.flatten()),
        "single_label_classification": lambda: functional.cross_entropy(logits, labels),
        "multi_label_classification": lambda: functional.binary_cross_entropy_with_logits(logits, labels),
    }[used]()
    torch.testing.assert_close(output.loss, expected)
    assert model.config.problem_type == used


@pytest.mark.parametrize("auto", [True, False], ids=["auto", "direct"])
def test_a_problem_type_left_over_in_a_file(auto: bool, tmp_path: Path) -> None:
    """Through files: two classes, then one value, then three classes, then several labels."""
    loader = (
        transformers.AutoModelForSequenceClassification if auto else ConvBertCompositeForSequenceClassification
    ).from_pretrained
    model = HEADS["sequence"].build(num_labels=2)
    inputs = text_batch(model.config)
    for step, (num_labels, labels, used) in enumerate(
        (
            (1, torch.tensor([0.5, 1.5, 3.0]), "regression"),
            (3, torch.tensor([0, 2, 1]), "single_label_classification"),
            (3, torch.tensor([[1.0, 0.0, 1.0]] * 3), "multi_label_classification"),
            (2, torch.tensor([0, 1, 1]), "single_label_classification"),
            (1, torch.tensor([0, 1, 1]), "regression"),
        )
    ):
        if step == 0:
            model(**inputs, labels=torch.tensor([0, 1, 1]))
            assert model.config.problem_type == "single_label_classification"
        model.save_pretrained(tmp_path / str(step))
        model = loader(tmp_path / str(step), num_labels=num_labels, ignore_mismatched_sizes=True).eval()
        assert model.config.num_labels == num_labels == model.classifier.out_features
        output = model(**inputs, labels=labels)
        if used == "regression":
            expected = functional.mse_loss(output.logits[:, 0], labels.float())
        elif used == "single_label_classification":
            expected = functional.cross_entropy(output.logits, labels)
        else:
            expected = functional.binary_cross_entropy_with_logits(output.logits, labels)
        torch.testing.assert_close(output.loss, expected)
        assert model.config.problem_type == used


def test_pretraining_label_combinations() -> None:
    """Each loss by hand, alone, together, and none."""
    model = HEADS["pretraining"].build()
    inputs = text_batch(model.config)
    words, order = HEADS["mlm"].labels(model.config)["labels"], torch.tensor([0, 1, 1])
    output = model(**inputs)
    assert output.loss is None
    word_loss = functional.cross_entropy(output.prediction_logits.flatten(0, 1), words.flatten())
    order_loss = functional.cross_entropy(output.seq_relationship_logits, order)
    torch.testing.assert_close(model(**inputs, labels=words).loss, word_loss)
    for name in ("next_sentence_label", "sentence_order_label"):
        torch.testing.assert_close(model(**inputs, **{name: order}).loss, order_loss)
        torch.testing.assert_close(model(**inputs, **{name: order[:, None]}).loss, order_loss)
        torch.testing.assert_close(model(**inputs, labels=words, **{name: order}).loss, word_loss + order_loss)
    with pytest.raises(ValueError, match="Pass only one of `next_sentence_label` and `sentence_order_label`"):
        model(**inputs, next_sentence_label=order, sentence_order_label=order)


@pytest.mark.parametrize("name", ["mlm", "token"])
def test_word_losses_by_hand(name: str) -> None:
    head = HEADS[name]
    model = head.build()
    inputs, labels = head.inputs(model.config), head.labels(model.config)["labels"]
    output = model(**inputs, labels=labels)
    expected = functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(model(**inputs, labels=labels.int()).loss, expected)


def test_labels_at_padding() -> None:
    """Token classification ignores them, as the code of the paper does; the form of the mask makes no difference."""
    model = HEADS["token"].build()
    inputs = text_batch(model.config)
    mask = inputs["attention_mask"]
    labels = classes(3, 3, LENGTH)
    output = model(**inputs, labels=labels)
    expected = functional.cross_entropy(output.logits[mask.bool()], labels[mask.bool()])
    torch.testing.assert_close(output.loss, expected)
    square = mask[:, None].expand(-1, LENGTH, -1)
    for form in (mask.bool(), mask.float(), square.bool(), square[:, None].float()):
        torch.testing.assert_close(model(**(inputs | {"attention_mask": form}), labels=labels).loss, expected)
    everything = functional.cross_entropy(model(input_ids=inputs["input_ids"]).logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(model(input_ids=inputs["input_ids"], labels=labels).loss, everything)


def test_answers_outside_the_input() -> None:
    """
    Positions beyond the input, and -100, are ignored, each of start and end for itself; other negative ones mean the
    first token, as BERT's head has it; all ignored is 0, not NaN.
    """
    model = HEADS["answer"].build()
    inputs = text_batch(model.config, padded=False)
    start, end = torch.tensor([0, 11, 4]), torch.tensor([IGNORED, 500, -1])
    output = model(**inputs, start_positions=start, end_positions=end)
    expected = functional.cross_entropy(output.start_logits[[0, 2]], start[[0, 2]])
    expected = (expected + functional.cross_entropy(output.end_logits[2:], torch.tensor([0]))) / 2
    torch.testing.assert_close(output.loss, expected)
    column = model(**inputs, start_positions=start[:, None], end_positions=end[:, None])
    torch.testing.assert_close(column.loss, expected)
    outside = torch.tensor([11, 12, IGNORED])
    loss = model(**inputs, start_positions=outside, end_positions=outside).loss
    assert loss.item() == 0
    assert model(**inputs, start_positions=start).loss is None
    # The labels are the caller's.
    assert start.tolist() == [0, 11, 4] and end.tolist() == [IGNORED, 500, -1]


@pytest.mark.parametrize("choices", [2, 5])
def test_multiple_choice(choices: int) -> None:
    """The number of choices comes from the input, `num_labels` plays no part."""
    model = HEADS["choice"].build()
    assert model.config.num_labels == 2
    texts = text_batch(model.config, 3 * choices)
    inputs = {name: tensor.unflatten(0, (3, choices)) for name, tensor in texts.items()}
    labels = torch.tensor([0, choices - 1, 1])
    output = model(**inputs, labels=labels)
    assert output.logits.shape == (3, choices)
    torch.testing.assert_close(output.loss, functional.cross_entropy(output.logits, labels))
    torch.testing.assert_close(model(**inputs, labels=labels[:, None]).loss, output.loss)
    for row in range(3):
        alone = model(**{name: tensor[row : row + 1] for name, tensor in inputs.items()}).logits
        torch.testing.assert_close(alone[0], output.logits[row], atol=1e-5, rtol=1e-5)


def ignored_labels(name: str) -> dict[str, torch.Tensor]:
    """Labels of three texts without a single one that counts."""
    words, texts = torch.full((3, LENGTH), IGNORED), torch.full((3,), IGNORED)
    return {
        "mlm": {"labels": words},
        "token": {"labels": words},
        "pretraining": {"labels": words, "next_sentence_label": texts},
        "sequence": {"labels": texts},
        "answer": {"start_positions": texts, "end_positions": texts},
        "choice": {"labels": texts},
    }[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("count", [None, 0, torch.tensor(0)], ids=["no_count", "0", "tensor0"])
@pytest.mark.parametrize("name", ["mlm", "token", "pretraining", "sequence", "answer", "choice"])
def test_no_label_at_all(name: str, count: Any, dtype: torch.dtype) -> None:
    """The loss is 0, and so is every gradient."""
    head = HEADS[name]
    model = head.build().to(dtype)
    output = model(**head.inputs(model.config), **ignored_labels(name), num_items_in_batch=count)
    assert output.loss.item() == 0
    output.loss.backward()
    assert not any(parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)
    if name == "pretraining":
        # The sentences' loss does not vanish with the words'.
        labels = {"labels": ignored_labels(name)["labels"], "next_sentence_label": torch.tensor([0, 1, 1])}
        output = model(**head.inputs(model.config), **labels)
        expected = functional.cross_entropy(output.seq_relationship_logits.float(), labels["next_sentence_label"])
        torch.testing.assert_close(output.loss, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", ["multi_label", "regression"])
def test_no_value_at_all(kind: str) -> None:
    model = HEADS["sequence"].build(num_labels=1 if kind == "regression" else 3)
    labels = torch.full((3, model.config.num_labels), -100.0)
    output = model(**text_batch(model.config), labels=labels)
    assert output.loss.item() == 0
    labels[0] = 1
    output = model(**text_batch(model.config), labels=labels)
    only = output.logits[0]
    expected = {
        "regression": functional.mse_loss,
        "multi_label": functional.binary_cross_entropy_with_logits,
    }[kind](only, torch.ones_like(only))
    torch.testing.assert_close(output.loss, expected)


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("name", ["mlm", "pretraining", "token"])
def test_training_on_texts_without_labels(name: str, batch_size: int, tmp_path: Path) -> None:
    """Three-word texts, most without a masked word; no weight is ever NaN, and empty steps change nothing."""
    head = HEADS[name]
    model = randomise(head.model_class(head.config()), scale=0.2)
    ids = random_ids(model.config, (8, 3))
    labels = torch.full_like(ids, IGNORED)
    rows = rows_of({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    before = state_copy(model)
    train(model, rows, tmp_path, max_steps=4, per_device_train_batch_size=batch_size, weight_decay=0.0)
    assert_states_equal(state_copy(model), before)
    labels[3, 1] = 2
    trainer = train(
        model,
        rows_of({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}),
        tmp_path,
        max_steps=16,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=2,
        optim="adamw_torch",
        learning_rate=1e-3,
        logging_strategy="steps",
        logging_steps=1,
    )
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 16 and all(math.isfinite(loss) for loss in losses) and max(losses) > 0
    assert any((model.state_dict()[key] != before[key]).any() for key in before)


@pytest.mark.parametrize("name", ["mlm", "token", "sequence", "answer", "choice", "pretraining"])
def test_loss_of_a_bfloat16_model(name: str) -> None:
    """The loss is taken in float32: bf16 logits, but no rounding of sums over labels."""
    head = HEADS[name]
    model = head.build().bfloat16()
    output = model(**head.inputs(model.config), **head.labels(model.config))
    assert output.loss.dtype == torch.float32
    assert output[head.logits[0]].dtype == torch.bfloat16
    if name in ("mlm", "token"):
        expected = functional.cross_entropy(
            output.logits.float().flatten(0, 1), head.labels(model.config)["labels"].flatten()
        )
        torch.testing.assert_close(output.loss, expected)


@pytest.mark.parametrize(
    "case", ["mlm", "token", "pretraining_both", "single_label", "multi_label", "regression", "choice"]
)
def test_training_lowers_the_loss(case: str, tmp_path: Path) -> None:
    name, overrides, make_labels = accumulation_cases()[case]
    head = HEADS[name]
    model = head.model_class(head.config(**overrides))
    rows = rows_of(head.inputs(model.config, ROWS, LENGTH) | make_labels())
    trainer = train(
        model,
        rows,
        tmp_path,
        max_steps=30,
        optim="adamw_torch",
        learning_rate=5e-3,
        max_grad_norm=1.0,
        logging_strategy="steps",
        logging_steps=1,
    )
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 30
    assert losses[-1] < losses[0] / 2, (losses[0], losses[-1])


@pytest.mark.parametrize("name", ["mlm", "token", "sequence", "answer", "choice", "pretraining"])
def test_evaluation(name: str, tmp_path: Path) -> None:
    """The Trainer's evaluation loss is the model's; PreTraining needs `label_names`, as its docs say."""
    head = HEADS[name]
    model = head.build()
    inputs = head.inputs(model.config, ROWS, LENGTH, padded=False)
    labels = accumulation_cases()[{"sequence": "single_label", "pretraining": "pretraining_words"}.get(name, name)][
        2
    ]()
    names = ["labels"] if name == "pretraining" else None
    trainer = Trainer(
        model=model,
        args=arguments(tmp_path, per_device_eval_batch_size=ROWS, label_names=names),
        eval_dataset=rows_of(inputs | labels),
    )
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] == pytest.approx(model(**inputs, **labels).loss.item(), rel=1e-4)


@pytest.fixture
def transformers_log() -> Iterator[list[str]]:
    """Warnings and errors of transformers' loggers, which do not reach the root logger."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    collector = Collector()
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.add_handler(collector)
    yield messages
    transformers.utils.logging.remove_handler(collector)
    transformers.utils.logging.set_verbosity(verbosity)


MISSING = ("missing", "newly initialized", "not initialized", "unexpected")


def is_about_keys(message: str) -> bool:
    return any(word in message.lower() for word in MISSING)


def test_the_log_is_watched(transformers_log: list[str], tmp_path: Path) -> None:
    """A warning about keys would be seen: the next tests rest on it."""
    HEADS["base"].build().save_pretrained(tmp_path)
    HEADS["token"].model_class.from_pretrained(tmp_path)
    assert any(is_about_keys(message) for message in transformers_log)


@pytest.mark.parametrize("name", ["mlm", "pretraining", "sequence"])
def test_resuming_equals_not_stopping(name: str, transformers_log: list[str], tmp_path: Path) -> None:
    """Six steps with dropout, and three plus three; also `load_best_model_at_end`, both without a warning."""
    head = HEADS[name]
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    # The later evaluation is the better one, so that the weights loaded at the end are those of the last step.
    evaluations = itertools.count()

    def trainer(folder: Path) -> Trainer:
        model = randomise(head.model_class(head.config(**rates, **OPTIONS["depthwise_learned"])), scale=0.1)
        rows = rows_of(head.inputs(model.config, 12, LENGTH) | head.labels(model.config, 12, LENGTH))
        settings = arguments(
            folder,
            max_steps=6,
            per_device_train_batch_size=2,
            optim="adamw_torch",
            learning_rate=1e-2,
            lr_scheduler_type="linear",
            max_grad_norm=1.0,
            save_strategy="steps",
            save_steps=3,
            eval_strategy="steps",
            eval_steps=3,
            load_best_model_at_end=True,
            metric_for_best_model="step",
            greater_is_better=True,
            label_names=["labels"],
        )
        return Trainer(
            model=model,
            args=settings,
            train_dataset=rows,
            eval_dataset=rows,
            compute_metrics=lambda prediction: {"step": float(next(evaluations))},
        )

    whole = trainer(tmp_path / "whole")
    whole.train()
    assert whole.state.best_model_checkpoint.endswith("checkpoint-6")
    resumed = trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert resumed.state.global_step == 6
    for key, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[key], tensor, atol=1e-7, rtol=0, msg=key)
    loaded = head.model_class.from_pretrained(tmp_path / "whole" / "checkpoint-6")
    assert_states_equal(state_copy(loaded), state_copy(whole.model))
    if name != "sequence":
        assert whole.model.get_input_embeddings().weight is whole.model.get_output_embeddings().weight
    assert not [message for message in transformers_log if is_about_keys(message)]


def test_a_trainer_checkpoint_carries_the_code(tmp_path: Path) -> None:
    """What a user of the plugin fine-tunes loads for those without it."""
    head = HEADS["sequence"]
    model = randomise(head.model_class(head.config()))
    rows = rows_of(head.inputs(model.config, ROWS, LENGTH) | {"labels": classes(3, ROWS)})
    train(model, rows, tmp_path, save_strategy="steps", save_steps=1)
    files = {path.name for path in (tmp_path / "checkpoint-1").iterdir()}
    assert {"config.json", "model.safetensors", "modeling_convbert_composite.py"} <= files
    assert {"configuration_convbert_composite.py", "attention_convbert_composite.py"} <= files


@pytest.mark.parametrize("is_pair", [False, True])
def test_special_tokens_are_never_masked(is_pair: bool) -> None:
    """R40: over 200 collated, padded batches, 15 % of the tokens that are none, and no other."""
    tokenizer = word_tokenizer()
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    real = masked = 0
    for _ in range(200):
        lengths = torch.randint(1, 40, (8,), generator=generator).tolist()
        texts = [" ".join(["the cat sat on a mat"] * (length // 6 + 1)) for length in lengths]
        pairs = [texts[::-1]] if is_pair else []
        batch = collate([{"input_ids": ids} for ids in tokenizer(texts, *pairs)["input_ids"]])
        original = torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])
        is_special = torch.isin(original, torch.tensor(tokenizer.all_special_ids))
        assert (batch["labels"][is_special] == IGNORED).all()
        real += int((~is_special).sum())
        masked += int((batch["labels"] != IGNORED).sum())
    assert masked / real == pytest.approx(0.15, abs=0.01)
