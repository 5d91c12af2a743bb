"""What a report is of.

Shapes: N windows, T tokens, L layers, H heads of a layer.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.ablation import Replacement, ablate_heads
from headscope.analysis.page import most_tokens
from headscope.analysis.tokens import TokenKinds, token_kinds
from headscope.checkpoint import AttentionReading, Checkpoint
from headscope.data.batches import first_passage, spread_windows
from headscope.data.tokenizer import Tokenizer
from headscope.evaluation import ValidationText

COUNTED = 2**20
"""Tokens of a corpus that are counted, so that a large one costs no more."""

Track = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Subject:
    """A checkpoint, the text that maps are drawn of, the windows (N, T) of tokens that figures are
    means over, the kinds of tokens, and in words where the windows are from."""

    loaded: Checkpoint
    reading: AttentionReading
    windows: Tensor
    kinds: TokenKinds
    source: str

    @classmethod
    def of_validation(cls, loaded: Checkpoint, text: ValidationText, windows: int) -> "Subject":
        """The beginning of a validation split, and windows that are spread over it."""
        length = loaded.model.block_size
        return cls(
            loaded,
            reading=loaded.attention(first_passage(text.tokens, length)),
            windows=spread_windows(text.tokens, windows=windows, length=length),
            kinds=kinds_of(loaded.tokenizer, text.tokens),
            source="validation windows",
        )

    @classmethod
    def of_text(cls, loaded: Checkpoint, text: str) -> "Subject":
        """A text alone, as much of it as the model can read. It is too short to tell which tokens
        are frequent: no head is called frequent-token or rare-token."""
        reading = loaded.attention(text)
        return cls(
            loaded,
            reading=reading,
            windows=torch.tensor([reading.tokens]),
            kinds=kinds_of(loaded.tokenizer),
            source="the given text",
        )

    @property
    def shown_tokens(self) -> int:
        """As many of the text's tokens as its page can hold."""
        layers, heads, tokens, _ = self.reading.weights.shape
        return min(tokens, most_tokens(layers, heads))


def kinds_of(tokenizer: Tokenizer, tokens: np.ndarray | None = None) -> TokenKinds:
    """The kinds of a tokenizer's tokens; frequent ones are those of `tokens` (N,), of which the
    first COUNTED are counted."""
    size = tokenizer.vocab_size
    counts = None
    if tokens is not None:
        counts = torch.from_numpy(np.bincount(tokens[:COUNTED], minlength=size))
    return token_kinds([tokenizer.decode([token]) for token in range(size)], counts)


@dataclass(frozen=True)
class Ablation:
    """What to replace a head by, and the windows (N, T + 1) of tokens that the loss is taken on."""

    replace_by: Replacement
    windows: Tensor
    bytes_per_token: float

    @classmethod
    def on(
        cls, text: ValidationText, replace_by: Replacement, *, windows: int, length: int
    ) -> "Ablation":
        """On so many windows of `text`, each of `length` tokens and the one after."""
        chosen = spread_windows(text.tokens, windows=windows, length=length + 1)
        return cls(replace_by, chosen, text.byte_lengths[chosen[:, 1:].numpy()].mean())

    def run(self, loaded: Checkpoint, track: Track) -> "AblationResult":
        """Remove every head in turn; `track` is given the batches."""
        change = ablate_heads(
            loaded.model,
            self.windows[:, :-1],
            self.windows[:, 1:],
            replace_by=self.replace_by,
            track=track,
        )
        nats = change["nats_per_token"]
        return AblationResult(
            replace_by=self.replace_by,
            windows=len(self.windows),
            loss=float(change["loss"]),
            figures={
                "loss_change": nats,
                "loss_change_error": change["standard_error"],
                "bits_per_byte_change": nats / math.log(2) / self.bytes_per_token,
            },
        )


@dataclass(frozen=True)
class AblationResult:
    """The loss without each head less the loss with all heads, (L, H) each, by name: `loss_change`
    in nats per token, `loss_change_error`, its standard error, and `bits_per_byte_change`. Above 0
    the head helps. `loss` is that with all heads, in nats per token."""

    replace_by: Replacement
    windows: int
    loss: float
    figures: dict[str, Tensor]

    def most_important(self, count: int) -> list[tuple[str, float, float]]:
        """The heads without which the loss rises most, as L0H1, with that change and its error."""
        change, error = (self.figures[name] for name in ("loss_change", "loss_change_error"))
        heads = change.size(1)
        return [
            (f"L{n // heads}H{n % heads}", float(change.flatten()[n]), float(error.flatten()[n]))
            for n in change.flatten().argsort(descending=True, stable=True)[:count].tolist()
        ]
