"""The inputs of a report: a checkpoint, its texts, and the ablation to run.

Shapes: N windows, T tokens, L layers, H heads per layer.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from headscope.analysis.ablation import (
    Replacement,
    ablate_heads,
    gradient_importance,
    mean_outputs,
    other_induction,
)
from headscope.analysis.head_outputs import largest_batch
from headscope.analysis.reading import Reading
from headscope.analysis.repeats import can_measure_repeats
from headscope.analysis.tokens import TokenKinds, classify_vocabulary
from headscope.data.windows import first_passage, spread_windows
from headscope.errors import UserError
from headscope.evaluation import ValidationText
from headscope.nn.checks import check_finite
from headscope.nn.loss import IGNORED, Answers, counted_targets

if TYPE_CHECKING:
    from headscope.trained import TrainedModel

Track = Callable[[Iterable[Any]], Iterable[Any]]
"""A function that wraps an iterable, for example to show progress."""


@dataclass(frozen=True)
class ReportInput:
    """The checkpoint that a report analyses, and the texts for this analysis.

    - `loaded`: the checkpoint.
    - `reading`: the text of the attention maps.
    - `windows` (N, T): the tokens that the metrics are averaged over.
    - `answers`: what the losses count, or None for all tokens.
    - `kinds`: the kinds of tokens in the vocabulary.
    - `source`: a description of the windows, which the report contains.
    """

    loaded: "TrainedModel"
    reading: Reading
    windows: Tensor
    answers: Answers | None
    kinds: TokenKinds
    source: str

    @classmethod
    def of_validation(
        cls, loaded: "TrainedModel", text: ValidationText, windows: int | None = None
    ) -> "ReportInput":
        """A report on a validation split. The attention maps show the text that the corpus has
        chosen, or the beginning of the split. The metrics are averaged over windows from the whole
        split; `windows` is their number, by default so many that they have 4,096 tokens."""
        length = loaded.model.block_size
        return cls(
            loaded,
            reading=loaded.read(
                loaded.tokens(text.probe or first_passage(text.tokens, length))[:length]
            ),
            windows=spread_windows(text.tokens, windows=windows, length=length),
            answers=text.answers,
            kinds=classify_vocabulary(loaded.tokenizer, text.tokens),
            source="the validation split",
        )

    @classmethod
    def of_text(cls, loaded: "TrainedModel", text: str) -> "ReportInput":
        """A report on one text, with at most `block_size` of its tokens. One text is too short to
        tell which tokens are frequent, so no head is named frequent-token or rare-token."""
        reading = loaded.read(loaded.tokens(text)[: loaded.model.block_size])
        return cls(
            loaded,
            reading=reading,
            windows=reading.tokens[None].cpu(),
            answers=loaded.answers,
            kinds=classify_vocabulary(loaded.tokenizer),
            source="the given text",
        )


@dataclass(frozen=True)
class Ablation:
    """How to measure the effect of removing a head.

    - `replace_by` says what replaces the output of the removed head.
    - `inputs` and `targets` (N, T) are the tokens on which the loss is measured.
    - The random texts on which induction is measured do not contain the tokens in `excluded`.
    - `removes`: remove one head at a time. `gradients`: estimate the effect from gradients, which
      is faster.
    """

    replace_by: Replacement
    inputs: Tensor
    targets: Tensor
    bytes_per_token: float
    excluded: Sequence[int] = ()
    removes: bool = True
    gradients: bool = False

    @classmethod
    def on(
        cls,
        text: ValidationText,
        replace_by: Replacement,
        *,
        windows: int,
        length: int,
        removes: bool = True,
        gradients: bool = False,
    ) -> "Ablation":
        """An ablation that measures the loss on windows of the validation text. `windows` is the
        number of windows, `length` the number of predicted tokens per window."""
        chosen = spread_windows(text.tokens, windows=windows, length=length + 1)
        inputs = chosen[:, :-1]
        targets = counted_targets(inputs, chosen[:, 1:], text.answers)
        counted = targets[targets != IGNORED].numpy()
        if not len(counted):
            raise UserError(f"ablation_windows={windows}: they have no answer: choose more")
        token_bytes = text.byte_lengths[counted].mean()
        bytes_per_token = token_bytes * text.text_per_token_byte
        special = np.flatnonzero(text.byte_lengths == 0).tolist()
        return cls(replace_by, inputs, targets, bytes_per_token, special, removes, gradients)

    def run(self, loaded: "TrainedModel", track: Track) -> "AblationResult":
        """Remove one head at a time, and measure the loss and the induction of the other heads.
        Induction is not measured if `can_measure_repeats` is false. Also estimate
        the effect from gradients, if `gradients`. `track` wraps the iterable of batches."""
        model, inputs, targets = loaded.model, self.inputs, self.targets
        options: Any = {"replace_by": self.replace_by, "track": track}
        batch = largest_batch(model, inputs.size(1))
        metrics: dict[str, Tensor] = {}
        if self.gradients:
            estimated = gradient_importance(model, inputs, targets, **options)
            loss = estimated["loss"]
            metrics["gradient_importance"] = estimated["importance"]
            metrics["loss_change_estimate"] = estimated["nats_per_token"]
        if self.removes:
            ablated = ablate_heads(model, inputs, targets, max_batch=batch, **options)
            loss, nats = ablated["loss"], ablated["nats_per_token"]
            metrics["loss_change"] = nats
            metrics["loss_change_error"] = ablated["standard_error"]
            metrics["bits_per_byte_change"] = nats / math.log(2) / self.bytes_per_token
        check_finite(loss)
        if self.removes and can_measure_repeats(model, self.excluded):
            means = mean_outputs(model, inputs, batch) if self.replace_by == "mean" else None
            metrics["other_induction"] = other_induction(model, means=means, excluded=self.excluded)
        return AblationResult(
            replace_by=self.replace_by,
            windows=len(self.inputs),
            loss=float(loss),
            metrics=metrics,
        )


@dataclass(frozen=True)
class AblationResult:
    """The effect of removing each head.

    `loss` is the loss with all heads, in nats per token. `metrics` contains these metrics, each a
    tensor (L, H):

    - `gradient_importance`, `loss_change_estimate`: estimated from gradients, in nats per token
      (see `gradient_importance`). Missing if they were not estimated; the other metrics are missing
      if no head was removed.
    - `loss_change`: the loss without the head minus the loss with all heads, in nats per token. A
      positive value means that the head lowers the loss.
    - `loss_change_error`: the standard error of `loss_change`.
    - `bits_per_byte_change`: the same change in bits per byte.
    - `other_induction`: the largest metric `induction` of all other heads without the head. Missing
      if it was not measured.
    """

    replace_by: Replacement
    windows: int
    loss: float
    metrics: dict[str, Tensor]

    def correlation(self, name: str) -> float:
        """Pearson's correlation, over all heads, of the metric `name` and the measured
        `loss_change`. NaN if one of them is missing, or the same for all heads."""
        if not {name, "loss_change"} <= self.metrics.keys():
            return math.nan
        pair = [self.metrics[each].flatten().double() for each in (name, "loss_change")]
        estimate, measured = (values - values.mean() for values in pair)
        return float((estimate @ measured) / (estimate.norm() * measured.norm()))

    def most_important(
        self, count: int, by: str = "loss_change"
    ) -> list[tuple[str, dict[str, float]]]:
        """The heads with the largest value of the metric `by`, each as a tuple of name (such as
        L0H1) and metrics. `count` is the number of heads."""
        change = self.metrics[by]
        heads = change.size(1)
        return [
            (
                f"L{n // heads}H{n % heads}",
                {name: float(metric.flatten()[n]) for name, metric in self.metrics.items()},
            )
            for n in change.flatten().argsort(descending=True, stable=True)[:count].tolist()
        ]
