# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The original project's tokenizer as a fast one: a bare SentencePiece unigram model in, tokenizer.json out.

The original reads its `.model` with the slow ALBERT tokenizer of its day. The rules that this gives are listed in the
golden files' README, section 7, and "rule 1" to "rule 6" below are the items of that list. `tokenizer.json` can say
all of them but the fourth: every piece that ends in digit and comma is encoded a second time after the search, and the
result depends on a search that the first one has already made. See `_comma_splitters` for how close this comes.

No name below appears in the saved files, so they load without this package.
"""

import json
import math
import os
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


BLANK = "\u2581"  # SentencePiece's sign for a space
UNK, CLS, SEP, PAD, MASK = "<unk>", "[CLS]", "[SEP]", "<pad>", "[MASK]"
APPENDED_TOKENS = (CLS, SEP, PAD, MASK)  # rule 1: those that the model lacks are appended in this order

# Pieces of the protobuf's enum SentencePiece.Type.
NORMAL, UNKNOWN, USER_DEFINED, BYTE = 1, 2, 4, 6

DIGITS = "0123456789"
UNSEEN = "\ue000"  # a private character, to stand for one that no piece contains
# Digit runs up to this length are examined one by one for rule 4: years and groups of thousands.
EXAMINED_DIGITS = 4
# Bounds the size of tokenizer.json and the time per word with vocabularies that hold thousands of digit-comma pieces.
MAX_COMMA_RULES = 400


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
    model = _read_model(model_file)
    text_rules = _normalizer(model, do_lower_case=do_lower_case, keep_accents=keep_accents)
    tokenizer = Tokenizer(_unigram(model, model.unmatchable))
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
    model = _read_model(model_file)
    return [piece.text for piece in model.pieces if piece.is_matched and _is_digit_comma(piece.text)]


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


# ---------------------------------------------------------------------------------------------------------------------
# Reading the model file


@dataclass(frozen=True)
class _Piece:
    """One entry of the vocabulary: its text, its log-probability, its type in the protobuf's numbering."""

    text: str
    score: float
    kind: int

    @property
    def is_matched(self) -> bool:
        """Whether SentencePiece looks for it in texts. Control, unknown, unused and byte pieces aren't in its trie."""
        return self.kind in (NORMAL, USER_DEFINED)


@dataclass(frozen=True)
class _Model:
    """What the conversion needs of a SentencePiece model."""

    pieces: tuple[_Piece, ...]
    unk_id: int
    byte_fallback: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool

    @property
    def matched(self) -> set[str]:
        return {piece.text for piece in self.pieces if piece.is_matched}

    @property
    def named(self) -> set[str]:
        """Texts that must stay in the vocabulary as they are because something looks their ids up by name."""
        return {UNK, *APPENDED_TOKENS} | {piece.text for piece in self.pieces if piece.kind == BYTE}

    @property
    def unmatchable(self) -> set[str]:
        """Texts that no search may find: digit-comma pieces and those that SentencePiece doesn't look for itself."""
        return {p.text for p in self.pieces if not p.is_matched or _is_digit_comma(p.text)} - self.named

    @property
    def has_pieces_within_words(self) -> bool:
        """Whether no piece reaches into the next word, known or unknown: an unknown blank joins unknown runs."""
        return BLANK in self.matched and not any(BLANK in text[1:] for text in self.matched)

    @property
    def splits_into_words(self) -> bool:
        """Whether a text is the list of its words: each begins with a blank, and blanks come from nowhere else."""
        has_usual_blanks = self.add_dummy_prefix and self.remove_extra_whitespaces
        return has_usual_blanks and self.has_pieces_within_words and BLANK not in self.map_character(BLANK)

    def map_character(self, character: str) -> str:
        """What the model's own table of replacements makes of a character."""
        return str(normalizers.Precompiled(self.charsmap).normalize_str(character)) if self.charsmap else character


def _is_digit_comma(text: str) -> bool:
    return len(text) > 1 and text[-1] == "," and text[-2].isdigit()


def _protobuf() -> tuple[Any, type[Exception]]:
    """SentencePiece's protobuf module and the error that parsing raises. Imported late: both are optional."""
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ImportError(
            f"Converting a SentencePiece model needs {error.name or 'protobuf'!r}: "
            "pip install 'convbert-composite[convert]'"
        ) from error
    return sentencepiece_model_pb2, DecodeError


def _read_model(model_file: str | os.PathLike[str]) -> _Model:
    """Parses the file and refuses what can't be converted. Errors: see `build_tokenizer`."""
    protobuf, decode_error = _protobuf()
    name = os.fspath(model_file)
    proto = protobuf.ModelProto()
    try:
        proto.ParseFromString(Path(model_file).read_bytes())
        problem = _problem_of(proto, protobuf)
    except (decode_error, UnicodeDecodeError):
        problem = "it is cut off, corrupt or not a SentencePiece model"
    if problem is not None:
        raise ValueError(f"{name!r} cannot be converted: {problem}.")
    normalizer, trainer = proto.normalizer_spec, proto.trainer_spec
    unk_id = next(i for i, piece in enumerate(proto.pieces) if piece.type == UNKNOWN)
    return _Model(
        # The original calls the unknown piece `<unk>` whatever the model calls it.
        pieces=tuple(_Piece(UNK if i == unk_id else p.piece, p.score, p.type) for i, p in enumerate(proto.pieces)),
        unk_id=unk_id,
        byte_fallback=trainer.byte_fallback,
        charsmap=normalizer.precompiled_charsmap,
        add_dummy_prefix=normalizer.add_dummy_prefix,
        remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
    )


def _problem_of(proto: Any, protobuf: Any) -> str | None:
    """What keeps this model from being converted, None if nothing does."""
    if not proto.pieces:
        return "it holds no pieces: it is empty or not a SentencePiece model"
    # The pieces come first in the file, so a cut between two of them still parses.
    missing = [name for name in ("trainer_spec", "normalizer_spec") if not proto.HasField(name)]
    if missing:
        return f"it has no {missing[0]}, so it is cut off"
    model_type = proto.trainer_spec.model_type
    if model_type != protobuf.TrainerSpec.UNIGRAM:
        return f"its model type is {protobuf.TrainerSpec.ModelType.Name(model_type)}, and only UNIGRAM is supported"
    if proto.trainer_spec.treat_whitespace_as_suffix or not proto.normalizer_spec.escape_whitespaces:
        return "it treats blanks in a way that is not supported (as suffix, or not escaped)"
    unknown = sum(piece.type == UNKNOWN for piece in proto.pieces)
    if unknown != 1:
        return f"it has {unknown} unknown pieces, and it must have one"
    texts = [UNK if piece.type == UNKNOWN else piece.piece for piece in proto.pieces]
    if not all(isinstance(text, str) for text in texts):  # protobuf hands out what isn't UTF-8 as bytes
        return "it has a piece that is not valid UTF-8, so it is corrupt"
    text, count = Counter(texts).most_common(1)[0]
    if count > 1 or "" in texts:
        return f"the piece {text!r} is in it {count} times" if count > 1 else "it has an empty piece"
    if not all(math.isfinite(piece.score) for piece in proto.pieces):
        return "it has a piece whose score is not a finite number"
    if not any(piece.type == NORMAL for piece in proto.pieces):
        return "it has no normal pieces"
    charsmap = proto.normalizer_spec.precompiled_charsmap
    try:
        _ = charsmap and normalizers.Precompiled(charsmap)
    except Exception:  # the library raises a bare Exception
        return "its table of character replacements is corrupt"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Vocabulary


def _unigram(model: _Model, unmatchable: set[str]) -> models.Unigram:
    """
    The search over pieces. Pieces of `unmatchable` get a space in front: texts have none left when they are searched.

    Lower scores wouldn't do: the price of an unknown character is the lowest score of all pieces minus 10.
    """
    vocabulary = [
        (" " + p.text if p.text in unmatchable else p.text, s)
        for p, s in zip(model.pieces, _scores(model), strict=True)
    ]
    return models.Unigram(vocabulary, unk_id=model.unk_id, byte_fallback=model.byte_fallback)


def _scores(model: _Model) -> list[float]:
    """
    The scores that SentencePiece searches with. A user-defined piece always has -0.1, so that nothing beats it
    (measured with sentencepiece 0.1.99 to 0.2.1; 0.2.3 has 0.1 for each byte but the first). Types that aren't
    searched for get the best score, as they must not lower the minimum.
    """
    best = max(piece.score for piece in model.pieces if piece.kind == NORMAL)
    return [
        piece.score if piece.kind == NORMAL else -0.1 if piece.kind == USER_DEFINED else best for piece in model.pieces
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Text before the search


# Python's str.lower() has one rule that looks at neighbours: a capital sigma becomes the final form after a cased
# letter unless one follows, where characters that case ignores (apostrophes, full stops, marks) don't count.
_CASED = r"[\p{Cased}&&\P{Case_Ignorable}]"
_FINAL_SIGMA = rf"{_CASED}\p{{Case_Ignorable}}*\K\x{{3a3}}(?!\p{{Case_Ignorable}}*{_CASED})"


def _normalizer(model: _Model, *, do_lower_case: bool, keep_accents: bool) -> normalizers.Sequence:
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


def _blank_steps(model: _Model) -> list[normalizers.Normalizer]:
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


def _pre_tokenizer(model: _Model, text_rules: normalizers.Normalizer) -> pre_tokenizers.Sequence:
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
        steps += _comma_splitters(model)
    return pre_tokenizers.Sequence(steps)


def _guard_pattern(model: _Model, text_rules: normalizers.Normalizer) -> str:
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


# ---------------------------------------------------------------------------------------------------------------------
# Rule 4, the comma after a digit


@dataclass(frozen=True)
class _Context:
    """What stands before a run of digits: a sample of it for searching, and a lookbehind that finds it."""

    sample: str
    pattern: str


@dataclass(frozen=True)
class _Outcome:
    """How the original's search treats one context, run of digits and comma, and whether we get the same."""

    taken: int  # characters before the comma that its digit-comma piece covers; 0: no such piece, or no cut helps
    differs: bool  # whether the search without digit-comma pieces gives other ids


@dataclass(frozen=True)
class _CommaRule:
    """Cut out `text` where it follows `before` (a pattern) and precedes a comma."""

    before: str
    text: str


def _comma_splitters(model: _Model) -> list[pre_tokenizers.PreTokenizer]:
    r"""
    Cuts that make the search without digit-comma pieces give the ids of rule 4.

    Where the original's best path has a digit-comma piece, the path consists of three independent ones: up to the
    piece, the piece, and after its comma. So cutting the word there (`12|9|,000`) gives its ids, if the part in the
    middle is encoded the same the second time. Where to cut depends on the word, and is found out here by searching
    all runs of up to four digits after all kinds of left neighbours; of those, the cuts that change something become
    one regular expression. What is left: longer runs whose last four digits don't decide, digits after punctuation
    within a word (if pieces span the two), pieces that go on after the comma, pieces whose second encoding isn't in
    the vocabulary (the original gives `<unk>` for `1819` if only `\u25811819` is a piece), and whatever exceeds
    `MAX_COMMA_RULES`.
    """
    rules = _comma_rules(model)
    if not rules:
        return []
    before: dict[str, set[str]] = defaultdict(set)
    for rule in rules:
        before[rule.text].add(rule.before)
    # A piece such as `,000` may win over the digit-comma piece, so there's no cut where one could follow. Hence no
    # piece begins with the comma after a cut, and it needs no cut of its own.
    goes_on = {
        text[i + 1]
        for text in model.matched
        for i in range(len(text) - 1)
        if text[i] == "," and (i == 0 or text[i - 1] in DIGITS)
    }
    alternatives = [_lookbehind(befores) + re.escape(text) for text, befores in sorted(before.items())]
    longest = max(map(len, before))
    end = f"(?=,(?!{_one_of(goes_on)}))" if goes_on else "(?=,)"
    # The first condition is there for speed: it fails at once in words without a comma after a digit.
    pattern = rf"(?=.{{0,{longest - 1}}}[0-9],)(?:{'|'.join(alternatives)}){end}"
    return [pre_tokenizers.Split(Regex(pattern), "isolated")]


def _lookbehind(patterns: set[str]) -> str:
    """Any of the patterns before this place; those that differ in a leading digit only become one."""
    if "" in patterns:
        return ""
    heads: dict[str, set[str]] = defaultdict(set)
    for pattern in patterns:
        starts_with_digit = pattern[0] in DIGITS
        heads[pattern[1:] if starts_with_digit else pattern].add(pattern[0] if starts_with_digit else "")
    parts = []
    for rest, digits in sorted(heads.items()):
        parts += [rest] if "" in digits else []
        parts += [_one_of(digits - {""}) + rest] if digits - {""} else []
    return f"(?<={'|'.join(parts)})"


def _one_of(characters: Iterable[str], *, negated: bool = False) -> str:
    return f"[{'^' if negated else ''}{''.join(map(re.escape, sorted(characters)))}]"


def _comma_rules(model: _Model) -> list[_CommaRule]:
    """The cuts, shortest runs of digits first."""
    if not any(_is_digit_comma(text) for text in model.matched):
        return []
    search = _CommaSearch(model)
    contexts = _contexts(model.matched)
    rules: list[tuple[int, _CommaRule]] = []
    for digit in DIGITS:
        rules += _rules_for_run(digit, contexts, search)[1]
    rules.sort(key=lambda item: (item[0], item[1].text, item[1].before))
    return [rule for _, rule in rules[:MAX_COMMA_RULES]]


def _contexts(matched: set[str]) -> list[_Context]:
    """
    The left neighbours of a run of digits for which the word up to the comma is known as far as it matters: the start
    of the word, the start and one character that some piece has before a digit, and any other character.
    """
    joined = {a for text in matched for a, b in pairwise(text) if b in DIGITS and a not in DIGITS}
    joined.discard(BLANK)
    starts = [_Context(BLANK + c, BLANK + re.escape(c)) for c in sorted(joined)]
    other = _Context(BLANK + UNSEEN, _one_of({BLANK, *DIGITS, *joined}, negated=True))
    return [_Context(BLANK, BLANK), *starts, other]


def _rules_for_run(
    run: str, contexts: list[_Context], search: "_CommaSearch"
) -> tuple[set[int], list[tuple[int, _CommaRule]]]:
    """
    The rules for texts whose last digits before the comma are `run`: one if all of them are cut at the same place,
    else one for each context in which the cut is needed, and those for longer runs.

    Returns all `taken` and, with the length of the run that each is for, the rules.
    """
    outcomes = [(context, search.outcome(context.sample + run)) for context in contexts]
    taken = {outcome.taken for _, outcome in outcomes}
    rules = [
        (len(run), _rule(context, run, outcome.taken))
        for context, outcome in outcomes
        if outcome.differs and outcome.taken
    ]
    if len(run) < EXAMINED_DIGITS:
        for digit in DIGITS:
            taken_below, rules_below = _rules_for_run(digit + run, contexts, search)
            taken |= taken_below
            rules += rules_below
    if rules and len(taken) == 1 and max(taken) in range(1, len(run) + 1):
        rules = [(len(run), _CommaRule(run[: -max(taken)], run[-max(taken) :]))]
    return taken, rules


def _rule(context: _Context, run: str, taken: int) -> _CommaRule:
    if taken <= len(run):
        return _CommaRule(context.pattern + run[:-taken], run[-taken:])
    text = context.sample + run
    return _CommaRule(re.escape(text[:-taken]), text[-taken:])


class _CommaSearch:
    """The original's search and ours on single words that end in a comma."""

    def __init__(self, model: _Model) -> None:
        digit_comma = {text for text in model.matched if _is_digit_comma(text)}
        self._with = _unigram(model, model.unmatchable - digit_comma)
        self._without = _unigram(model, model.unmatchable)
        self._unk_id = model.unk_id
        # The same few pieces and beginnings come again and again.
        self._encode_again = cache(self._encode_again_once)
        self._ids_of_part = cache(self._ids)

    def outcome(self, text: str) -> _Outcome:
        """For `text` and a comma, where `text` begins with a blank and ends in a digit."""
        path = [token.value for token in self._with.tokenize(text + ",")]
        taken = len(path[-1]) - 1
        if not taken:
            return _Outcome(0, differs=False)  # no piece of this path is missing from our search
        wanted = [identifier for piece in path for identifier in self._encode_again(piece)]
        parts = (text[:-taken], text[-taken:], ",")
        helps = wanted == [identifier for part in parts for identifier in self._ids_of_part(part)]
        return _Outcome(taken if helps else 0, differs=self._ids(text + ",") != wanted)

    def _ids(self, text: str) -> list[int]:
        return [token.id for token in self._without.tokenize(text)] if text else []

    def _encode_again_once(self, piece: str) -> list[int]:
        """Rule 4 on one piece of the first search."""
        if not _is_digit_comma(piece):
            return [self._id(piece)]
        again = [token.value for token in self._with.tokenize(BLANK + piece[:-1].replace(BLANK, ""))]
        if not piece.startswith(BLANK):
            again[0] = again[0].removeprefix(BLANK)
        return [self._id(text) for text in [*again, ","] if text]

    def _id(self, piece: str) -> int:
        identifier = self._with.token_to_id(piece)
        return self._unk_id if identifier is None else identifier


# ---------------------------------------------------------------------------------------------------------------------
# Ids back to text


def _decoder(model: _Model) -> decoders.Sequence:
    """
    Special tokens stand apart, as in the original, which decodes the pieces between them and joins all with spaces.
    Until the pieces are joined, a space in a token is either the one of `_unigram` or marks a special token.
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
