"""The loss of a batch, computed in chunks if the logits need much memory, and compiled on request.

Shapes: B batch, T tokens, C embed_dim, V vocab_size, N tokens in a chunk.
"""

from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from headscope.errors import ran_out_of_memory, why_not_compiled
from headscope.nn import GPT
from headscope.nn.loss import chunked_loss_sum, next_token_loss

LOGIT_BYTES = 64 << 20
MEMORY_SHARE = 64  # of a GPU, where larger chunks are faster


def logit_bytes(device: torch.device) -> int:
    """The largest size in bytes of a chunk's float32 logits on `device`, for `chunk_tokens="auto"`.
    A training step needs three times this memory: for logits, log probabilities and gradients."""
    if device.type != "cuda":
        return LOGIT_BYTES
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(LOGIT_BYTES, memory // MEMORY_SHARE)


class Objective:
    """The training objective: the mean cross-entropy of `model`. The logits are computed for
    `chunk_tokens` tokens at a time: None means the batch, `"auto"` what fits into `logit_bytes`."""

    def __init__(self, model: GPT, *, chunk_tokens: int | Literal["auto"] | None) -> None:
        self.model = model
        self.chunk_tokens = chunk_tokens
        self.undo_compile()

    def loss(self, inputs: Tensor, targets: Tensor, counted: Tensor | None = None) -> Tensor:
        """The mean loss for training, in nats per token. `targets` (B, T) are the next tokens of
        `inputs` (B, T). If not all of them count, the sum is divided by the number `counted`."""
        rows = self.chunk_rows(targets)
        if rows is None:
            if counted is None:
                return next_token_loss(self.model(inputs), targets)
            return next_token_loss(self.model(inputs), targets, reduction="sum") / counted
        total = chunked_loss_sum(self.hidden(inputs), targets, self.unembed_loss_sum, rows=rows)
        return total / (targets.numel() if counted is None else counted)

    def loss_sum(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The summed loss of validation in nats, not compiled: a last batch has another shape."""
        rows = self.chunk_rows(targets)
        if rows is None:
            return next_token_loss(self.model.forward(inputs), targets, reduction="sum")
        hidden = self.model.hidden(inputs)
        return chunked_loss_sum(hidden, targets, self._unembed_loss_sum, rows=rows)

    def chunk_rows(self, targets: Tensor) -> int | None:
        """The number of tokens per chunk, or None if the whole batch is one chunk."""
        rows = self.chunk_tokens
        if rows == "auto":
            rows = max(1, logit_bytes(targets.device) // (4 * self.model.head.out_features))
        return rows if rows and rows < targets.numel() else None

    def _unembed_loss_sum(self, x: Tensor, targets: Tensor) -> Tensor:
        return next_token_loss(self.model.unembed(x), targets, reduction="sum")

    def undo_compile(self) -> None:
        self.model._compiled_call_impl = None
        self.hidden = self.model.hidden
        self.unembed_loss_sum = self._unembed_loss_sum


def compile_in_place(
    objective: Objective, batch: tuple[Tensor, Tensor], precision: AbstractContextManager[None]
) -> str | None:
    """Compiles `objective.loss` for batches of the shape of `batch`, in one forward and backward
    pass. If the compiler fails, for example because there is no C compiler, the objective stays
    uncompiled, and the reason is returned."""
    objective.model.compile()  # in place, so that parameter names in checkpoints do not change
    objective.hidden = torch.compile(objective.model.hidden)
    objective.unembed_loss_sum = torch.compile(objective.unembed_loss_sum)
    try:
        with precision:
            loss = objective.loss(*batch)
        loss.backward()
    except TorchDynamoException as error:  # includes Inductor's errors
        if ran_out_of_memory(error):
            raise
        objective.undo_compile()
        return why_not_compiled(error)
    finally:
        objective.model.zero_grad(set_to_none=True)
    return None
