# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
A small GLUE of our own: nine tasks and the diagnostic set with the columns, headers and label sets of the public TSV
files, and sentences of a few words in which the label can be learnt.

    python tests/glue_folder.py FOLDER [ROWS]
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path


WORDS = (
    *("the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "house", "big", "small"),
    *("who", "where", "what", "is", "this", "about", "sport"),
)
Row = list[str]


def sentence(draw: random.Random) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(3, 8)))


def polar(draw: random.Random, is_good: bool) -> str:
    words = sentence(draw).split()
    words.insert(draw.randrange(len(words) + 1), "good" if is_good else "bad")
    return " ".join(words)


def single(draw: random.Random) -> tuple[str, int]:
    """A sentence, and 1 if it is a good one."""
    label = draw.randrange(2)
    return polar(draw, bool(label)), label


def pair(draw: random.Random) -> tuple[str, str, int]:
    """Two sentences, and 1 if they agree."""
    first, second = draw.randrange(2), draw.randrange(2)
    return polar(draw, bool(first)), polar(draw, bool(second)), int(first == second)


def table(
    draw: random.Random, rows: int, header: str, make: Callable[[random.Random, int], Row], has_header: bool = True
) -> str:
    lines = ["\t".join(header.split("|"))] if has_header else []
    lines += ["\t".join(make(draw, index)) for index in range(rows)]
    return "\n".join(lines) + "\n"


def mnli_row(is_train: bool, has_label: bool) -> Callable[[random.Random, int], Row]:
    def make(draw: random.Random, index: int) -> Row:
        first, second, agrees = pair(draw)
        label = "neutral" if draw.random() < 0.3 else ("contradiction", "entailment")[agrees]
        row = [str(index), "p", "q", "genre", "( a )", "( b )", "a", "b", first, second]
        annotators = ["x"] if is_train else ["x"] * 5
        return row + [*annotators, label] * has_label

    return make


def write_glue(folder: Path, rows: int = 24, seed: int = 0) -> Path:
    """Writes all files; test and dev files have a third of the rows."""
    draw = random.Random(seed)
    few = max(6, rows // 3)

    def put(name: str, text: str, encoding: str = "utf-8") -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(encoding))

    cola = "source|label|mark|sentence"
    for name, count in (("train", rows), ("dev", few)):
        put(f"CoLA/{name}.tsv", table(draw, count, cola, cola_row, has_header=False))
    put("CoLA/test.tsv", table(draw, few, "index|sentence", lambda d, i: [str(i), single(d)[0]]))

    for name, count in (("train", rows), ("dev", few)):
        put(f"SST-2/{name}.tsv", table(draw, count, "sentence|label", lambda d, i: [str(part) for part in single(d)]))
    put("SST-2/test.tsv", table(draw, few, "index|sentence", lambda d, i: [str(i), single(d)[0]]))

    mrpc = "{}|#1 ID|#2 ID|#1 String|#2 String"
    for name, count in (("train", rows), ("dev", few), ("test", few)):
        header = mrpc.format("index" if name == "test" else "Quality")
        put(f"MRPC/{name}.tsv", table(draw, count, header, mrpc_row(name == "test")), encoding="utf-8-sig")

    sts = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
    for name, count in (("train", rows), ("dev", few), ("test", few)):
        has_score = name != "test"
        put(f"STS-B/{name}.tsv", table(draw, count, sts + "|score" * has_score, sts_row(has_score)))

    qqp = "id|qid1|qid2|question1|question2|is_duplicate"
    for name, count in (("train", rows), ("dev", few)):
        torn = "7\t8\n" if name == "train" else ""
        put(f"QQP/{name}.tsv", table(draw, count, qqp, qqp_row) + torn)
    put("QQP/test.tsv", table(draw, few, "id|question1|question2", lambda d, i: [str(i), *pair(d)[:2]]))

    mnli = "index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse"
    mnli += "|sentence1|sentence2"
    put("MNLI/train.tsv", table(draw, 2 * rows, mnli + "|label1|gold_label", mnli_row(True, True)))
    labels = "|label1|label2|label3|label4|label5|gold_label"
    for kind in ("matched", "mismatched"):
        put(f"MNLI/dev_{kind}.tsv", table(draw, few, mnli + labels, mnli_row(False, True)))
        put(f"MNLI/test_{kind}.tsv", table(draw, few, mnli, mnli_row(False, False)))
    put(
        "diagnostic/diagnostic.tsv",
        table(draw, few, "index|sentence1|sentence2", lambda d, i: [str(i), *pair(d)[:2]]),
    )

    for task, header, names in (
        ("QNLI", "index|question|sentence", ("not_entailment", "entailment")),
        ("RTE", "index|sentence1|sentence2", ("not_entailment", "entailment")),
        ("WNLI", "index|sentence1|sentence2", ("0", "1")),
    ):
        for name, count in (("train", rows), ("dev", few), ("test", few)):
            has_label = name != "test"
            text = table(draw, count, header + "|label" * has_label, named_row(names, has_label))
            put(f"{task}/{name}.tsv", text)
    return folder


def cola_row(draw: random.Random, index: int) -> Row:
    text, label = single(draw)
    return ["gj04", str(label), "" if label else "*", text]


def mrpc_row(is_test: bool) -> Callable[[random.Random, int], Row]:
    def make(draw: random.Random, index: int) -> Row:
        first, second, agrees = pair(draw)
        # A quote that is never closed, as the real files have.
        return [str(index) if is_test else str(agrees), "1", "2", first, f'"{second}']

    return make


def sts_row(has_score: bool) -> Callable[[random.Random, int], Row]:
    def make(draw: random.Random, index: int) -> Row:
        first, second, agrees = pair(draw)
        row = [str(index), "main", "file", "2012", "1", "none", "none", first, second]
        return row + [f"{draw.uniform(3, 5) if agrees else draw.uniform(0, 2):.3f}"] * has_score

    return make


def qqp_row(draw: random.Random, index: int) -> Row:
    first, second, agrees = pair(draw)
    return [str(index), "1", "2", first, second, str(agrees)]


def named_row(names: tuple[str, str], has_label: bool) -> Callable[[random.Random, int], Row]:
    def make(draw: random.Random, index: int) -> Row:
        first, second, agrees = pair(draw)
        return [str(index), first, second] + [names[agrees]] * has_label

    return make


if __name__ == "__main__":
    write_glue(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 24)
