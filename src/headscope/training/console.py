"""Progress of what is not training, on the console."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import Progress


def track(items: Iterable[Any], description: str, total: int, *, console: Console) -> Iterable[Any]:
    """Pass `items` through under a progress bar; in a file, say only what is begun."""
    if console.is_terminal:
        with Progress(console=console, transient=True) as progress:
            yield from progress.track(items, total=total, description=description)
    else:
        console.print(f"{description}: {total:,} documents", highlight=False)
        yield from items
