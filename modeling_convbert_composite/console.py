# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What the verbs of the command line share: tables, and the word for a missing extra."""

import contextlib
import os
import re
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text


# Piped output has no width of its own; 80 columns would cut the tables.
PIPED_WIDTH = 140


def show_table(title: str, headers: list[str], rows: list[list[str]]) -> None:
    """Prints a table, columns of numbers to the right, without a head if all headers are empty."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=PIPED_WIDTH)
    table = Table(
        title=Text(title),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
        show_header=any(headers),
    )
    for index, header in enumerate(headers):
        is_number = all(re.fullmatch(r"[-\d.,]+", row[index]) for row in rows)
        is_last = index == len(headers) - 1
        table.add_column(header, justify="right" if is_number else "left", overflow="fold", no_wrap=not is_last)
    for row in rows:
        # Escaped, since formulas have brackets.
        table.add_row(*(escape(cell) for cell in row))
    with console.capture() as printed:
        console.print(table)
    print("\n".join(line.rstrip() for line in printed.get().splitlines()))


def show_scores(title: str, scores: dict[str, dict[str, float]]) -> None:
    """A table of metrics, one column a split."""
    from .records import score_rows

    rows = score_rows(scores)
    if rows:
        show_table(title, ["metric", *scores], rows)


@contextlib.contextmanager
def needing(extra: str) -> Iterator[None]:
    """Says which extra a verb needs where one of its packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"This needs the package {error.name!r}: pip install 'convbert-composite[{extra}]'"
        ) from error
