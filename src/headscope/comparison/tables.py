"""The results of a comparison as tables, a CSV file and charts.

Each row has the keys `choice`, `parameters`, `cache_bytes_per_token`, `bits_per_byte` (the mean
over the seeds), and one key `seed_<n>` for each seed. If there are several seeds, a row also has
the key `deviation`. The keys `step_ms`, `sampled_tokens_per_second` and `bits_per_byte_at_<length>`
are present if they were measured.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headscope.comparison.charts import choice_chart, length_chart

MIN_WIDTH = 100
"""Minimum width of the tables in characters, so that lines are not broken when the output is a file
or a pipe."""


def write_files(rows: list[dict[str, Any]], folder: Path, block_sizes: Sequence[int]) -> None:
    """Write comparison.csv and comparison.png. If `block_sizes` is not empty, also write
    lengths.png."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    write_csv(rows, columns, folder / "comparison.csv")
    choice_chart(rows).savefig(folder / "comparison.png")
    if block_sizes:
        length_chart(rows, block_sizes).savefig(folder / "lengths.png")


def write_csv(rows: Sequence[dict[str, Any]], columns: Sequence[str], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def print_tables(rows: list[dict[str, Any]], folder: Path, console: Console) -> None:
    """Print the rows as tables."""
    columns = {
        "bits per byte": partial(cell, key="bits_per_byte", spec=".4f"),
        "±": partial(cell, key="deviation", spec=".4f"),
        "parameters": partial(cell, key="parameters"),
        "cache bytes per token": partial(cell, key="cache_bytes_per_token"),
        "step ms": partial(cell, key="step_ms", spec=".1f"),
        "sampled tokens/s": partial(cell, key="sampled_tokens_per_second", spec=".0f"),
    }
    console = Console(file=console.file, width=max(console.width, MIN_WIDTH), quiet=console.quiet)
    console.print()
    console.print(table(rows, columns))
    length_keys = sorted({key for row in rows for key in row if "_at_" in key}, key=length_of)
    if length_keys:
        console.print("\nbits per byte of the first seed by context length in tokens")
        lengths = {f"{length_of(key):,}": partial(cell, key=key, spec=".4f") for key in length_keys}
        console.print(table(rows, lengths))
    console.print(
        f"\nWritten: {folder}/comparison.csv and comparison.png", highlight=False, soft_wrap=True
    )


def table(
    rows: list[dict[str, Any]], columns: Mapping[str, Callable[[dict[str, Any]], str]]
) -> Table:
    """A table with one row per choice. `columns` maps the name of each column to a function that
    returns the cell's text for a row."""
    result = Table(box=None, pad_edge=False)
    result.add_column("choice", no_wrap=True)
    for name in columns:
        result.add_column(name, justify="right")
    for row in rows:
        result.add_row(row["choice"], *(cell_text(row) for cell_text in columns.values()))
    return result


def length_of(key: str) -> int:
    return int(key.rpartition("_")[2])


def cell(row: dict[str, Any], key: str, spec: str = ",") -> str:
    return format(row[key], spec) if key in row else "-"
