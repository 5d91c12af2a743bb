"""What came of a comparison: rows as tables, as a CSV file and as pictures.

A row has `choice`, `parameters`, `cache_bytes_per_token`, `bits_per_byte` and its `deviation` over
the seeds, `seed_<n>` of each, and where they were measured `step_ms`, `sampled_tokens_per_second`
and `bits_per_byte_at_<length>`.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headscope.comparison.charts import choice_chart, length_chart

WIDTH = 100


def write_files(rows: list[dict[str, Any]], folder: Path, block_sizes: Sequence[int]) -> None:
    """comparison.csv, comparison.png and, with lengths, lengths.png."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    choice_chart(rows).savefig(folder / "comparison.png")
    if block_sizes:
        length_chart(rows, block_sizes).savefig(folder / "lengths.png")


def print_tables(rows: list[dict[str, Any]], folder: Path, console: Console) -> None:
    """The rows as tables, the best first."""
    rows = sorted(rows, key=lambda row: row["bits_per_byte"])
    columns = {
        "bits per byte": partial(cell, key="bits_per_byte", form=".4f"),
        "±": partial(cell, key="deviation", form=".4f"),
        "parameters": partial(cell, key="parameters"),
        "cache bytes per token": partial(cell, key="cache_bytes_per_token"),
        "step ms": partial(cell, key="step_ms", form=".1f"),
        "sampled tokens/s": partial(cell, key="sampled_tokens_per_second", form=".0f"),
    }
    console = Console(file=console.file, width=max(console.width, WIDTH), quiet=console.quiet)
    console.print()
    console.print(table(rows, columns))
    at = sorted({key for row in rows for key in row if "_at_" in key}, key=length_of)
    if at:
        console.print("\nbits per byte of the first seed at contexts of so many tokens")
        lengths = {f"{length_of(key):,}": partial(cell, key=key, form=".4f") for key in at}
        console.print(table(rows, lengths))
    console.print(f"\n{folder}/comparison.csv and .png", highlight=False, soft_wrap=True)


def table(
    rows: list[dict[str, Any]], columns: Mapping[str, Callable[[dict[str, Any]], str]]
) -> Table:
    made = Table(box=None, pad_edge=False)
    made.add_column("choice", no_wrap=True)
    for name in columns:
        made.add_column(name, justify="right")
    for row in rows:
        made.add_row(row["choice"], *(cell_of(row) for cell_of in columns.values()))
    return made


def length_of(key: str) -> int:
    return int(key.rpartition("_")[2])


def cell(row: dict[str, Any], key: str, form: str = ",") -> str:
    return format(row[key], form) if key in row else "-"
