"""What a report is of.

Shapes: N windows, T tokens, L layers, H heads of a layer.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headscope.analysis.ablation import Replacement, ablate_heads
from headscope.analysis.page import most_tokens
from headscope.checkpoint import Checkpoint, Reading
from headscope.data.batches import first_passage, spread_windows
from headscope.evaluation import ValidationText

Track = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Subject:
    """A checkpoint, the text that maps are drawn of, and the windows (N, T) of tokens that figures
    are means over."""

    loaded: Checkpoint
    reading: Reading
    windows: Tensor

    @classmethod
    def of_validation(cls, loaded: Checkpoint, text: ValidationText, windows: int) -> "Subject":
        """The beginning of a validation split, and windows that are spread over it."""
        length = loaded.model.block_size
        reading = loaded.attention(first_passage(text.tokens, length))
        return cls(loaded, reading, spread_windows(text.tokens, windows=windows, length=length))

    @classmethod
    def of_text(cls, loaded: Checkpoint, text: str) -> "Subject":
        """A text alone, as much of it as the model can read."""
        reading = loaded.attention(text)
        return cls(loaded, reading, torch.tensor([reading.tokens]))

    @property
    def shown_tokens(self) -> int:
        """As many of the text's tokens as its page can hold."""
        layers, heads, tokens, _ = self.reading.weights.shape
        return min(tokens, most_tokens(layers, heads))


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

    def run(self, loaded: Checkpoint, track: Track) -> "Worth":
        """Remove every head in turn; `track` is given the batches."""
        change = ablate_heads(
            loaded.model,
            self.windows[:, :-1],
            self.windows[:, 1:],
            replace_by=self.replace_by,
            track=track,
        )
        nats = change["nats_per_token"]
        return Worth(
            replace_by=self.replace_by,
            windows=len(self.windows),
            loss=float(change["loss"]),
            figures={
                "loss_without": nats,
                "loss_without_error": change["standard_error"],
                "bits_per_byte_without": nats / math.log(2) / self.bytes_per_token,
            },
        )


@dataclass(frozen=True)
class Worth:
    """What the loss, in nats per token, changes by without each head: `loss_without`, its standard
    error and the same in bits per byte, (L, H) each, by name."""

    replace_by: Replacement
    windows: int
    loss: float
    figures: dict[str, Tensor]
