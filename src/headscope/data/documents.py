"""Documents, and how they are divided into training and validation text."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal, TypeVar

from headscope.data.pieces import pieces

Split = Literal["train", "validation"]

HOLD_OUT = 10
"""Every tenth document is held out for validation. If there is only one document, its last tenth is
held out."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Document:
    """A document: the split that it belongs to, its text in pieces, and a function that computes a
    hash of its text. The pieces can be used only once, and before the next document is read. A part
    of a document has no hash."""

    split: Split
    pieces: Iterable[str]
    digest: Callable[[], bytes] | None = None


def hold_out(items: Iterable[Item]) -> Iterator[tuple[Split, Item]]:
    """Each item with its split. Every tenth item is held out. If there are fewer than ten, the last
    one is. Reads only one item ahead, because an item may be a long text."""
    stream = iter(items)
    waiting = deque(islice(stream, 1))
    number = 1
    for item in stream:
        yield "train" if number % HOLD_OUT else "validation", waiting.popleft()
        waiting.append(item)
        number += 1
    if waiting:
        is_train = number > HOLD_OUT and number % HOLD_OUT
        yield "train" if is_train else "validation", waiting.popleft()


def one_document(chunks: Iterable[str], characters: int) -> Iterator[Document]:
    """Divides a text into two documents. Its last tenth is held out for validation. `characters` is
    the length of the text."""
    stream = iter(chunks)
    rest: list[str] = []
    head = _head(stream, characters * (HOLD_OUT - 1) // HOLD_OUT, rest)
    yield Document("train", pieces(head))
    for _ in head:  # what was not used
        pass
    yield Document("validation", pieces(chain(rest, stream)))


def _head(stream: Iterator[str], characters: int, rest: list[str]) -> Iterator[str]:
    """The first `characters` characters of a stream. The rest of the last chunk is appended to
    `rest`."""
    for chunk in stream:
        if len(chunk) >= characters:
            yield chunk[:characters]
            rest.append(chunk[characters:])
            return
        characters -= len(chunk)
        yield chunk
