# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The text of model cards as sections (`## ...`), and how a refreshed card keeps what people wrote.

A generated card says in a comment which of its sections were generated. Those are written again; every other section,
the title and what stands under it are kept. A card without that comment was not written here: all of it is kept, and a
section of the same name is not generated. Of cards that other programs fill in, blanks ("More information needed") and
what only says that they were filled in are dropped.
"""

import re
from dataclasses import dataclass, field


MARK = "<!-- `convbert-composite card` rewrites these sections: {}. All else is kept. -->"
MARK_PATTERN = re.compile(r"<!-- `convbert-composite card` rewrites these sections: (.*?)\. All else is kept\. -->\n*")
FENCE = re.compile(r"\s*(```|~~~)")

# The library's own template, and what the Trainer writes.
LIBRARY_TEMPLATE = "This model card has been automatically generated."
TRAINER_TEMPLATE = "This model card has been generated automatically according to the information the Trainer had"
BLANK = re.compile(r"more information needed", re.IGNORECASE)


@dataclass
class CardText:
    """A card's body: what stands above the first section, the sections in order, the names of generated ones."""

    preamble: str
    sections: dict[str, str] = field(default_factory=dict)
    generated: tuple[str, ...] = ()

    def render(self) -> str:
        mark = [MARK.format("; ".join(self.generated))] if self.generated else []
        parts = [f"## {name}\n\n{text}".strip() for name, text in self.sections.items()]
        return "\n\n".join([*mark, self.preamble.strip(), *parts]).strip() + "\n"


def parse(text: str) -> CardText:
    """Splits a body into its sections; lines within code fences are no headings."""
    found = MARK_PATTERN.search(text)
    generated = tuple(found[1].split("; ")) if found else ()
    if found:
        text = text[: found.start()] + text[found.end() :]
    names, blocks, fence = [""], [[]], ""  # type: tuple[list[str], list[list[str]], str]
    for line in text.splitlines():
        opened = FENCE.match(line)
        if opened and fence in ("", opened[1]):
            fence = "" if fence else opened[1]
        if line.startswith("## ") and not fence:
            names.append(line.removeprefix("## ").strip())
            blocks.append([])
        else:
            blocks[-1].append(line)
    sections: dict[str, str] = {}
    for name, block in zip(names[1:], blocks[1:], strict=True):
        # A second section of the same name belongs to the first.
        sections[name] = "\n\n".join(filter(None, [sections.get(name, ""), "\n".join(block).strip()]))
    return CardText("\n".join(blocks[0]).strip(), sections, generated)


def without_blanks(text: str) -> CardText:
    """A foreign card less what another program filled in for want of facts."""
    if LIBRARY_TEMPLATE in text:
        return CardText("")
    card = parse(text)
    if TRAINER_TEMPLATE in text:
        card.preamble = ""
    card.sections = {name: body for name, body in card.sections.items() if says_something(body)}
    return card


def says_something(body: str) -> bool:
    """Whether anything is left without blanks, comments and sub-headings."""
    lines = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL).splitlines()
    return any(line.strip() and not BLANK.search(line) and not line.startswith("#") for line in lines)


def merge(fresh: CardText, text: str | None) -> CardText:
    """
    The fresh card with what an earlier one's author wrote: each kept section stands behind the same section as before.

    Args:
        fresh: generated; all its sections are. text: body of the card that stands there now.
    """
    names = tuple(fresh.sections)
    if not text or not text.strip():
        return CardText(fresh.preamble, dict(fresh.sections), names)
    old = parse(text)
    if not old.generated:
        old = without_blanks(text)
    kept = {name: body for name, body in old.sections.items() if name not in old.generated}
    sections = {name: kept.get(name, body) for name, body in fresh.sections.items()}
    order = list(sections)
    for name, before in zip(old.sections, ["", *old.sections], strict=False):
        if name in kept and name not in sections:
            order.insert(order.index(before) + 1 if before in order else 0 if not before else len(order), name)
    merged = {name: kept.get(name, sections.get(name, "")) for name in order}
    return CardText(old.preamble or fresh.preamble, merged, tuple(name for name in names if name not in kept))
