"""Corpora: the sources of training and validation text.

A corpus yields its documents one after the other, so its size is not limited by memory. The library
`datasets` is imported only when it reads text, so a run whose token store already exists does not
need it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NoReturn

from headscope.data.documents import Document, Split
from headscope.errors import UserError

Wanted = Callable[[Split], bool]
"""Whether more text of a split is wanted."""


class Corpus(ABC):
    """A source of documents for training and documents for validation."""

    name: str
    probe_text: str | None = None
    """A text on which to show attention, or None for the beginning of the validation split."""
    max_tokens: int | None = None
    """The maximum number of training tokens, or None for all."""
    deduplicate: bool = False
    """Whether to keep only the first of several equal documents."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that changes when the corpus or its split into training and validation changes.
        This method must be fast, because every run calls it."""

    @abstractmethod
    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        """The documents of both splits, always in the same order. May end early when `wanted` is
        false for a split."""

    def size(self) -> int | None:
        """The size of the text in bytes, to estimate how long it takes to read. None if it is not
        known."""
        return None


def unknown_text() -> NoReturn:
    """Stands for the corpus of an imported model. Raises UserError."""
    raise UserError(
        "the text that this model was trained on is unknown, because the model was imported: name "
        "a text, with data.path= in scripts/evaluate.py and scripts/train.py, or with text= in "
        "scripts/analyze.py"
    )
