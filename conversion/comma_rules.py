# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Rule 4 of the original's tokenizer, the second encoding of pieces that end in digit and comma, as cuts in a text.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from tokenizers import Regex, pre_tokenizers

from modeling_convbert_composite.conversion.sentencepiece_model import (
    BLANK,
    SentencePieceModel,
    is_digit_comma,
    unigram,
)


DIGITS = "0123456789"
UNSEEN = "\ue000"  # a private character, to stand for one that no piece contains
# Digit runs up to this length are examined one by one: years and groups of thousands.
EXAMINED_DIGITS = 4
# Bounds the size of tokenizer.json and the time per word with vocabularies that hold thousands of digit-comma pieces.
MAX_COMMA_RULES = 400


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


def comma_splitters(model: SentencePieceModel) -> list[pre_tokenizers.PreTokenizer]:
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


def _comma_rules(model: SentencePieceModel) -> list[_CommaRule]:
    """The cuts, shortest runs of digits first."""
    if not any(is_digit_comma(text) for text in model.matched):
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

    def __init__(self, model: SentencePieceModel) -> None:
        digit_comma = {text for text in model.matched if is_digit_comma(text)}
        self._with = unigram(model, model.unmatchable - digit_comma)
        self._without = unigram(model, model.unmatchable)
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
        if not is_digit_comma(piece):
            return [self._id(piece)]
        again = [token.value for token in self._with.tokenize(BLANK + piece[:-1].replace(BLANK, ""))]
        if not piece.startswith(BLANK):
            again[0] = again[0].removeprefix(BLANK)
        return [self._id(text) for text in [*again, ","] if text]

    def _id(self, piece: str) -> int:
        identifier = self._with.token_to_id(piece)
        return self._unk_id if identifier is None else identifier
