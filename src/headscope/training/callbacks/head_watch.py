"""Watches the attention heads during training: measures and names them, and logs what they do.

Shapes: L layers, H heads per layer, N windows, T tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image
from torch import Tensor

from headscope.analysis.diversity import diversity
from headscope.analysis.head_images import DESCRIPTION, head_image, image_tag
from headscope.analysis.head_statistics import HeadStatistics, measure_heads, repeat_probe
from headscope.analysis.head_types import GLOBAL, MIXED, NONE, Thresholds
from headscope.analysis.predictions import predictions
from headscope.analysis.repeats import RepeatProbe
from headscope.analysis.snapshots import snapshot_of
from headscope.analysis.tokens import TokenKinds
from headscope.analysis.trace import trace
from headscope.nn import GPT
from headscope.nn.capture import evaluating
from headscope.training.callbacks.step_callback import StepCallback
from headscope.training.callbacks.tensorboard_log import (
    add_image,
    add_scalars,
    add_snapshot,
    tensorboard_writers,
)
from headscope.training.module import LanguageModel
from headscope.viewer import SNAPSHOTS
from headscope.viewer.predictions import Predictions

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

REPEATED_TEXTS = 4
"""Number of random texts for the induction metrics. Each text contains a random passage twice."""

CHARTED = ("previous", "first", "induction", "entropy_share")
"""The metrics that are logged as scalars for each head. The tab Attention has all metrics."""

SCALARS = "watch"
"""The group of these scalars. TensorBoard sorts groups, so `train` and `val` come before it."""


@dataclass(frozen=True)
class ProbeText:
    """The text on which attention is shown: its tokens, a label for each, the number of tokens
    before it was shortened, and a label for each token of the vocabulary."""

    tokens: list[int]
    labels: list[str]
    whole: int
    vocabulary: list[str]


@dataclass(frozen=True)
class WatchSteps:
    """The steps after which to measure: the steps of `snapshots` and of `images`, the last step,
    and where these are far apart, also every `every` steps (0: never)."""

    every: int
    snapshots: frozenset[int]
    images: frozenset[int]
    last: int

    def due(self, step: int) -> bool:
        planned = self.snapshots | self.images | {self.last}
        if step in planned:
            return True
        if not self.every or step % self.every:
            return False
        return not any(step - self.every < other < step for other in planned)

    def with_all(self, step: int) -> "WatchSteps":
        """These steps and `step`, after which everything that is turned on is logged."""
        extra = frozenset([step])
        return replace(
            self,
            snapshots=self.snapshots and self.snapshots | extra,
            images=self.images and self.images | extra,
            last=step,
        )

    def is_complete(self, step: int) -> bool:
        """Whether everything that is turned on is logged after `step`."""
        more = self.with_all(step)
        same = (self.snapshots, self.images) == (more.snapshots, more.images)
        return same and self.due(step)


class HeadWatch(StepCallback):
    """Measures all heads at the steps of `steps`, and once more when early stopping ends the run.

    Logs to TensorBoard:

    - a snapshot for the tab Attention, at the steps of `steps.snapshots` and whenever the name of a
      head has changed. Additional snapshots end when the run's snapshots would exceed `max_bytes`;
    - `watch/<metric>/<head>`, for example `watch/previous/L0H1`, for the metrics in CHARTED, and
      `watch/diversity`. The tab Custom Scalars shows the heads of a layer in one chart;
    - an image of each layer, with the attention maps of all its heads, at the steps of
      `steps.images`.

    `say` prints a line when a head gets a name. The induction metrics are averaged over random
    texts that contain a passage twice. All other metrics are averaged over `windows` (N, T).

    Training itself uses fused attention, which does not return attention weights. So additional
    forward passes with explicit attention compute them. `ResumableEarlyStopping` must come before
    this callback in the list of callbacks.
    """

    def __init__(
        self,
        *,
        text: ProbeText,
        windows: Tensor,
        kinds: TokenKinds,
        thresholds: Thresholds,
        steps: WatchSteps,
        max_bytes: int,
        say: Callable[[str], None],
    ) -> None:
        self.text = text
        self.windows = windows
        self.kinds = kinds
        self.thresholds = thresholds
        self.steps = steps
        self.max_bytes = max_bytes
        self.say = say
        self.repeats: RepeatProbe | None = None
        self.uniform: dict[str, float] | None = None  # the texts are the same at all steps
        self.names: list[str] = []  # at the last measurement
        self.announced: set[str] = set()  # heads with names, such as "L0H2 previous-token"
        self.logged_bytes = 0
        self.logged_steps = 0
        self.layout_written = False  # by this process: an earlier event file may be lost

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "names": " ".join(self.names),
            "announced": "\n".join(sorted(self.announced)),
            "logged_bytes": self.logged_bytes,
            "logged_steps": self.logged_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.names = state["names"].split()
        self.announced = set(state["announced"].splitlines())
        self.logged_bytes = state["logged_bytes"]
        self.logged_steps = state["logged_steps"]

    def due(self, step: int) -> bool:
        return self.steps.due(step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # `on_train_end` would be too late: the last checkpoint is saved before it.
        step = trainer.global_step
        stopped_early = trainer.should_stop and step < trainer.max_steps
        if trainer.state.fn == "fit" and stopped_early and not self.steps.is_complete(step):
            self.steps = self.steps.with_all(step)
            self._call(trainer, pl_module)

    def on_due_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.loggers and trainer.is_global_zero:
            assert isinstance(pl_module, LanguageModel)
            self.measure(pl_module.model, trainer.global_step, tensorboard_writers(trainer))

    def measure(self, model: GPT, step: int, writers: "Sequence[SummaryWriter]") -> None:
        """Measures `model` after `step` steps, and logs the results to `writers`."""
        with evaluating(model):
            self._measure(model, step, writers)

    def _measure(self, model: GPT, step: int, writers: "Sequence[SummaryWriter]") -> None:
        if self.repeats is None:
            self.repeats = repeat_probe(model, self.kinds, REPEATED_TEXTS)
        statistics = measure_heads(
            model,
            self.windows,
            kinds=self.kinds,
            thresholds=self.thresholds,
            repeats=self.repeats,
            uniform_metrics=self.uniform,
        )
        self.uniform = statistics.uniform
        self._announce(statistics, step)
        names = [head_type.name for head_type in statistics.types]
        renamed, self.names = names != self.names, names
        parts: list[bytes] = []
        images: dict[str, Image.Image] = {}
        with_snapshot = step in self.steps.snapshots or (self.steps.snapshots and renamed)
        if with_snapshot or step in self.steps.images:
            with torch.no_grad():
                found = trace(model, torch.tensor(self.text.tokens, device=model.device))
            if with_snapshot:
                predicted = predictions(model, found, self.text.vocabulary)
                parts = self._snapshot(found.attention, statistics, step, predicted)
            if step in self.steps.images:
                weights = found.attention.float().cpu()  # (L, H, T, T)
                heads = weights.size(1)
                images = {image_tag(i, heads): head_image(maps) for i, maps in enumerate(weights)}
        for writer in writers:
            if not self.layout_written:
                writer.add_custom_scalars(layout(statistics))
            add_scalars(writer, scalars(statistics), step)
            if parts:
                add_snapshot(writer, SNAPSHOTS, parts, step)
            for tag, image in images.items():
                add_image(writer, tag, image, step, description=DESCRIPTION)
        self.layout_written = True

    def _snapshot(
        self, weights: Tensor, statistics: HeadStatistics, step: int, predicted: Predictions
    ) -> list[bytes]:
        """The parts of a snapshot. Empty if this is an additional step for which there is no
        room."""
        parts = snapshot_of(
            weights,
            statistics,
            step=step,
            labels=self.text.labels,
            text_tokens=self.text.whole,
            predictions=predicted,
        )
        size = sum(map(len, parts))
        planned = sum(later > step for later in self.steps.snapshots)
        additional = step not in self.steps.snapshots
        if additional and self.logged_bytes + size * (1 + planned) > self.max_bytes:
            return []
        self.logged_bytes += size
        self.logged_steps += 1
        return parts

    def _announce(self, statistics: HeadStatistics, step: int) -> None:
        """Prints a line for each head that has a name for the first time. Names that say little
        are not printed."""
        for head, head_type in zip(statistics.heads, statistics.types, strict=True):
            named = f"{head} {head_type.name}"
            if head_type.name not in (GLOBAL, MIXED, NONE) and named not in self.announced:
                self.announced.add(named)
                offset = f"{head_type.label}, " if head_type.offset else ""
                article = "an" if head_type.name[0] in "aeiou" else "a"
                self.say(
                    f"step {step:,}  {head} is now {article} {head_type.name} head "
                    f"({offset}{head_type.score:.2f})"
                )


def scalars(statistics: HeadStatistics) -> dict[str, float]:
    """The scalars to log, by their tags."""
    values = {
        f"{SCALARS}/{metric}/{head}": value
        for metric in charted(statistics)
        for head, value in zip(
            statistics.heads, statistics.metrics[metric].flatten().tolist(), strict=True
        )
    }
    return values | {f"{SCALARS}/diversity": float(diversity(statistics.similarity))}


def layout(statistics: HeadStatistics) -> dict[str, dict[str, list]]:
    """The layout of TensorBoard's tab Custom Scalars: one category per metric, with one chart per
    layer."""
    layers, heads = statistics.metrics["previous"].shape
    return {
        metric: {
            f"layer {layer}": [
                "Multiline",
                [
                    f"{SCALARS}/{metric}/{head}"
                    for head in statistics.heads[layer * heads :][:heads]
                ],
            ]
            for layer in range(layers)
        }
        for metric in charted(statistics)
    }


def charted(statistics: HeadStatistics) -> list[str]:
    """The metrics in CHARTED that were measured: very short texts have no induction metrics."""
    return [metric for metric in CHARTED if metric in statistics.metrics]
