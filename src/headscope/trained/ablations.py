"""What the loss becomes without each head, measured or estimated on a validation text.

Shapes: L layers, H heads per layer.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.ablation import (
    By,
    ablate_heads,
    gradient_importance,
    mean_outputs,
    other_induction,
)
from headscope.analysis.repeats import can_measure_repeats
from headscope.data.encode import ValidationText
from headscope.data.windows import spread_windows
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.loss import IGNORED, check_finite, counted_targets

ABLATION_WINDOWS = 64
"""Number of validation windows on which heads are removed."""


@dataclass(frozen=True)
class AblationResult:
    """The effect of removing each head.

    `loss` is the loss with all heads, in nats per token. `metrics` contains these metrics, each a
    tensor (L, H), if they were measured:

    - `gradient_importance`, `loss_change_estimate`: estimated from gradients, in nats per token.
    - `loss_change`: the loss without the head minus the loss with all heads, in nats per token, and
      `loss_change_error`, its standard error. `bits_per_byte_change`: the same in bits per byte.
    - `other_induction`: the largest metric `induction` of all other heads without the head.
    """

    replace_by: By
    windows: int
    loss: float
    metrics: dict[str, Tensor]

    @property
    def correlations(self) -> dict[str, float]:
        """Pearson's correlation, over all heads, of each estimate from gradients and the measured
        `loss_change`. NaN if one of them is missing, or the same for all heads."""
        names = ["gradient_importance", "loss_change_estimate"]
        if not {*names, "loss_change"} <= self.metrics.keys():
            return dict.fromkeys(names, math.nan)
        rows = torch.stack([self.metrics[name].flatten() for name in ("loss_change", *names)])
        return dict(zip(names, rows.double().corrcoef()[0, 1:].tolist(), strict=True))


def measure_ablation(
    model: GPT,
    text: ValidationText,
    replace_by: By = "zero",
    *,
    windows: int = ABLATION_WINDOWS,
    removes: bool = True,
    gradients: bool = False,
) -> AblationResult:
    """Measure the effect of removing each head on `windows` windows of the validation text, with
    `block_size` predicted tokens each. `replace_by` says what replaces the output of a removed
    head.

    `removes`: remove one head at a time. `gradients`: estimate the effect from gradients, which is
    faster. Raises UserError if no token of the windows counts, or if the loss is not finite.
    """
    chosen = spread_windows(text.tokens, windows=windows, length=model.block_size + 1)
    inputs = chosen[:, :-1]
    targets = counted_targets(inputs, chosen[:, 1:], text.answers)
    counted = targets[targets != IGNORED].numpy()
    if not len(counted):
        raise UserError(f"ablation_windows={windows}: they have no answer: choose more")
    means = mean_outputs(model, inputs) if replace_by == "mean" else None
    metrics: dict[str, Tensor] = {}
    if gradients:
        metrics |= gradient_importance(model, inputs, targets, means=means)
    if removes:
        metrics |= ablate_heads(model, inputs, targets, means=means)
        bytes_per_token = text.byte_lengths[counted].mean() * text.text_per_token_byte
        metrics["bits_per_byte_change"] = metrics["loss_change"] / math.log(2) / bytes_per_token
    loss = metrics.pop("loss")
    check_finite(loss)
    special = np.flatnonzero(text.byte_lengths == 0).tolist()  # not in the random texts
    if removes and can_measure_repeats(model, special):
        metrics["other_induction"] = other_induction(model, means=means, excluded=special)
    return AblationResult(replace_by, len(inputs), float(loss), metrics)
