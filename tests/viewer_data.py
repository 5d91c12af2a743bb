"""Made-up histories for tests of the attention viewer: heads that learn something over the steps.

Shapes: L layers, H heads per layer, T tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headscope.analysis.metrics import colour_ends, head_figures, uniform_figures
from headscope.viewer.history import history, read_header
from headscope.viewer.snapshot import snapshot_parts

NAMES = {"previous": "previous-token", "first": "first-token", "self": "self"}
HOSTILE = "<img src=x onerror=alert(1)>"


def previous_token(tokens: int) -> NDArray[np.float64]:
    """Nine tenths of the weight on the previous token, the rest on the token itself."""
    weights = 0.1 * np.eye(tokens) + 0.9 * np.eye(tokens, k=-1)
    return weights / weights.sum(-1, keepdims=True)


def first_token(tokens: int) -> NDArray[np.float64]:
    """0.99 on the first token. The rest is spread over the other tokens, two thirds of it on the
    token itself."""
    others = np.tril(np.ones((tokens, tokens)))
    others[:, 0] = 0
    others += 2 * np.maximum(others.sum(-1, keepdims=True), 1) * np.eye(tokens)
    weights = 0.01 * others / others.sum(-1, keepdims=True)
    weights[:, 0] += 1 - weights.sum(-1)
    return weights


def own_token(tokens: int) -> NDArray[np.float64]:
    weights = 0.8 * np.eye(tokens) + 0.2 * uniform(tokens)
    return weights / weights.sum(-1, keepdims=True)


def local(tokens: int) -> NDArray[np.float64]:
    ages = np.arange(tokens)[:, None] - np.arange(tokens)
    weights = np.where(ages >= 0, np.exp(-np.abs(ages) / 2.0), 0)
    return weights / weights.sum(-1, keepdims=True)


def uniform(tokens: int) -> NDArray[np.float64]:
    weights = np.tril(np.ones((tokens, tokens)))
    return weights / weights.sum(-1, keepdims=True)


def learned(layers: int, heads: int, tokens: int) -> NDArray[np.float64]:
    """What the heads do at the end of training (L, H, T, T). They differ from one another."""
    kinds = [previous_token, first_token, own_token, local, uniform]
    rng = np.random.default_rng(0)
    weights = np.stack([kinds[n % 5](tokens) for n in range(layers * heads)])
    own = rng.dirichlet([0.2] * tokens, size=len(weights))[:, None] * np.tril(
        np.ones((tokens, tokens))
    )
    own = own + 1e-9 * np.tril(np.ones((tokens, tokens)))
    share = np.linspace(0, 0.6, len(weights))[:, None, None]
    mixed = (1 - share) * weights + share * own / own.sum(-1, keepdims=True)
    return mixed.reshape(layers, heads, tokens, tokens)


def weights_at(step: int, last: int, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights after `step` steps: from uniform attention to `weights`. Head n starts later
    than head n - 1."""
    layers, heads, tokens, _ = weights.shape
    start = np.linspace(0.15, 0.6, layers * heads).reshape(layers, heads, 1, 1)
    progress = np.log1p(step) / max(np.log1p(last), 1e-9)
    share = 1 / (1 + np.exp(-20 * (progress - start)))
    return (1 - share) * uniform(tokens) + share * weights if last else weights


def snapshot(
    weights: NDArray[np.float64],
    labels: Sequence[str],
    step: int,
    names: Sequence[str] | None = None,
    text_tokens: int | None = None,
) -> list[bytes]:
    """The parts of a snapshot. A head is named after the figure with the largest excess over
    uniform attention."""
    tokens = weights.shape[-1]
    found_figures = head_figures(torch.from_numpy(weights)).items()
    figures = {name: value.flatten().numpy() for name, value in found_figures}
    even = uniform_figures(tokens)
    excess = np.stack([(figures[name] - even[name]) / max(1 - even[name], 1e-6) for name in NAMES])
    best = excess.argmax(0)
    chosen = [list(NAMES)[index] for index in best]
    ratios = excess.max(0) / 0.4
    found = [
        NAMES[name] if ratio >= 1 else "mixed" if ratio > 0.25 else "-"
        for name, ratio in zip(chosen, ratios, strict=True)
    ]
    return snapshot_parts(
        weights.astype(np.float32),
        step=step,
        labels=labels,
        text_tokens=text_tokens or tokens,
        names=names or found,
        scores=[figures[name][head] for head, name in enumerate(chosen)],
        ratios=ratios.tolist(),
        figures={name: values.tolist() for name, values in figures.items()},
        uniform=even,
        ends={name: colour_ends(name, tokens) for name in figures},
    )


def run(
    name: str = "outputs/run",
    *,
    labels: Sequence[str],
    layers: int = 2,
    heads: int = 4,
    steps: Sequence[int] = (0, 10, 100, 1000),
    weights: NDArray[np.float64] | None = None,
    text: str = "attention/text",
    **others: Any,
) -> Mapping[str, Any]:
    """A run for `attention_page`: name, text, history and parts. `weights` (L, H, T, T) are those
    of the last step. `others` are arguments of `snapshot`."""
    last_weights = learned(layers, heads, len(labels)) if weights is None else weights
    headers, keys = [], []
    parts: dict[str, bytes] = {}
    for step in steps:
        made = snapshot(weights_at(step, steps[-1], last_weights), labels, step, **others)
        headers.append(read_header(made[0]))
        keys.append([f"{name}/{step}/{number}" for number in range(1, len(made))])
        parts |= dict(zip(keys[-1], made[1:], strict=True))
    axis = np.unique(np.geomspace(1, steps[-1] + 1, 200).astype(int)) - 1
    curve = {
        "name": "train/loss",
        "steps": axis.tolist(),
        "values": (2.5 + 5.5 * np.exp(-axis / (steps[-1] / 4 + 1))).tolist(),
    }
    return {"name": name, "text": text, "history": history(headers, keys, curve), "parts": parts}
