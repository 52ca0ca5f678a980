# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Every pipeline that fits an encoder runs, from a folder, with the plugin imported."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import HEADS
from test_tokenizer import model_file, train  # noqa: F401
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    pipeline,
)
from transformers.modeling_outputs import TokenClassifierOutput

from modeling_convbert_composite.conversion.convert_tokenizer import build_tokenizer
from modeling_convbert_composite.pipelines import ConvBertCompositeTokenClassificationPipeline


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


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_zero_shot_finds_entailment_by_its_name(order: tuple[int, ...], tmp_path: Path) -> None:
    """R59: however a model numbers its classes, the same scores, and no warning."""
    labels = ("contradiction", "entailment", "neutral")
    model = HEADS["sequence"].build(vocab_size=len(WORDS), pad_token_id=0)

    def scores(order: tuple[int, ...], folder: Path) -> dict[str, float]:
        permuted = HEADS["sequence"].build(vocab_size=len(WORDS), pad_token_id=0)
        permuted.load_state_dict(model.state_dict())
        with torch.no_grad():
            permuted.classifier.weight.copy_(model.classifier.weight[list(order)])
            permuted.classifier.bias.copy_(model.classifier.bias[list(order)])
        permuted.config.id2label = {index: labels[old] for index, old in enumerate(order)}
        permuted.config.label2id = {name: index for index, name in permuted.config.id2label.items()}
        permuted.save_pretrained(folder)
        word_tokenizer().save_pretrained(folder)
        answer = pipeline("zero-shot-classification", model=str(folder))("the dog ran", ["sport", "politics", "cat"])
        return dict(zip(answer["labels"], answer["scores"], strict=True))

    assert scores(order, tmp_path / "permuted") == pytest.approx(scores((0, 1, 2), tmp_path / "plain"), abs=1e-6)


@pytest.mark.parametrize("strategy", ["first", "average", "max"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Groenlinks praat over Schiphol.", ["Groenlinks", "praat", "over", "Schiphol."]),
        ("5.975,74 euro", ["5.975,74", "euro"]),
        ("  twee   spaties ", ["twee", "spaties"]),
        ("Één café", ["Één", "café"]),
        ("a \u2603b\u2603 c", ["a", "\u2603b\u2603", "c"]),
    ],
)
def test_words_stay_whole_with_sentencepiece(
    text: str,
    words: list[str],
    strategy: str,
    model_file: Path,  # noqa: F811
) -> None:
    """
    R73: with a head that gives every piece of a word its class, aggregated are whole words, and offsets cut them out.
    The vocabulary is small: words begin with a lone mark of a blank, or have pieces that are unknown.
    """
    tokenizer = build_tokenizer(model_file)
    model = HEADS["token"].build(vocab_size=len(tokenizer), num_labels=2)
    model.config.id2label, model.config.label2id = {0: "B-A", 1: "B-B"}, {"B-A": 0, "B-B": 1}
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    assert len(offsets) > len(words) + 2, "some word must have several pieces"
    starts = [text.index(word) for word in words]

    def one_class_a_word(**inputs: torch.Tensor) -> TokenClassifierOutput:
        logits = torch.zeros(1, len(offsets), 2)
        for position, (_, end) in enumerate(offsets):
            word = sum(start < end for start in starts) - 1
            logits[0, position, word % 2] = 1.0 + np.random.default_rng(position).random()
        return TokenClassifierOutput(logits=logits)

    model.forward = one_class_a_word
    tag = pipeline(
        "token-classification",
        model=model,
        tokenizer=tokenizer,
        aggregation_strategy=strategy,
        pipeline_class=ConvBertCompositeTokenClassificationPipeline,
    )
    answers = tag(text)
    assert [text[answer["start"] : answer["end"]].strip() for answer in answers] == words
    assert [answer["entity_group"] for answer in answers] == ["AB"[index % 2] for index in range(len(words))]


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_the_pipeline_for_words_is_the_librarys_for_wordpiece(strategy: str, tmp_path: Path) -> None:
    folder, text = saved(tmp_path, "token"), "the cats sat, under this-house"
    ours, theirs = (
        pipeline("token-classification", model=folder, aggregation_strategy=strategy, pipeline_class=kind)(text)
        for kind in (ConvBertCompositeTokenClassificationPipeline, None)
    )
    assert ours == theirs


@pytest.mark.parametrize("targets", [["query", "value"], ["query", "key", "value", "dense"], "all-linear"])
def test_lora_saved_and_loaded_gives_the_same(targets: list[str] | str, tmp_path: Path) -> None:
    """R72: the adapters and the head are saved, and nothing else is trained."""
    peft = pytest.importorskip("peft")
    base = saved(tmp_path / "base", "sequence")
    inputs = word_tokenizer()(["the cat sat", "a big dog ran under the mat"], padding=True, return_tensors="pt")
    arguments = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=targets, init_lora_weights=False)
    model = peft.get_peft_model(AutoModelForSequenceClassification.from_pretrained(base), arguments)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("classifier" in name and "lora" not in name for name in trained)
    assert all("lora" in name or "classifier" in name for name in trained)
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    model(**inputs, labels=torch.tensor([0, 2])).loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        logits = model(**inputs).logits
        untouched = AutoModelForSequenceClassification.from_pretrained(base)(**inputs).logits
    assert not torch.allclose(logits, untouched, atol=1e-3)
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(
        AutoModelForSequenceClassification.from_pretrained(base), tmp_path / "adapter"
    ).eval()
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, logits)
        merged = again.merge_and_unload()
        assert torch.allclose(merged(**inputs).logits, logits, atol=1e-5)


def test_sentence_transformers_takes_a_folder(tmp_path: Path) -> None:
    """Mean pooling over real tokens, whatever the batch."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = saved(tmp_path / "base", "base")
    texts = ["the cat", "a big dog ran under the mat on this house"]
    encoder = sentence_transformers.SentenceTransformer(folder, device="cpu")
    vectors = encoder.encode(texts)
    inputs = word_tokenizer()(texts, padding=True, return_tensors="pt")
    model = HEADS["base"].build(vocab_size=len(WORDS), pad_token_id=0)
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    assert np.allclose(vectors, ((states * mask).sum(1) / mask.sum(1)).numpy(), atol=1e-5)
    encoder.save(str(tmp_path / "saved"))
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert np.allclose(again.encode(texts), vectors, atol=1e-6)


def test_feature_extraction_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    extract = pipeline("feature-extraction", model=saved(tmp_path, "base"))
    texts = ["the cat", "the big dog ran under the house ."]
    alone = [extract(text)[0] for text in texts]
    together = extract(texts, batch_size=2)
    for single, batched in zip(alone, together, strict=True):
        states = torch.tensor(batched[0])[: len(single)]
        assert torch.allclose(torch.tensor(single), states, atol=1e-5)
