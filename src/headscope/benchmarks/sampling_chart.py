"""What suite=sampling found, as tables and as a picture."""

from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from headscope.benchmarks.bars import Bar, draw_bars
from headscope.benchmarks.sampling import OURS, THEIRS, UNCACHED, Sampled
from headscope.benchmarks.timing import place


def report(figures: dict[str, Any], console: Console) -> None:
    """A table for each model."""
    for size in ("small", "large"):
        found = figures[size]
        reference = UNCACHED if size == "small" else f"{THEIRS} fp32"
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("", no_wrap=True)
        for name in ("tokens/s", "least", "most", "times faster"):
            table.add_column(name, justify="right", no_wrap=True)
        if size == "large":
            table.add_column("of bandwidth", justify="right", no_wrap=True)
        for row in found["ways"]:
            speed = row["tokens_per_second"]
            cells = [f"{speed[key]:,.1f}" for key in ("median", "min", "max")]
            cells.append(f"{row['times_faster']['median']:.2f}")
            if size == "large":
                cells.append(f"{100 * row['of_bandwidth']:.0f} %")
            table.add_row(row["way"], *cells)
        console.print(f"\n{sampled(found)}", style="bold", highlight=False)
        console.print(table)
        note = (
            f"times faster: than {reference} in the same round; medians. "
            f"Compiling took {found['compile_seconds']:.0f} s, not counted."
        )
        if size == "large":
            note += f" Memory reads {found['gigabytes_per_second']:.1f} GB/s."
        console.print(note, highlight=False, soft_wrap=True)


def sampled(found: dict[str, Any]) -> Sampled:
    return Sampled(**{key: found[key] for key in Sampled.__dataclass_fields__})


def draw(figures: dict[str, Any]) -> Figure:
    """A bar for each way."""
    return draw_bars(
        {
            str(sampled(figures[size])): [
                Bar(
                    row["way"],
                    row["tokens_per_second"]["median"],
                    f"{row['tokens_per_second']['median']:,.1f} tokens/s, "
                    f"{row['times_faster']['median']:.2f}x",
                    ours=row["way"].startswith(OURS) and row["way"] != UNCACHED,
                )
                for row in figures[size]["ways"]
            ]
            for size in ("small", "large")
        },
        title=(
            f"Tokens sampled per second, one text at a time, {place(figures)}\n"
            f"Medians of {figures['rounds']} rounds in turn; x: times the first of each group"
        ),
        axis="tokens per second (more is faster)",
        logarithmic=False,
    )
