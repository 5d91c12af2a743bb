"""What several tests of corpora need."""

import json
from collections.abc import Iterable
from pathlib import Path

from headscope.data.corpus import Corpus


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    """A folder with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def jsonl(rows: Iterable[object]) -> str:
    """JSON Lines. A text becomes a row with the one column `text`."""
    whole = [{"text": row} if isinstance(row, str) else row for row in rows]
    return "".join(f"{json.dumps(row)}\n" for row in whole)


def texts(corpus: Corpus) -> tuple[list[str], list[str]]:
    """The documents for training and for validation."""
    found: dict[str, list[str]] = {"train": [], "validation": []}
    for document in corpus.documents():
        found[document.split].append("".join(document.pieces))
    return found["train"], found["validation"]


def every_tenth(documents: list[str]) -> tuple[list[str], list[str]]:
    """(kept, held out), for at least ten different documents."""
    held_out = documents[9::10]
    return [document for document in documents if document not in held_out], held_out
