# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Every pipeline that fits an encoder runs, from a folder, with the plugin imported."""

from pathlib import Path

import pytest
import torch
from helpers import HEADS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, PreTrainedTokenizerFast, pipeline


TEXT = (
    "the a cat dog sat ran on under mat house big small . , who where what is this example text about sport politics "
    "and or not it was very good bad ##s ##ed ##ing"
)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *TEXT.split()]


def word_tokenizer(with_types: bool = True) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer over a few words."""
    tokenizer = Tokenizer(models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"] if with_types else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_input_names=names,
        model_max_length=64,
    )


def saved(folder: Path, head: str, with_types: bool = True, **fields: object) -> str:
    model = HEADS[head].build(vocab_size=len(WORDS), pad_token_id=0, **fields)
    model.save_pretrained(folder)
    word_tokenizer(with_types).save_pretrained(folder)
    return str(folder)


def test_fill_mask(tmp_path: Path) -> None:
    filler = pipeline("fill-mask", model=saved(tmp_path, "mlm"))
    answers = filler("the [MASK] sat on the mat .", top_k=4)
    assert len(answers) == 4
    assert sum(answer["score"] for answer in filler("the [MASK] sat", top_k=len(WORDS))) == pytest.approx(1, abs=1e-4)
    targeted = filler("the [MASK] sat", targets=["cat", "dog"])
    assert {answer["token_str"] for answer in targeted} == {"cat", "dog"}


@pytest.mark.parametrize("with_types", [True, False])
@pytest.mark.parametrize("type_vocab_size", [0, 1, 2])
def test_text_classification(with_types: bool, type_vocab_size: int, tmp_path: Path) -> None:
    """With and without token_type_ids, for models with and without a segment table."""
    folder = saved(tmp_path, "sequence", with_types, type_vocab_size=type_vocab_size)
    answers = pipeline("text-classification", model=folder, top_k=None)(["the cat sat .", "a big dog"])
    assert [len(answer) for answer in answers] == [3, 3]
    assert sum(label["score"] for label in answers[0]) == pytest.approx(1, abs=1e-4)


def test_regression_is_not_squashed(tmp_path: Path) -> None:
    """A model trained on one value gives that value, not its sigmoid: the problem type is kept with the model."""
    head = HEADS["sequence"]
    model = head.build(vocab_size=len(WORDS), pad_token_id=0, num_labels=1)
    model(torch.tensor([[2, 7, 3]]), labels=torch.tensor([4.2]))
    model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    score = pipeline("text-classification", model=str(tmp_path))("the cat")[0]["score"]
    with torch.no_grad():
        value = model(**word_tokenizer()("the cat", return_tensors="pt")).logits.item()
    assert score == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_token_classification(strategy: str, tmp_path: Path) -> None:
    text = "the cats sat under this house"
    answers = pipeline("token-classification", model=saved(tmp_path, "token"), aggregation_strategy=strategy)(text)
    assert answers
    for answer in answers:
        assert text[answer["start"] : answer["end"]].strip()


def test_question_answering_on_a_long_context(tmp_path: Path) -> None:
    """transformers 5 has no such pipeline any more: the head over overlapping windows, as its users do it now."""
    folder = saved(tmp_path, "answer")
    model, tokenizer = AutoModelForQuestionAnswering.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    context = "the cat sat on the mat . the dog ran under a house . " * 12
    windows = tokenizer(
        "where is the cat ?",
        context,
        truncation="only_second",
        max_length=32,
        stride=8,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        outputs = model(**{name: windows[name] for name in ("input_ids", "attention_mask", "token_type_ids")})
    is_context = torch.tensor(
        [[part == 1 for part in windows.sequence_ids(row)] for row in range(len(windows.input_ids))]
    )
    assert len(is_context) > 5
    scores = (
        (outputs.start_logits[:, :, None] + outputs.end_logits[:, None, :])
        .triu()
        .masked_fill(~(is_context[:, :, None] & is_context[:, None, :]).triu(), -torch.inf)
    )
    row, start, end = torch.unravel_index(scores.argmax(), scores.shape)
    offsets = windows["offset_mapping"][row]
    answer = context[int(offsets[start, 0]) : int(offsets[end, 1])]
    assert answer.strip()
    assert (
        tokenizer(answer, add_special_tokens=False)["input_ids"] == windows["input_ids"][row, start : end + 1].tolist()
    )


def test_zero_shot_classification(tmp_path: Path) -> None:
    folder = saved(
        tmp_path,
        "sequence",
        id2label={0: "entailment", 1: "neutral", 2: "contradiction"},
        label2id={"entailment": 0, "neutral": 1, "contradiction": 2},
    )
    answer = pipeline("zero-shot-classification", model=folder)(
        "the dog ran .", candidate_labels=["sport", "politics"]
    )
    assert set(answer["labels"]) == {"sport", "politics"}
    assert sum(answer["scores"]) == pytest.approx(1, abs=1e-4)


def test_feature_extraction_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    extract = pipeline("feature-extraction", model=saved(tmp_path, "base"))
    texts = ["the cat", "the big dog ran under the house ."]
    alone = [extract(text)[0] for text in texts]
    together = extract(texts, batch_size=2)
    for single, batched in zip(alone, together, strict=True):
        states = torch.tensor(batched[0])[: len(single)]
        assert torch.allclose(torch.tensor(single), states, atol=1e-5)
