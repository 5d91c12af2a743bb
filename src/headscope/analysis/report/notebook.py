"""The attention of a model on one text, which a notebook shows as the attention viewer."""

from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

import torch

from headscope.analysis.head_statistics import HeadStatistics, measure_heads, repeat_probe
from headscope.analysis.repeats import BATCH_SIZE
from headscope.analysis.report.inputs import classify_vocabulary
from headscope.analysis.report.page import loss_on, page_of, shown_tokens, snapshots_of
from headscope.checkpoint import AttentionReading, Checkpoint
from headscope.errors import UserError
from headscope.files import write_atomically

NOTEBOOK_BYTES = 2 * 2**20
"""Like `page.MAX_BYTES`, for a page in a notebook: the notebook's file contains every page that it
shows."""

FRAME = (
    '<iframe sandbox="allow-scripts" title="Attention viewer" srcdoc="{page}" style="width: 100%; '
    'height: 720px; border: 0; border-radius: 12px">The attention viewer is not shown: trust this '
    "notebook, or run the cell.</iframe>"
)
"""The frame of the page in a notebook. Its scripts cannot reach the notebook. A program that
removes frames, for example from a notebook that is not trusted, leaves the sentence."""


@dataclass(frozen=True, repr=False)
class ShownReading(AttentionReading):
    """The attention of the model `loaded` on a text. As the last line of a notebook's cell, it is
    shown as the attention viewer."""

    loaded: Checkpoint

    @cached_property
    def statistics(self) -> HeadStatistics:
        """The metrics and names of all heads, measured when they are first needed: on this text,
        and for induction on one batch of repeated random texts. A single text is too short to name
        heads frequent-token or rare-token."""
        model, kinds = self.loaded.model, classify_vocabulary(self.loaded.tokenizer)
        repeats = repeat_probe(model, kinds, BATCH_SIZE)
        return measure_heads(model, torch.tensor([self.tokens]), kinds=kinds, repeats=repeats)

    def save_html(self, path: str | Path) -> None:
        """Writes the attention viewer with this text as a single file, which a browser opens
        without a network. An existing file is replaced. A long text is shortened to the tokens
        that fit in the page, and the page says so.

        Raises UserError if the file cannot be written, or if the weights are not causal attention
        weights whose rows sum to one.
        """
        path = Path(path)
        if path.is_dir():
            raise UserError(f"{path} is a folder: give the name of a file, such as attention.html")
        write_atomically(path, self._page())

    def _repr_html_(self) -> str:
        """What a notebook shows: the viewer, or the reason why these weights cannot be shown."""
        try:
            return FRAME.format(page=escape(self._page(NOTEBOOK_BYTES)))
        except UserError as error:
            return f"<pre>{escape(f'{self!r}: {error}')}</pre>"

    def _page(self, max_bytes: int | None = None) -> str:
        tokens = shown_tokens(self, self.loaded, 1, max_bytes)
        snapshots = snapshots_of(self, tokens, [(self.loaded, self.statistics)])
        loss = loss_on(self.loaded, self.tokens[:tokens])
        return page_of(self.loaded, snapshots, [loss])
