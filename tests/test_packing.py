# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Several texts in a row give what each gives alone, whatever the model convolves."""

import pytest
import torch
from helpers import HEADS, OPTIONS, needs_kernel, random_ids, randomise, text_batch, tiny_config

from modeling_convbert_composite import ConvBertCompositeForMaskedLM, ConvBertCompositeModel
from modeling_convbert_composite.packing_convbert_composite import positions_in_texts, text_borders, text_starts
from modeling_convbert_composite.unpadding import pad_again, unpad


LENGTHS = (9, 1, 14, 3)
BACKENDS = ("eager", "sdpa", pytest.param("composite_cpu", marks=needs_kernel))


def packed_row(ids: torch.Tensor, pads: int) -> dict[str, torch.Tensor]:
    """One row of texts of `LENGTHS`, then padding; the ids of texts need not count up."""
    sequence_ids = torch.cat([torch.full((length,), 7 * (n % 2)) for n, length in enumerate(LENGTHS)])
    padding = torch.zeros(pads, dtype=torch.long)
    mask = torch.cat([torch.ones(sum(LENGTHS), dtype=torch.long), padding])
    return {
        "input_ids": torch.cat([ids, padding + 9])[None],
        "sequence_ids": torch.cat([sequence_ids, padding])[None],
        "attention_mask": mask[None],
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("option", OPTIONS)
def test_packed_texts_equal_single_ones(option: str, backend: str) -> None:
    """Outputs and gradients; rows of different content in one batch, with and without padding."""
    config = tiny_config(**OPTIONS[option])
    model = randomise(ConvBertCompositeModel(config, add_pooling_layer=False)).eval()
    model.set_attn_implementation(backend)
    # The kernel takes float32 and would leave float64 to torch.
    is_kernel = backend == "composite_cpu"
    model.to(torch.float32 if is_kernel else torch.float64)
    tolerance = 2e-5 if is_kernel else 1e-10
    pads = 5
    rows = random_ids(config, (2, sum(LENGTHS)))
    inputs = [packed_row(ids, pads) for ids in rows]
    batch = {name: torch.cat([row[name] for row in inputs]) for name in inputs[0]}
    # The second row has its first text cut off by padding in front, where no convolution may reach into it.
    batch["attention_mask"][1, : LENGTHS[0]] = 0
    # Padding belongs to no text, whatever id it has.
    batch["sequence_ids"][1, : LENGTHS[0]] = batch["sequence_ids"][1, LENGTHS[0]]
    batch["sequence_ids"][0, -pads:] = batch["sequence_ids"][0, -pads - 1]
    packed = model(**batch).last_hidden_state
    found, expected = [], []
    for row, ids in enumerate(rows):
        start = 0
        for n, length in enumerate(LENGTHS):
            if row == 0 or n > 0:
                found.append(packed[row, start : start + length])
                expected.append(model(ids[None, start : start + length]).last_hidden_state[0])
            start += length
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), atol=tolerance, rtol=tolerance)
    probe = torch.linspace(-1, 1, 32, dtype=packed.dtype)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for one, other in zip(
        torch.autograd.grad((torch.cat(found) * probe).sum(), parameters, allow_unused=True),
        torch.autograd.grad((torch.cat(expected) * probe).sum(), parameters, allow_unused=True),
        strict=True,
    ):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, atol=20 * tolerance, rtol=20 * tolerance)


@torch.no_grad()
def test_a_border_is_felt() -> None:
    """Without ids of texts the same row gives something else: the test above could fail."""
    config = tiny_config(depthwise_kernel=True)
    model = randomise(ConvBertCompositeModel(config)).eval()
    row = packed_row(random_ids(config, (sum(LENGTHS),)), 0)
    with_borders = model(**row).last_hidden_state
    del row["sequence_ids"]
    assert (model(**row).last_hidden_state - with_borders).abs().max() > 0.1


@torch.no_grad()
def test_one_text_a_row_is_no_packing() -> None:
    config = tiny_config(depthwise_kernel=True, value_projection="depthwise_separable")
    model = randomise(ConvBertCompositeModel(config)).eval()
    ids = random_ids(config, (2, 11))
    plain = model(ids).last_hidden_state
    packed = model(ids, sequence_ids=torch.zeros_like(ids)).last_hidden_state
    torch.testing.assert_close(packed, plain, atol=1e-5, rtol=1e-5)


def test_attention_maps_of_packed_rows_are_blocks() -> None:
    for options in ({}, {"depthwise_kernel": True}, {"dynamic_convolution_heads": 2}):
        model = randomise(ConvBertCompositeModel(tiny_config(**options))).eval()
        model.set_attn_implementation("eager")
        row = packed_row(random_ids(model.config, (sum(LENGTHS),)), 4)
        size = sum(LENGTHS)
        blocks = torch.block_diag(*[torch.ones(length, length) for length in LENGTHS]).bool()
        for weights in model(**row, output_attentions=True).attentions:
            assert weights.shape == (1, 4, size + 4, size + 4)
            assert not weights[..., :size, :size][..., ~blocks].any()
            assert (weights[:, :2, :size, :size][..., blocks] > 0).all()


@pytest.mark.parametrize("name", ["mlm", "pretraining", "token"])
def test_heads_take_packed_rows(name: str) -> None:
    """Loss of a packed row = mean over all its texts' labels."""
    model = HEADS[name].build()
    row = packed_row(random_ids(model.config, (sum(LENGTHS),)), 3)
    labels = row["input_ids"] % 3
    labels[row["attention_mask"] == 0] = -100
    packed = model(**row, labels=labels).loss
    start, total = 0, torch.zeros(())
    for length in LENGTHS:
        part = slice(start, start + length)
        total = total + model(row["input_ids"][:, part], labels=labels[:, part]).loss * length
        start += length
    torch.testing.assert_close(packed, total / sum(LENGTHS), atol=1e-5, rtol=1e-5)


def test_checkpointing_and_training_take_packed_rows() -> None:
    model = randomise(ConvBertCompositeForMaskedLM(tiny_config(depthwise_kernel=True))).train()
    row = packed_row(random_ids(model.config, (sum(LENGTHS),)), 3)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.zero_grad()
        model(**row, labels=row["input_ids"]).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_positions_start_again_and_the_limit_is_a_text_s() -> None:
    config = tiny_config(position_embedding_type="absolute", max_position_embeddings=16)
    model = ConvBertCompositeModel(config).eval()
    row = packed_row(random_ids(config, (sum(LENGTHS),)), 0)
    assert model(**row).last_hidden_state.isfinite().all()
    row["sequence_ids"] = torch.zeros_like(row["sequence_ids"])
    with pytest.raises(ValueError, match="27 tokens is longer than the position table"):
        model(**row)
    ids = torch.tensor([[3, 3, 3, 8, 8, 3, 3]])
    assert positions_in_texts(ids, None).tolist() == [[0, 1, 2, 0, 1, 0, 1]]
    mask = torch.tensor([[0, 1, 1, 1, 1, 0, 0]]).bool()
    borders = text_borders(text_starts(ids, mask))[0].tolist()
    assert borders == [[0, 1], [1, 3], [1, 3], [3, 5], [3, 5], [5, 6], [6, 7]]


def test_wrong_shapes_are_refused() -> None:
    model = ConvBertCompositeModel(tiny_config())
    ids = random_ids(model.config, (2, 6))
    with pytest.raises(ValueError, match=r"`sequence_ids` must have the shape \(2, 6\)"):
        model(ids, sequence_ids=torch.zeros(2, 5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"`attention_mask` must have the shape \(2, 6\)"):
        model(ids, sequence_ids=torch.zeros_like(ids), attention_mask=torch.ones(2, 6, 6))


@pytest.mark.parametrize("option", OPTIONS)
def test_unpadded_batches_give_what_padded_ones_give(option: str) -> None:
    """States at tokens, and the loss with labels, types and left padding."""
    config = tiny_config(**OPTIONS[option])
    model = randomise(ConvBertCompositeForMaskedLM(config)).double().eval()
    batch = text_batch(config, batch=4, length=13)
    if config.position_embedding_type == "none":
        # With a table, padding on the left would move the positions of a text.
        batch["attention_mask"][0, :3] = 0
    if not config.type_vocab_size:
        del batch["token_type_ids"]
    mask = batch["attention_mask"]
    batch["labels"] = batch["input_ids"].masked_fill(mask == 0, -100)
    row = unpad(batch)
    assert {tuple(value.shape) for value in row.values()} == {(1, int(mask.sum()))}
    for kind in (mask.bool(), (mask.float() - 1) * 1e4):
        assert torch.equal(unpad(batch | {"attention_mask": kind})["input_ids"], row["input_ids"])
    packed, padded = model(**row), model(**batch)
    if config.dynamic_convolution_mode == "convbert" and config.dynamic_convolution_heads:
        return  # reads padding, as its original does
    torch.testing.assert_close(packed.loss, padded.loss)
    expected = padded.logits.masked_fill(mask[..., None] == 0, 0)
    torch.testing.assert_close(pad_again(packed.logits, mask), expected)


def test_what_cannot_be_unpadded() -> None:
    ids, mask = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"must have two dimensions, .* got None"):
        unpad({"input_ids": ids})
    with pytest.raises(ValueError, match=r"must have two dimensions, .* got \(2, 1, 5, 5\)"):
        unpad({"input_ids": ids, "attention_mask": torch.ones(2, 1, 5, 5)})
    with pytest.raises(ValueError, match=r"labels must have a value for every token, \(2, 5\), got the shape \(2,\)"):
        unpad({"input_ids": ids, "attention_mask": mask, "labels": torch.ones(2)})
    mask[0, 3:] = 0
    with pytest.raises(ValueError, match=r"must be \(1, 8, ...\) for this mask, got \(1, 10, 4\)"):
        pad_again(torch.ones(1, 10, 4), mask)
