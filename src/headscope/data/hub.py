"""Datasets from the Hugging Face Hub as a corpus."""

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from itertools import chain, takewhile
from pkgutil import iter_modules
from typing import Any

from headscope.data.corpus import SPLITS, Corpus, Document, Split, Wanted, digest, hold_out, pieces
from headscope.data.own_files import Template, arrow_rows
from headscope.errors import UserError

ROWS = 100
"""Number of rows that are read at a time, because one by one is much slower."""


class Hub(Corpus):
    """A dataset from the Hugging Face Hub. `Template` explains `column` and `template`.

    `train_split` and `validation_split` use the syntax of `datasets`, for example "train[:1%]". If
    `validation_split` is None, every tenth document of `train_split` is held out for validation.
    With `streaming`, rows are read from the hub while they are encoded, and nothing is downloaded
    beyond `max_tokens`, the maximum number of training tokens. With `deduplicate`, only the first
    of several equal documents is kept.
    """

    def __init__(
        self,
        *,
        name: str,
        subset: str | None = None,
        column: str = "text",
        template: str | None = None,
        train_split: str = "train",
        validation_split: str | None = None,
        revision: str | None = None,
        streaming: bool = False,
        max_tokens: int | None = None,
        deduplicate: bool = False,
    ) -> None:
        if not name:
            raise UserError("data.name= is empty: name a dataset, such as roneneldan/TinyStories")
        if max_tokens is not None and max_tokens < 1:
            raise UserError(f"data.max_tokens={max_tokens} must be at least 1, or null for all")
        self.dataset, self.name = name, name.replace("/", "-")
        self.template = Template(column, template)
        self.left_out = self.template.left_out
        self.train_split, self.validation_split = train_split, validation_split
        self.subset, self.revision, self.streaming = subset, revision, streaming
        self.max_tokens, self.deduplicate = max_tokens, deduplicate

    def fingerprint(self) -> str:
        """The fingerprint depends only on the arguments of the constructor. So the fingerprint does
        not change when the text of a dataset changes under the same name and revision."""
        settings: list[Any] = [self.dataset, self.subset, self.template.pieces, self.train_split]
        settings += [self.validation_split, self.revision, self.max_tokens, self.deduplicate]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        number = 0
        for split, text in self._rows(wanted):
            number += 1
            yield Document(split, pieces([text]), partial(digest, [text]))
        if number < 2 and not self.validation_split:
            found = f"data.train_split={self.train_split} of {self.dataset} has {number} document"
            raise UserError(f"{found}, so none can be held out: name a data.validation_split")

    def _rows(self, wanted: Wanted) -> Iterator[tuple[Split, str]]:
        """Each text with its split, as far as text is `wanted`."""
        if not self.validation_split:
            rows = hold_out(self._texts(self.train_split))
            yield from takewhile(lambda row: any(map(wanted, SPLITS)), rows)
            return
        for split, source in zip(SPLITS, (self.train_split, self.validation_split), strict=True):
            if wanted(split):
                for text in self._texts(source):
                    yield split, text
                    if not wanted(split):
                        break

    def _texts(self, split: str) -> Iterator[str]:
        from datasets import load_dataset, packaged_modules
        from datasets.exceptions import DatasetGenerationError, DatasetsError

        # For the name of a file format, the library would read the files in the current folder.
        if self.dataset in {module.name for module in iter_modules(packaged_modules.__path__)}:
            raise UserError(f"data.name={self.dataset} is only a loader of files: use data.path=")
        columns = self.template.columns
        try:
            how = {"split": split, "revision": self.revision, "streaming": self.streaming}
            rows: Any = load_dataset(self.dataset, self.subset, **how)
            known = rows.column_names  # None if a streamed dataset does not say so
            if known and set(columns) <= set(known):
                rows = rows.select_columns(columns)
            records = chain.from_iterable(map(arrow_rows, rows.with_format("arrow").iter(ROWS)))
            yield from self.template.texts(records, f"{self.dataset} ({split})")
        except UserError:  # of the template
            raise
        except (OSError, ValueError, DatasetsError) as error:
            # The first line of the message gives the reason (no network, no such dataset or split).
            # For a file that cannot be parsed, only the `__cause__` of the error gives the reason.
            cause = error.__cause__ if isinstance(error, DatasetGenerationError) else None
            reason = str(cause or error).strip().split("\n")[0]
            raise UserError(f"data.name={self.dataset} could not be loaded: {reason}") from error
