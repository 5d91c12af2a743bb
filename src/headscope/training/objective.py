"""The loss of a batch, with all logits at once or, where they would be many, chunk by chunk.

Shapes: B batch, T tokens, C embed_dim, V vocab_size, N tokens of a chunk.
"""

from typing import Literal

import torch
from torch import Tensor

from headscope.nn import GPT
from headscope.nn.loss import chunked_loss_sum, next_token_loss

LOGIT_BYTES = 64 << 20
"""Bytes of a chunk's logits, in float32, with `chunk_tokens=auto` on a CPU. A step holds them three
times: the logits, the logarithms of the probabilities, and the gradients."""

MEMORY_SHARE = 64
"""On a GPU a chunk's logits may take 1/64 of its memory: few chunks keep its cores busy."""


def logit_bytes(device: torch.device) -> int:
    """Bytes that the logits of a chunk may take on `device`."""
    if device.type != "cuda":
        return LOGIT_BYTES
    return max(LOGIT_BYTES, torch.cuda.get_device_properties(device).total_memory // MEMORY_SHARE)


class Objective:
    """What training makes small: the mean loss of `model`.

    The logits of at most `chunk_tokens` tokens are there at once: a number, None for all of a
    batch, or `auto` for as many as `logit_bytes` allows. A batch that fits is one chunk.
    """

    def __init__(self, model: GPT, *, chunk_tokens: int | Literal["auto"] | None) -> None:
        self.model = model
        self.chunk_tokens = chunk_tokens
        self.undo_compile()

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Nats per token, for training, of `targets` (B, T) after `inputs` (B, T)."""
        rows = self.chunk_rows(targets)
        if rows is None:
            return next_token_loss(self.model(inputs), targets)
        nats = chunked_loss_sum(self.hidden(inputs), targets, self.unembed_loss_sum, rows=rows)
        return nats / targets.numel()

    def loss_sum(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """All nats, past what is compiled, which is for training: the last window of a validation
        has a shape of its own."""
        rows = self.chunk_rows(targets)
        if rows is None:
            return next_token_loss(self.model.forward(inputs), targets, reduction="sum")
        return chunked_loss_sum(
            self.model.hidden(inputs), targets, self._unembed_loss_sum, rows=rows
        )

    def chunk_rows(self, targets: Tensor) -> int | None:
        """Tokens of a chunk, or None where the batch is one chunk."""
        rows = self.chunk_tokens
        if rows == "auto":
            rows = max(1, logit_bytes(targets.device) // (4 * self.model.head.out_features))
        return rows if rows and rows < targets.numel() else None

    def _unembed_loss_sum(self, x: Tensor, targets: Tensor) -> Tensor:
        return next_token_loss(self.model.unembed(x), targets, reduction="sum")

    def compile(self) -> None:
        """Compile what `loss` calls, in place: names in checkpoints stay as they are."""
        self.model.compile()
        self.hidden = torch.compile(self.model.hidden)
        self.unembed_loss_sum = torch.compile(self._unembed_loss_sum)

    def undo_compile(self) -> None:
        self.model._compiled_call_impl = None
        self.hidden = self.model.hidden
        self.unembed_loss_sum = self._unembed_loss_sum
