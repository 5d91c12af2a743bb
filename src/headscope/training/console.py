"""Prints lines on the console, and shows how the preparation of the data progresses."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import Progress

from headscope.terminal import printable


def say(console: Console, line: str, style: str | None = None) -> None:
    """Prints `line` as it is, without markup, colours of numbers or line breaks. Control characters
    are escaped."""
    console.print(printable(line), style=style, highlight=False, soft_wrap=True, markup=False)


def track(items: Iterable[Any], description: str, total: int, *, console: Console) -> Iterable[Any]:
    """Yields `items`, and shows a progress bar while they are used. If the output is not a
    terminal, prints one line instead."""
    if console.is_terminal:
        with Progress(console=console, transient=True) as progress:
            yield from progress.track(items, total=total, description=description)
    else:
        console.print(f"{description}: {total:,} documents", highlight=False)
        yield from items
