"""The inputs of a report: a checkpoint, its texts, and the ablation to run.

Shapes: N windows, T tokens, L layers, H heads per layer.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.ablation import Replacement, ablate_heads
from headscope.analysis.page import max_tokens
from headscope.analysis.tokens import TokenKinds, classify_tokens
from headscope.checkpoint import AttentionReading, Checkpoint
from headscope.data.batches import first_passage, spread_windows
from headscope.data.tokenizer import Tokenizer
from headscope.evaluation import ValidationText

MAX_COUNTED_TOKENS = 2**20
"""Tokens of a corpus that are counted to find the frequent tokens, which limits the time."""

Track = Callable[[Iterable[Any]], Iterable[Any]]
"""Wraps an iterable, for example to show progress."""


@dataclass(frozen=True)
class ReportInput:
    """What a report is about.

    `loaded`: the checkpoint. `reading`: the attention on the text of the maps. `windows` (N, T):
    the tokens that the figures are averaged over. `kinds`: the kinds of tokens in the vocabulary.
    `source`: a description of the windows, for the report.
    """

    loaded: Checkpoint
    reading: AttentionReading
    windows: Tensor
    kinds: TokenKinds
    source: str

    @classmethod
    def of_validation(cls, loaded: Checkpoint, text: ValidationText, windows: int) -> "ReportInput":
        """Maps of the beginning of a validation split, and figures of windows spread over it."""
        length = loaded.model.block_size
        return cls(
            loaded,
            reading=loaded.attention(first_passage(text.tokens, length)),
            windows=spread_windows(text.tokens, windows=windows, length=length),
            kinds=classify_vocabulary(loaded.tokenizer, text.tokens),
            source="validation windows",
        )

    @classmethod
    def of_text(cls, loaded: Checkpoint, text: str) -> "ReportInput":
        """Maps and figures of one text, up to the model's `block_size`. It is too short to tell
        which tokens are frequent, so no head is named frequent-token or rare-token."""
        reading = loaded.attention(text)
        return cls(
            loaded,
            reading=reading,
            windows=torch.tensor([reading.tokens]),
            kinds=classify_vocabulary(loaded.tokenizer),
            source="the given text",
        )

    @property
    def shown_tokens(self) -> int:
        """The number of tokens on the page: those of the text, up to the limit of the page."""
        layers, heads, tokens, _ = self.reading.weights.shape
        return min(tokens, max_tokens(layers, heads))


def classify_vocabulary(tokenizer: Tokenizer, tokens: np.ndarray | None = None) -> TokenKinds:
    """Classify the vocabulary of a tokenizer. The frequent tokens are those in the first
    MAX_COUNTED_TOKENS of `tokens` (N,), the tokens of a corpus."""
    size = tokenizer.vocab_size
    counts = None
    if tokens is not None:
        counts = torch.from_numpy(np.bincount(tokens[:MAX_COUNTED_TOKENS], minlength=size))
    return classify_tokens([tokenizer.decode([token]) for token in range(size)], counts)


@dataclass(frozen=True)
class Ablation:
    """How to remove a head, by `replace_by`, and the windows (N, T + 1) of tokens on which the loss
    is measured."""

    replace_by: Replacement
    windows: Tensor
    bytes_per_token: float

    @classmethod
    def on(
        cls, text: ValidationText, replace_by: Replacement, *, windows: int, length: int
    ) -> "Ablation":
        """Use `windows` windows of `text`, each of `length` tokens and their targets."""
        chosen = spread_windows(text.tokens, windows=windows, length=length + 1)
        return cls(replace_by, chosen, text.byte_lengths[chosen[:, 1:].numpy()].mean())

    def run(self, loaded: Checkpoint, track: Track) -> "AblationResult":
        """Remove one head at a time. `track` wraps the iterable of batches."""
        ablated = ablate_heads(
            loaded.model,
            self.windows[:, :-1],
            self.windows[:, 1:],
            replace_by=self.replace_by,
            track=track,
        )
        nats = ablated["nats_per_token"]
        return AblationResult(
            replace_by=self.replace_by,
            windows=len(self.windows),
            loss=float(ablated["loss"]),
            figures={
                "loss_change": nats,
                "loss_change_error": ablated["standard_error"],
                "bits_per_byte_change": nats / math.log(2) / self.bytes_per_token,
            },
        )


@dataclass(frozen=True)
class AblationResult:
    """The effect of removing each head.

    `loss` is the loss with all heads, in nats per token. `figures` (L, H) each, by name:
    `loss_change` is the loss without the head minus the loss with all heads, in nats per token;
    `loss_change_error` is its standard error; `bits_per_byte_change` is the same change in bits per
    byte. A positive change means that the head lowers the loss.
    """

    replace_by: Replacement
    windows: int
    loss: float
    figures: dict[str, Tensor]

    def most_important(self, count: int) -> list[tuple[str, float, float]]:
        """Name (such as L0H1), change and error of the heads with the largest loss change."""
        change, error = (self.figures[name] for name in ("loss_change", "loss_change_error"))
        heads = change.size(1)
        return [
            (f"L{n // heads}H{n % heads}", float(change.flatten()[n]), float(error.flatten()[n]))
            for n in change.flatten().argsort(descending=True, stable=True)[:count].tolist()
        ]
