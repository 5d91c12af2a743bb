"""Prints lines on the console, and shows how the preparation of the data progresses."""

from collections.abc import Generator, Iterable

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from headscope.data.encode import TextBatch
from headscope.terminal import printable


def say(console: Console, line: str, style: str | None = None) -> None:
    """Prints `line` as it is, without markup, colours of numbers or line breaks. Control characters
    are escaped."""
    console.print(printable(line), style=style, highlight=False, soft_wrap=True, markup=False)


def track(
    batches: Iterable[TextBatch], size: int | None, *, console: Console
) -> Generator[TextBatch, None, None]:
    """Yields the batches of a corpus, and shows a progress bar while they are encoded, with the
    speed and the time left if `size`, the number of bytes, is known. If the output is not a
    terminal, prints one line instead."""
    if not console.is_terminal:
        amount = "text" if size is None else f"{size / 1e6:,.1f} MB of text"
        console.print(f"Encoding {amount}", highlight=False)
        yield from batches
        return
    columns = [
        *(TextColumn("Encoding"), BarColumn(), DownloadColumn(), TransferSpeedColumn()),
        *(TimeRemainingColumn(), TextColumn("left")),
    ]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=size)
        for batch in batches:
            yield batch
            progress.advance(task, batch.size)
