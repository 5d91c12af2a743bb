"""Evaluates a model on a whole validation split."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headscope.data.corpus import Corpus
from headscope.data.encode import EncodedCorpus, answers_of
from headscope.data.tokenizer import Tokenizer
from headscope.data.windows import ValidationWindows
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.loss import (
    IGNORED,
    Answers,
    bits_per_byte,
    check_finite,
    counted_targets,
    next_token_loss,
)
from headscope.nn.precision import in_precision, supports_bf16, tf32

if TYPE_CHECKING:
    from headscope.trained import TrainedModel


@dataclass(frozen=True)
class ValidationText:
    """The N tokens of a validation split.

    - `byte_lengths` (V,): the number of bytes of each token in the vocabulary.
    - `probe`: the `probe_text` of the corpus.
    - `text_per_token_byte`: bytes of text per byte of its tokens, 1 if the tokenizer is lossless.
    - `answers`: if it is not None, the losses count only these targets.
    """

    tokens: np.ndarray
    byte_lengths: np.ndarray
    probe: str | None = None
    text_per_token_byte: float = 1.0
    answers: Answers | None = None


def validation_text(corpus: Corpus, tokenizer: Tokenizer) -> ValidationText:
    """The validation split of `corpus`, encoded by `tokenizer`."""
    encoded = EncodedCorpus(corpus, tokenizer, ("validation",))
    arrays = [array for split, array in encoded.token_arrays() if split == "validation"]
    ratio = encoded.counts["validation"].text_per_token_byte
    answers = answers_of(corpus, tokenizer)
    tokens, lengths = np.concatenate(arrays), tokenizer.byte_lengths()
    return ValidationText(tokens, lengths, corpus.probe_text, ratio, answers)


OF_RUN = {"32-true": "fp32", "bf16-mixed": "bf16-mixed", "bf16-true": "bf16"}
"""Maps each precision of a training run to the corresponding precision of the evaluation."""


def choose_precision(precision: str, loaded: "TrainedModel") -> str:
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
    loaded: "TrainedModel", text: ValidationText, *, block_sizes: Sequence[int], **options: Any
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
