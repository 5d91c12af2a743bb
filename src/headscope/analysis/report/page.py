"""attention.html: the attention viewer with the attention of a checkpoint, or of several steps of a
run.

Shapes: L layers, H heads per layer, T tokens.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.predictions import predictions
from headscope.analysis.snapshots import snapshot_of
from headscope.analysis.trace import trace
from headscope.checkpoint import AttentionReading, Checkpoint
from headscope.nn.checks import check_finite
from headscope.nn.loss import IGNORED, next_token_loss
from headscope.viewer.history import history, read_header
from headscope.viewer.page import attention_page
from headscope.viewer.predictions import Predictions
from headscope.viewer.snapshot import tokens_within

MAX_BYTES = 10 * 2**20
"""Maximum size of all snapshots in a page. Base64 adds a third to it."""


def shown_tokens(
    reading: AttentionReading, loaded: Checkpoint, steps: int, max_bytes: int | None = None
) -> int:
    """The number of tokens of the text that the page shows, if it shows `steps` steps of the run of
    `loaded` with at most `max_bytes` bytes, by default MAX_BYTES. At least 1."""
    layers, heads, tokens, _ = reading.weights.shape
    limit = (max_bytes or MAX_BYTES) // max(steps, 1)
    vocabulary = loaded.tokenizer.vocabulary_labels()
    within = tokens_within(limit, layers=layers, heads=heads, tokens=tokens, vocabulary=vocabulary)
    return max(within, 1)


def snapshots_of(
    reading: AttentionReading,
    shown: int,
    measured: Sequence[tuple[Checkpoint, HeadStatistics]],
    ablated: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> dict[int, list[bytes]]:
    """The snapshots on the first `shown` tokens of `reading`, by their steps. `measured` contains
    the checkpoints to show, in the order of their steps, and the statistics of their heads.
    `ablated` contains the metrics of an ablation (L, H), by step."""
    return {
        checkpoint.step: snapshot_of(
            checkpoint.attention(reading.tokens[:shown]).weights,
            statistics,
            step=checkpoint.step,
            labels=reading.labels[:shown],
            text_tokens=len(reading.tokens),
            more_metrics=(ablated or {}).get(checkpoint.step),
            predictions=predictions_on(checkpoint, reading.tokens[:shown]),
        )
        for checkpoint, statistics in measured
    }


@torch.no_grad()
def predictions_on(loaded: Checkpoint, tokens: Sequence[int]) -> Predictions:
    """What the model of a checkpoint predicts after each of these tokens. Raises UserError if a
    logit is not finite."""
    found = trace(loaded.model, torch.tensor(tokens, device=loaded.model.device))
    check_finite(found.logits)
    return predictions(loaded.model, found, loaded.tokenizer.vocabulary_labels())


def page_of(
    loaded: Checkpoint,
    snapshots: Mapping[int, Sequence[bytes]],
    losses: Sequence[float | None],
) -> str:
    """The text of attention.html. For each step, `snapshots` contains a snapshot, and `losses` the
    loss on the text of the snapshots."""
    headers, keys, parts = [], [], {}
    for step, (header, *others) in snapshots.items():
        headers.append(read_header(header))
        named = {f"{step}/{number}": part for number, part in enumerate(others)}
        keys.append(list(named))
        parts.update(named)
    loss = {"name": "loss on this text", "steps": list(snapshots), "values": losses}
    run = {
        "name": loaded.config.name,
        "text": "text",
        "history": history(headers, keys, loss),
        "parts": parts,
    }
    return attention_page(title=f"{loaded.config.name}, step {loaded.step:,}", runs=[run])


@torch.no_grad()
def loss_on(loaded: Checkpoint, tokens: Sequence[int]) -> float | None:
    """The mean loss on the tokens of a text, in nats per token. None if no token counts."""
    text = torch.tensor([tokens], device=loaded.model.device)
    targets = loaded.targets(text)
    if not (targets != IGNORED).any():
        return None
    return float(next_token_loss(loaded.model(text[:, :-1]), targets))
