"""Files that are never half-written."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Beside the file, then renamed: it is whole at every moment."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")  # two runs may start at once
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
