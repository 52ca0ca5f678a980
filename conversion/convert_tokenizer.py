# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The original project's tokenizer as a fast one: a bare SentencePiece unigram model in, tokenizer.json out.

The original reads its `.model` with the slow ALBERT tokenizer of its day, which comes to these rules:

1. special tokens that the model lacks are appended: [CLS], [SEP], `<pad>`, [MASK] after its V pieces;
2. the text is split at literal special tokens, also within words; blanks around them vanish;
3. each part: white space becomes single spaces, doubled quotes become `"`, NFKD, marks removed, lower case; then the
   model's own normaliser;
4. a piece that ends in digit and comma is encoded once more without its comma, which is then appended;
5. a run of unknown characters is one `<unk>`;
6. [CLS] A [SEP] B [SEP] with segments 0 and 1, padding on the right.

`tokenizer.json` can say all of them but the fourth, since its result depends on a search that the first one has
already made; `comma_rules.py` says how close this comes. No name below appears in the saved files, so that they load
without this package.
"""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from modeling_convbert_composite.conversion.comma_rules import comma_splitters
from modeling_convbert_composite.conversion.sentencepiece_model import (
    APPENDED_TOKENS,
    BLANK,
    CLS,
    MASK,
    PAD,
    SEP,
    UNK,
    SentencePieceModel,
    is_digit_comma,
    read_model,
    unigram,
)


def build_tokenizer(
    model_file: str | os.PathLike[str],
    *,
    model_max_length: int | None = None,
    do_lower_case: bool = True,
    keep_accents: bool = False,
    return_token_type_ids: bool = True,
) -> PreTrainedTokenizerFast:
    """
    Builds the fast tokenizer whose ids are those of the original project's tokenizer for the same file.

    With V pieces the ids are the pieces' own, then [CLS] = V, [SEP] = V + 1, `<pad>` = V + 2, [MASK] = V + 3; those
    that the model already holds keep their id and the others move up. Where ids can still differ from the original's:

    - texts with a comma after a digit, if the model has pieces for that (`digit_comma_pieces`);
    - equally good ways to cut a run such as `====`: SentencePiece adds scores in single precision, this in double;
    - characters newer than Unicode 9, for which `tokenizers` has no decomposition;
    - stacked accents in an order that is not canonical, with `keep_accents`;
    - a pair cut to a length that leaves room for an odd number of tokens, with the first text not the longer one: the
      odd token stays in the second text here, in the first in the original. The library offers no choice;
    - `tokenizer(text, "")`, where the library drops the empty second text; `tokenizer([text], [""])` is right.

    Args:
        model_file: a SentencePiece model of type unigram.
        model_max_length: longest input in tokens, special tokens included; None for no limit, as in the original.
        do_lower_case: lower-case the text. The original's default, even for a model trained on cased text.
        keep_accents: leave out the NFKD decomposition and the removal of combining characters.
        return_token_type_ids: whether the tokenizer returns segment ids (0 for the first text, 1 for the second).

    Raises:
        ValueError: the file is empty, cut off, corrupt, or of a kind that the original could not read either.
        OSError: the file cannot be read.
        ImportError: `sentencepiece` or `protobuf` is not installed.
    """
    model = read_model(model_file)
    text_rules = _normalizer(model, do_lower_case=do_lower_case, keep_accents=keep_accents)
    tokenizer = Tokenizer(unigram(model, model.unmatchable))
    tokenizer.normalizer = text_rules
    tokenizer.pre_tokenizer = _pre_tokenizer(model, text_rules)
    tokenizer.decoder = _decoder(model)
    # Not normalised: rule 2 finds the literal special tokens in the raw text, case-sensitively. Blanks around them
    # need no stripping here: they end up as empty words.
    special = {name: AddedToken(name, normalized=False, special=True) for name in (UNK, *APPENDED_TOKENS)}
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (CLS, SEP)],
    )
    type_ids = ["token_type_ids"] if return_token_type_ids else []
    limit = {} if model_max_length is None else {"model_max_length": model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=special[CLS],
        eos_token=special[SEP],
        unk_token=special[UNK],
        sep_token=special[SEP],
        pad_token=special[PAD],
        cls_token=special[CLS],
        mask_token=special[MASK],
        padding_side="right",
        truncation_side="right",
        model_input_names=["input_ids", *type_ids, "attention_mask"],
        clean_up_tokenization_spaces=True,  # the original's decoding removes spaces before punctuation
        **limit,
    )


def digit_comma_pieces(model_file: str | os.PathLike[str]) -> list[str]:
    """
    The pieces that rule 4 splits again, those that end in a digit and a comma, in the order of their ids.

    The tokenizer of `build_tokenizer` never produces their ids, and neither does the original.

    Raises:
        ValueError, OSError, ImportError: as `build_tokenizer`.
    """
    model = read_model(model_file)
    return [piece.text for piece in model.pieces if piece.is_matched and is_digit_comma(piece.text)]


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: str | os.PathLike[str]) -> None:
    """
    Saves the tokenizer into `folder` under a class name that `AutoTokenizer` finds in transformers 4.57 and 5 alike.

    The library itself writes `TokenizersBackend`, which transformers 4 doesn't know. The files depend on the tokenizer
    only: padding and truncation left over from its last call are switched off (every call sets them anew).
    """
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.save_pretrained(folder)
    file = Path(folder) / "tokenizer_config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


# Python's str.lower() has one rule that looks at neighbours: a capital sigma becomes the final form after a cased
# letter unless one follows, where characters that case ignores (apostrophes, full stops, marks) don't count.
_CASED = r"[\p{Cased}&&\P{Case_Ignorable}]"
_FINAL_SIGMA = rf"{_CASED}\p{{Case_Ignorable}}*\K\x{{3a3}}(?!\p{{Case_Ignorable}}*{_CASED})"


def _normalizer(model: SentencePieceModel, *, do_lower_case: bool, keep_accents: bool) -> normalizers.Sequence:
    """Rule 3: what Python does to the text, then what SentencePiece does to it."""
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(_character_class(str.isspace) + "+"), " "),
        normalizers.Replace(Regex(r"\A | \z"), ""),
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not keep_accents:
        # Not StripAccents: that one removes all marks, Python's rule only those with a combining class, so that vowel
        # signs of Indic scripts and variation selectors stay.
        steps += [normalizers.NFKD(), normalizers.Replace(Regex(_character_class(_is_combining) + "+"), "")]
    if do_lower_case:
        steps += [normalizers.Replace(Regex(_FINAL_SIGMA), "\u03c2"), normalizers.Lowercase()]
    if model.map_character("e\u0301") == "\u00e9":
        # The map composes, but the library takes the first match of a cluster, SentencePiece the longest, as NFC does.
        # Without this, Hangul stays in the parts that NFKD has made of it.
        steps.append(normalizers.NFC())
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    return normalizers.Sequence(steps if model.splits_into_words else steps + _blank_steps(model))


def _blank_steps(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    """What SentencePiece does to spaces, for models whose texts can't be searched word by word."""
    steps: list[normalizers.Normalizer] = []
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" +"), " "), normalizers.Replace(Regex(rf"\A |[ {BLANK}]+\z"), "")]
    steps.append(normalizers.Replace(" ", BLANK))
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(BLANK))
    return steps


def _is_combining(character: str) -> bool:
    return unicodedata.combining(character) != 0


@cache
def _character_class(is_member: Callable[[str], bool]) -> str:
    """A regular expression's class of the characters for which `is_member`, a Python function, says yes."""
    ranges: list[list[int]] = []
    for code in filter(lambda code: is_member(chr(code)), range(sys.maxunicode + 1)):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"


def _pre_tokenizer(model: SentencePieceModel, text_rules: normalizers.Normalizer) -> pre_tokenizers.Sequence:
    """Cuts the text into words that are searched one by one, with cuts where only this gives the original's ids."""
    if model.splits_into_words:
        # Unlike Metaspace alone, this keeps the spaces out of the words' offsets.
        steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(BLANK, prepend_scheme="always")]
    else:
        steps = [pre_tokenizers.Metaspace(BLANK, prepend_scheme="never", split=model.has_pieces_within_words)]
    guard = _guard_pattern(model, text_rules)
    if guard:
        steps.append(pre_tokenizers.Split(Regex(guard), "merged_with_previous"))
    if model.splits_into_words:
        steps += comma_splitters(model)
    return pre_tokenizers.Sequence(steps)


def _guard_pattern(model: SentencePieceModel, text_rules: normalizers.Normalizer) -> str:
    """
    Where to cut texts such as `<UNK>`, which lower-casing makes equal to a piece that SentencePiece wouldn't match.

    Those pieces can't be made unmatchable, as their names are needed. A cut between two characters that no matched
    piece has side by side changes nothing else; failing that, the first place is taken. Empty without such pieces.
    """
    neighbours = {text[i : i + 2] for text in model.matched for i in range(len(text) - 1)}
    unmatched_names = model.named - model.matched
    cuts = []
    for name in (piece.text for piece in model.pieces if piece.text in unmatched_names):
        if not text_rules.normalize_str(name).endswith(name):
            continue  # no text is ever normalised to this
        cut = next((i for i in range(1, len(name)) if name[i - 1 : i + 1] not in neighbours), 1)
        cuts.append(f"{re.escape(name[:cut])}(?={re.escape(name[cut:])})")
    return "|".join(cuts)


def _decoder(model: SentencePieceModel) -> decoders.Sequence:
    """
    Special tokens stand apart, as in the original, which decodes the pieces between them and joins all with spaces.
    Until the pieces are joined, a space in a token is either the one of `unigram` or marks a special token.
    """
    steps: list[decoders.Decoder] = [decoders.ByteFallback()] if model.byte_fallback else []
    steps.append(decoders.Replace(" ", ""))
    steps += [decoders.Replace(Regex(rf"\A{re.escape(name)}\z"), f" {name} ") for name in APPENDED_TOKENS]
    steps += [
        decoders.Fuse(),
        decoders.Replace(Regex(f"{BLANK}* +{BLANK}*"), " "),
        decoders.Replace(BLANK, " "),
        decoders.Replace(Regex(r"\A +| +\z"), ""),
    ]
    return decoders.Sequence(steps)
