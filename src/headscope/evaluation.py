"""The loss of a checkpoint on a whole validation split."""

import math
from typing import Any

import numpy as np
import torch

from headscope.checkpoint import Checkpoint
from headscope.data.batches import ValidationWindows
from headscope.data.corpus import Corpus
from headscope.data.store import encode_documents
from headscope.nn.loss import bits_per_byte, next_token_loss


@torch.no_grad()
def evaluate(loaded: Checkpoint, corpus: Corpus, *, batch_size: int) -> dict[str, Any]:
    """Loss, perplexity and bits per byte on the validation split of `corpus`, in windows of
    `block_size` in order without overlap, as training reports them.

    Raises ValueError when the split is too short.
    """
    _, documents = corpus.splits()
    texts = (row["text"] for row in documents)
    tokens = np.concatenate(list(encode_documents(texts, loaded.tokenizer)))
    lengths = loaded.tokenizer.byte_lengths()
    windows = ValidationWindows(tokens, block_size=loaded.model.block_size, batch_size=batch_size)
    nats = 0.0
    for inputs, targets in windows:
        logits = loaded.model(inputs.to(loaded.model.device))
        nats += float(next_token_loss(logits, targets.to(logits.device), reduction="sum"))
    predicted = len(tokens) - 1
    size = int(lengths[tokens[1:]].sum())
    return {
        "loss_nats_per_token": nats / predicted,
        "perplexity": math.exp(nats / predicted),
        "bits_per_byte": bits_per_byte(nats, size) if size else None,
        "tokens": predicted,
        "bytes": size,
    }
