"""Tables of comparisons and sweeps, on the terminal and as CSV files."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.terminal import printable

MIN_WIDTH = 100
"""Minimum width of the tables in characters, so that lines are not broken when the output is a file
or a pipe."""

Columns = Mapping[str, tuple[str, str]]
"""For each title of a column, the key in the rows, and the format of its numbers."""


def write_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> None:
    """Prints an empty line, and a table with one line for each row. Missing values are -."""
    result = Table(box=None, pad_edge=False)
    for number, title in enumerate(columns):
        justify: Any = "right" if number else "left"
        result.add_column(Text(printable(title)), justify=justify, overflow="fold")
    for row in rows:
        texts = [format(row[key], form) if key in row else "-" for key, form in columns.values()]
        style = "bold" if row.get("state") == "best" else None
        result.add_row(*(Text(printable(text)) for text in texts), style=style)
    Console(width=max(Console().width, MIN_WIDTH)).print("", result, sep="\n")
