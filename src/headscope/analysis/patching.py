"""Activation patching of heads: which heads carry the information that two texts differ in.

A model reads two texts, `clean` and `corrupted`, which have the same number of tokens and differ in
what the model should predict next. Then it reads one of them again, but the output of one head,
before `out_proj`, is replaced by the output of the same head on the other text (Vig 2020; Meng
2022; Wang 2022). Heimersheim & Nanda 2024 name the two directions:

- denoising: the corrupted text, with a head of the clean text. A head that restores the prediction
  is sufficient for it.
- noising: the clean text, with a head of the corrupted text. A head that destroys it is necessary.

A metric measures the prediction. Its score is 0 on the corrupted text and 1 on the clean text.
The keys `patch.*` in messages are those of scripts/analyze.py.

Shapes: L layers, H heads, D head_dim, B batch, T tokens, V vocab_size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headscope.analysis.head_outputs import head_outputs, largest_batch, measure_replacements
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.capture import evaluating
from headscope.nn.loss import next_token_loss

if TYPE_CHECKING:
    from headscope.trained import TrainedModel

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
    max_batch: int | None = None,
) -> PatchingResult:
    """Exchange the output of each head between two texts, `clean` (T,) and `corrupted` (T,), one
    head at a time, and measure the effect.

    The output is replaced at all tokens or, if given, at the token `position`, counted from 0.
    `metric` is, for example, `LogitDifference` or `ContinuationLoss`. A batch contains at most
    `max_batch` texts. Raises UserError if the texts are empty or do not have the same number of
    tokens, or if there is no such position.
    """
    if clean.dim() != 1 or clean.shape != corrupted.shape or not len(clean):
        shapes = f"clean has the shape {[*clean.shape]}, and corrupted {[*corrupted.shape]}"
        raise UserError(f"{shapes}: give texts (tokens,) with the same number of tokens")
    length = len(clean)
    if position is not None and not 0 <= position < length:
        advice = f"give 0 to {length - 1}, or null for all tokens"
        raise UserError(f"position={position} is not a token of the texts: {advice}")
    positions = slice(None) if position is None else slice(position, position + 1)
    max_batch = largest_batch(model, length) if max_batch is None else max_batch
    texts = torch.stack([clean, corrupted]).to(model.device)

    def measure(x: Tensor) -> Tensor:
        return metric(model.unembed(x))

    def patched(receiver: int, outputs: list[Tensor]) -> tuple[float, Tensor]:
        """The metric on one of the two texts: unchanged, and with each head of the other text."""
        of_other = [of_both[1 - receiver] for of_both in outputs]  # (T, H, D) each
        whole, changed = measure_replacements(
            model, texts[[receiver]], measure, of_other, positions=positions, max_batch=max_batch
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


@dataclass(frozen=True)
class PatchTexts:
    """Two texts of T tokens, and the metric that compares them.

    - `clean`, `corrupted`: the tokens of the texts, including the continuation if there is one.
    - `clean_labels`, `corrupted_labels`: printable texts of these tokens.
    - `metric` and its description `metric_name`.
    - `position`: the token at which heads are replaced, from 0, or None for all tokens.
    """

    clean: list[int]
    corrupted: list[int]
    clean_labels: list[str]
    corrupted_labels: list[str]
    metric: LogitDifference | ContinuationLoss
    metric_name: str
    position: int | None

    def run(self, loaded: "TrainedModel") -> PatchingResult:
        """Exchange each head between the two texts. Raises UserError if the metric is the same on
        both texts, because there is nothing to restore."""
        clean, corrupted = torch.tensor(self.clean), torch.tensor(self.corrupted)
        result = patch_heads(loaded.model, clean, corrupted, self.metric, position=self.position)
        if result.clean == result.corrupted:
            both = f"{self.metric_name} is {result.clean:.4f} on both"
            problem = f"{both}: there is no difference that a head could carry"
            advice = "change the corrupted text or the answers"
            raise UserError(f"patch.clean and patch.corrupted: {problem}; {advice}")
        return result


def patch_texts(
    loaded: "TrainedModel",
    *,
    clean: str | None,
    corrupted: str | None,
    answers: Sequence[str] | None = None,
    continuation: str | None = None,
    position: int | None = None,
) -> PatchTexts:
    """Encode two texts for activation patching. The metric is one of these:

    - with `answers`: the logit of the first answer minus the logit of the second answer, at the
      last token. Each answer must be a single token.
    - with `continuation`: the mean loss on the tokens of this text, which follow both texts.

    Raises UserError if a text is missing or longer than `block_size`, if the two texts are equal or
    have different numbers of tokens, or if an answer is not a single token.
    """
    tokenizer = loaded.tokenizer
    if not clean or not corrupted:
        raise UserError("patch.clean= and patch.corrupted=: one is missing; give both texts")
    tokens = [tokenizer.encode_prompt(text) for text in (clean, corrupted)]
    if len(tokens[0]) != len(tokens[1]):
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(*tokens, strict=False))
        same = len([*alike])
        first, second = (tokenizer.labels(of_text[same : same + 8]) for of_text in tokens)
        raise UserError(
            f"patch.clean and patch.corrupted have {len(tokens[0])} and {len(tokens[1])} tokens: "
            "change a text until both have the same number; from the first difference, clean has "
            f"{first} and corrupted {second}"
        )
    if tokens[0] == tokens[1]:
        raise UserError("patch.clean and patch.corrupted are the same text: change a token of one")
    if (answers is None) == (continuation is None):
        raise UserError("patch.answers and patch.continuation: give one of them, as the metric")
    metric: LogitDifference | ContinuationLoss
    if answers is not None:
        if len(answers) != 2 or answers[0] == answers[1]:
            advice = 'give the answer to the clean text and another one, such as [" Mary"," John"]'
            raise UserError(f"patch.answers={list(answers)} must be two different texts: {advice}")
        pair = [tokenizer.only_token(answer, key="patch.answers") for answer in answers]
        metric = LogitDifference(*pair)
        right, wrong = tokenizer.labels(pair)
        name = f"the logit of {right} minus the logit of {wrong} at the last token"
    else:
        following = tokenizer.encode_prompt(continuation or "")
        if not following:
            raise UserError("patch.continuation is empty: give at least one token")
        metric = ContinuationLoss(tuple(following))
        tokens = [[*of_text, *following] for of_text in tokens]
        name = f"the loss in nats per token on {''.join(tokenizer.labels(following))}"
    length = len(tokens[0])
    if length > loaded.model.block_size:
        more = " with patch.continuation" if answers is None else ""
        limit = f"more than the model's block_size={loaded.model.block_size}"
        raise UserError(f"patch.clean has {length} tokens{more}, {limit}: shorten both texts")
    clean_labels, corrupted_labels = map(tokenizer.labels, tokens)
    return PatchTexts(tokens[0], tokens[1], clean_labels, corrupted_labels, metric, name, position)
