"""Activation patching of heads: which heads carry the information that two texts differ in.

A model reads two texts, `clean` and `corrupted`, which have the same number of tokens and differ in
what the model should predict next. Then it reads one of them again, but the output of one head,
before `out_proj`, is replaced by the output of the same head on the other text (Vig 2020; Meng
2022; Wang 2022). Heimersheim & Nanda 2024 name the two directions:

- denoising: the corrupted text, with a head of the clean text. A head that restores the prediction
  is sufficient for it.
- noising: the clean text, with a head of the corrupted text. A head that destroys it is necessary.

A metric measures the prediction. Its score is 0 on the corrupted text and 1 on the clean text.

Shapes: L layers, H heads, D head_dim, B batch, T tokens, V vocab_size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.head_outputs import head_outputs, measure_replacements
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.capture import evaluating
from headscope.nn.loss import next_token_loss

Metric = Callable[[Tensor], Tensor]
"""Maps logits (B, T, V) to one number per text (B,)."""


@dataclass(frozen=True)
class PatchingResult:
    """The metric on two texts, and on each text with one head of the other text.

    - `clean`, `corrupted`: the metric on the unchanged texts.
    - `denoised` (L, H): the metric on the corrupted text, with one head of the clean text.
    - `noised` (L, H): the metric on the clean text, with one head of the corrupted text.
    """

    clean: float
    corrupted: float
    denoised: Tensor
    noised: Tensor

    @property
    def denoising(self) -> Tensor:
        """The scores (L, H) of `denoised`. A head without effect has the score 0."""
        return self.score(self.denoised)

    @property
    def noising(self) -> Tensor:
        """The scores (L, H) of `noised`. A head without effect has the score 1."""
        return self.score(self.noised)

    def score(self, metric: Tensor) -> Tensor:
        """The metric on a linear scale, on which the corrupted text is 0 and the clean text is 1.
        If the metric is the same on both texts, the scores are NaN."""
        difference = self.clean - self.corrupted
        return (metric - self.corrupted) / (difference if difference else torch.nan)


@torch.no_grad()
def patch_heads(
    model: GPT,
    clean: Tensor,
    corrupted: Tensor,
    metric: Metric,
    *,
    position: int | None = None,
) -> PatchingResult:
    """Exchange the output of each head between two texts, `clean` (T,) and `corrupted` (T,), one
    head at a time, and measure the effect.

    The output is replaced at all tokens or, if given, at the token `position`, counted from 0.
    `metric` is, for example, `LogitDifference` or `ContinuationLoss`. Raises UserError if the texts
    are empty or do not have the same number of tokens, or if there is no such position.
    """
    if clean.dim() != 1 or clean.shape != corrupted.shape or not len(clean):
        shapes = f"clean has the shape {[*clean.shape]}, and corrupted {[*corrupted.shape]}"
        raise UserError(f"{shapes}: give texts (tokens,) with the same number of tokens")
    length = len(clean)
    if position is not None and not 0 <= position < length:
        advice = f"give 0 to {length - 1}, or null for all tokens"
        raise UserError(f"position={position} is not a token of the texts: {advice}")
    positions = slice(None) if position is None else slice(position, position + 1)
    texts = torch.stack([clean, corrupted]).to(model.device)

    def measure(x: Tensor) -> Tensor:
        return metric(model.unembed(x))

    def patched(receiver: int, outputs: list[Tensor]) -> tuple[float, Tensor]:
        """The metric on one of the two texts: unchanged, and with each head of the other text."""
        of_other = [of_both[1 - receiver] for of_both in outputs]  # (T, H, D) each
        whole, changed = measure_replacements(
            model, texts[[receiver]], measure, of_other, positions=positions
        )
        return float(whole), changed[..., 0].cpu()

    with evaluating(model):
        outputs = head_outputs(model, texts)
        clean_metric, noised = patched(0, outputs)
        corrupted_metric, denoised = patched(1, outputs)
    return PatchingResult(clean_metric, corrupted_metric, denoised, noised)


@dataclass(frozen=True)
class LogitDifference:
    """The metric of Wang 2022: at the last token, the logit of the token `right` minus the logit of
    the token `wrong`. A high value means that the model prefers `right`. Raises UserError if one of
    them is not in the vocabulary."""

    right: int
    wrong: int

    def __call__(self, logits: Tensor) -> Tensor:
        for token in (self.right, self.wrong):
            if not 0 <= token < logits.size(-1):
                raise UserError(f"the token {token} must be from 0 to {logits.size(-1) - 1}")
        last = logits[:, -1].float()
        return last[:, self.right] - last[:, self.wrong]


@dataclass(frozen=True)
class ContinuationLoss:
    """The mean loss, in nats per token, on the last tokens of the texts, which are `tokens` (N,).
    Both texts must end with them. A low value means that the model predicts these tokens. Raises
    UserError if there are no tokens, or no token of the texts before them."""

    tokens: tuple[int, ...]

    def __call__(self, logits: Tensor) -> Tensor:
        count = len(self.tokens)
        if not 0 < count < logits.size(1):
            problem = f"{count} tokens of texts with {logits.size(1)} tokens"
            raise UserError(f"the continuation is {problem}: give at least one, but not all")
        targets = torch.tensor(self.tokens, device=logits.device).expand(len(logits), count)
        losses = next_token_loss(logits[:, -1 - count : -1], targets, reduction="none")
        return losses.view_as(targets).mean(dim=-1)
