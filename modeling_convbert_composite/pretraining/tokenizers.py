# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Training tokenizers on one's own text, any language, saved as tokenizer.json with BERT's special tokens."""

import random
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from modeling_convbert_composite.pretraining.settings import TokenizerSettings
from modeling_convbert_composite.pretraining.text import file_texts


# Without case and accents.
PLAIN = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
# [MASK] takes the blank before it, as the word does that it stands for.
MASK = AddedToken("[MASK]", lstrip=True, special=True)
# Bytes of SentencePiece's longest line, and of UTF-8's longest letter.
LONGEST, BYTES_OF_A_LETTER = 100_000, 4
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", MASK]


def train_tokenizer(settings: TokenizerSettings) -> PreTrainedTokenizerFast:
    """
    Trains a tokenizer and saves it in `settings.output`.

    Raises:
        ValueError: text that cannot be read, or too little of it for the vocabulary.
        FileExistsError: an earlier result. ImportError: sentencepiece is not installed (the extra `convert`).
    """
    output = settings.output
    check_output(output, settings.overwrite)
    lines = sample(settings)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as scratch:
        folder = Path(scratch)
        tokenizer = TRAINERS[settings.kind](settings, lines, folder)
        tokenizer.save_pretrained(folder)
        # Whole files take the place of those of an earlier tokenizer; a run that fails has touched none.
        output.mkdir(exist_ok=True)
        for file in folder.iterdir():
            file.replace(output / file.name)
    return tokenizer


def check_output(output: Path, overwrite: bool) -> None:
    if output.exists() and not output.is_dir():
        raise FileExistsError(f"{output} is a file; --output must be a folder.")
    if output.is_dir() and any(output.iterdir()):
        if not overwrite:
            raise FileExistsError(f"{output} is not empty; take another --output, or --overwrite it.")
        if not (output / "tokenizer.json").is_file():
            raise FileExistsError(f"{output} holds something else than a tokenizer; take another --output.")


def sample(settings: TokenizerSettings) -> list[str]:
    """A random sample of the lines (reservoir sampling), in one pass."""
    draw = random.Random(settings.seed)
    kept: list[str] = []
    texts = file_texts(settings.data, settings.errors, settings.text_column)
    for index, line in enumerate(tqdm(chain.from_iterable(texts), desc="Reading", unit=" lines")):
        if index < settings.sample:
            kept.append(line)
        elif (place := draw.randrange(index + 1)) < settings.sample:
            kept[place] = line
    return kept


def sentencepiece_tokenizer(settings: TokenizerSettings, lines: list[str], folder: Path) -> PreTrainedTokenizerFast:
    """As the paper's: a unigram model, and four special tokens behind its pieces."""
    import sentencepiece

    from modeling_convbert_composite.conversion.convert_tokenizer import build_tokenizer

    # Text as the tokenizer will see it, so that every piece can be met. (The paper's code trains on text as it is, and
    # has pieces with capitals that lower-cased text never reaches.)
    seen = lines if settings.cased else (PLAIN.normalize_str(line) for line in lines)
    # Whatever is longer than its limit would be left out without a word.
    seen = (part for line in seen for part in cut(line, LONGEST // BYTES_OF_A_LETTER))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(seen),
            model_prefix=str(folder / "spm"),
            vocab_size=settings.vocab_size,
            max_sentence_length=LONGEST,
            minloglevel=1,
        )
    except RuntimeError as error:
        raise ValueError(f"--vocab-size {settings.vocab_size} does not fit this text: {error}") from error
    (folder / "spm.vocab").unlink()
    return build_tokenizer(
        folder / "spm.model",
        model_max_length=settings.model_max_length,
        do_lower_case=not settings.cased,
        keep_accents=settings.cased,
    )


def cut(line: str, size: int) -> Iterator[str]:
    """Parts of at most `size` letters, that end at a blank where there is one."""
    start = 0
    while len(line) - start > size:
        end = line.rfind(" ", start + 1, start + size)
        end = start + size if end < 0 else end
        yield line[start:end]
        start = end
    yield line[start:]


def library_tokenizer(
    tokenizer: Tokenizer, trainer: Any, settings: TokenizerSettings, lines: list[str]
) -> PreTrainedTokenizerFast:
    """Trains a model of the `tokenizers` library and gives it BERT's special tokens."""
    tokenizer.train_from_iterator(lines, trainer, length=len(lines))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    limit = {} if settings.model_max_length is None else {"model_max_length": settings.model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token=MASK,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **limit,
    )


def wordpiece_tokenizer(settings: TokenizerSettings, lines: list[str], folder: Path) -> PreTrainedTokenizerFast:
    """As BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not settings.cased, strip_accents=not settings.cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=settings.vocab_size, special_tokens=SPECIAL)
    return library_tokenizer(tokenizer, trainer, settings, lines)


def bpe_tokenizer(settings: TokenizerSettings, lines: list[str], folder: Path) -> PreTrainedTokenizerFast:
    """Byte-level, so that nothing is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC() if settings.cased else PLAIN
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    return library_tokenizer(tokenizer, trainer, settings, lines)


TRAINERS: dict[str, Callable[[TokenizerSettings, list[str], Path], PreTrainedTokenizerFast]] = {
    "sentencepiece": sentencepiece_tokenizer,
    "wordpiece": wordpiece_tokenizer,
    "bpe": bpe_tokenizer,
}
