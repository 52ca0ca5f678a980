# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Reading a SentencePiece unigram model, and its search over pieces as `tokenizers` has it."""

import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import models, normalizers


BLANK = "\u2581"  # SentencePiece's sign for a space
UNK, CLS, SEP, PAD, MASK = "<unk>", "[CLS]", "[SEP]", "<pad>", "[MASK]"
APPENDED_TOKENS = (CLS, SEP, PAD, MASK)  # rule 1: those that the model lacks are appended in this order

# Pieces of the protobuf's enum SentencePiece.Type.
NORMAL, UNKNOWN, USER_DEFINED, BYTE = 1, 2, 4, 6


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary: its text, its log-probability, its type in the protobuf's numbering."""

    text: str
    score: float
    kind: int

    @property
    def is_matched(self) -> bool:
        """Whether SentencePiece looks for it in texts. Control, unknown, unused and byte pieces aren't in its trie."""
        return self.kind in (NORMAL, USER_DEFINED)


@dataclass(frozen=True)
class SentencePieceModel:
    """What the conversion needs of a SentencePiece model."""

    pieces: tuple[Piece, ...]
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
        return {p.text for p in self.pieces if not p.is_matched or is_digit_comma(p.text)} - self.named

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


def is_digit_comma(text: str) -> bool:
    return len(text) > 1 and text[-1] == "," and text[-2].isdigit()


def protobuf_module() -> tuple[Any, type[Exception]]:
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


def read_model(model_file: str | os.PathLike[str]) -> SentencePieceModel:
    """Parses the file and refuses what can't be converted. Errors: see `build_tokenizer`."""
    protobuf, decode_error = protobuf_module()
    name = os.fspath(model_file)
    proto = protobuf.ModelProto()
    try:
        proto.ParseFromString(Path(model_file).read_bytes())
        problem = problem_of(proto, protobuf)
    except (decode_error, UnicodeDecodeError):
        problem = "it is cut off, corrupt or not a SentencePiece model"
    if problem is not None:
        raise ValueError(f"{name!r} cannot be converted: {problem}.")
    normalizer, trainer = proto.normalizer_spec, proto.trainer_spec
    unk_id = next(i for i, piece in enumerate(proto.pieces) if piece.type == UNKNOWN)
    return SentencePieceModel(
        # The original calls the unknown piece `<unk>` whatever the model calls it.
        pieces=tuple(Piece(UNK if i == unk_id else p.piece, p.score, p.type) for i, p in enumerate(proto.pieces)),
        unk_id=unk_id,
        byte_fallback=trainer.byte_fallback,
        charsmap=normalizer.precompiled_charsmap,
        add_dummy_prefix=normalizer.add_dummy_prefix,
        remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
    )


def problem_of(proto: Any, protobuf: Any) -> str | None:
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


def unigram(model: SentencePieceModel, unmatchable: set[str]) -> models.Unigram:
    """
    The search over pieces. Pieces of `unmatchable` get a space in front: texts have none left when they are searched.

    Lower scores wouldn't do: the price of an unknown character is the lowest score of all pieces minus 10.
    """
    vocabulary = [
        (" " + p.text if p.text in unmatchable else p.text, s)
        for p, s in zip(model.pieces, scores(model), strict=True)
    ]
    return models.Unigram(vocabulary, unk_id=model.unk_id, byte_fallback=model.byte_fallback)


def scores(model: SentencePieceModel) -> list[float]:
    """
    The scores that SentencePiece searches with. A user-defined piece always has -0.1, so that nothing beats it
    (measured with sentencepiece 0.1.99 to 0.2.1; 0.2.3 has 0.1 for each byte but the first). Types that aren't
    searched for get the best score, as they must not lower the minimum.
    """
    best = max(piece.score for piece in model.pieces if piece.kind == NORMAL)
    return [
        piece.score if piece.kind == NORMAL else -0.1 if piece.kind == USER_DEFINED else best for piece in model.pieces
    ]
