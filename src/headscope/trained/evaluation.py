"""Evaluates a model on a whole validation split."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from headscope.data.encode import ValidationText
from headscope.data.windows import ValidationWindows
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.loss import (
    IGNORED,
    bits_per_byte,
    check_finite,
    counted_targets,
    next_token_loss,
)
from headscope.nn.precision import supports_bf16, tf32
from headscope.trained.generation.precision import in_precision
from headscope.trained.model import TrainedModel

OF_RUN = {"32-true": "fp32", "bf16-mixed": "bf16-mixed", "bf16-true": "bf16"}
"""Maps each precision of a training run to the corresponding precision of the evaluation."""


def choose_precision(precision: str, loaded: TrainedModel) -> str:
    """Replaces `auto` by the precision in which the run computed its own validation loss, or by
    fp32 if the device does not support bfloat16."""
    if precision != "auto":
        return precision
    return OF_RUN[loaded.precision] if supports_bf16(loaded.model.device) else "fp32"


@torch.no_grad()
def evaluate(
    model: GPT,
    text: ValidationText,
    *,
    batch_size: int,
    block_size: int | None = None,
    precision: str = "fp32",
) -> dict[str, Any]:
    """Loss, perplexity and bits per byte of `model` on `text`, computed as in training.

    The text is cut into consecutive windows of `block_size` tokens. The default is the model's own
    block_size. `precision` is fp32, bf16, int8 or bf16-mixed. With bf16-mixed, the weights are
    float32, and autocast computes matrix products in bfloat16. With fp32, a CUDA device computes
    matrix products in TF32, as in training.

    Raises UserError if no window has an answer that counts, or if the loss is not finite.
    """
    size = model.block_size if block_size is None else block_size
    mixed = precision == "bf16-mixed"
    model = model if mixed else in_precision(model, precision)
    device = model.device
    nats, predicted, token_bytes = 0.0, 0, 0
    with tf32(device), torch.autocast(device.type, torch.bfloat16, enabled=mixed):
        for batch in ValidationWindows(text.tokens, block_size=size, batch_size=batch_size):
            inputs, targets = (tensor.to(device) for tensor in batch)
            targets = counted_targets(inputs, targets, text.answers)
            nats += float(next_token_loss(model(inputs), targets, reduction="sum"))
            counted = targets[targets != IGNORED]
            predicted += counted.numel()
            token_bytes += int(text.byte_lengths[counted.cpu().numpy()].sum())
    check_finite(torch.tensor(nats))
    if not predicted:
        raise UserError(f"block_size={size}: no answer fits into a window: choose a larger one")
    text_bytes = round(token_bytes * text.text_per_token_byte)
    return {
        "precision": precision,
        "loss_nats_per_token": nats / predicted,
        "perplexity": math.exp(nats / predicted),
        "bits_per_byte": bits_per_byte(nats, text_bytes) if text_bytes else None,
        "tokens": predicted,
        "bytes": text_bytes,
    }


def evaluate_lengths(
    loaded: TrainedModel, text: ValidationText, *, block_sizes: Sequence[int], **options: Any
) -> list[dict[str, Any]]:
    """Runs `evaluate` with the same `options` for each context length in `block_sizes`, which may
    be larger than in training. If the position encoding does not support this, or if no window
    contains an answer, the result has the key `not_possible` with the reason, and no metrics."""
    results = []
    for size in block_sizes:
        try:
            model = loaded.with_block_size(max(size, loaded.model.block_size))
            metrics = evaluate(model, text, block_size=size, **options)
        except UserError as error:
            metrics = {"not_possible": str(error)}
        results.append({"block_size": size, **metrics})
    return results
