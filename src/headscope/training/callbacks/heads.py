"""Logs the metrics and the names of the attention heads during training."""

from typing import Any

from lightning.pytorch import Trainer

from headscope.analysis.head_types import GLOBAL, MIXED, NONE, Thresholds
from headscope.analysis.own_metrics import HeadMetric, own_metrics
from headscope.analysis.record import HeadRecord
from headscope.config.parse import Count, Positive
from headscope.config.parts import Part
from headscope.training.callbacks.steps import StepCallback, data_of, last_step
from headscope.training.loggers import log_scalars, tensorboard_writers
from headscope.training.module import LanguageModel

CHARTED = ("previous", "first", "induction", "entropy_share")
"""The metrics that are logged as scalars for each head. The tab Attention has all metrics."""

SCALARS = "watch"  # the group of these scalars, in TensorBoard after `train` and `val`


class HeadWatch(StepCallback):
    """Logs the heads at the steps of `AttentionLog`, at the steps that the run keeps, and at the
    last step. Where these steps are more than `every_steps` apart, heads are also measured every
    `every_steps` steps (0: never).

    `metrics` are metrics of the user by name, functions of weights and tokens (see `HeadMetric`).

    Logs `watch/<metric>/<head>`, for example `watch/previous/L0H1`, for the metrics in CHARTED and
    those of the user, and `watch/diversity`. TensorBoard's tab Custom Scalars shows the heads of a
    layer in one chart. Prints a line when a head gets a name, which `thresholds` decide.

    The induction metrics are means over random texts that contain a passage twice, all others over
    `windows` windows of the validation split (see `head_recorder`). Training uses fused attention,
    which returns no attention weights, so additional forward passes compute them.
    """

    def __init__(
        self,
        *,
        every_steps: Count = 100,
        windows: Positive | None = None,
        metrics: dict[str, HeadMetric | Part] | None = None,
        thresholds: Thresholds | None = None,
    ) -> None:
        self.every_steps, self.windows = every_steps, windows
        self.thresholds = thresholds or Thresholds()
        self.own = own_metrics(metrics)
        self.announced: set[str] = set()  # heads with names, such as "L0H2 previous-token"
        self.layout_written = False  # by this process: an earlier event file may be lost

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"announced": "\n".join(sorted(self.announced))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.announced = set(state["announced"].splitlines())

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            last_step(trainer), data_of(trainer)  # fail in another Trainer
            plan = pl_module.heads
            plan.every, plan.windows = self.every_steps, self.windows
            plan.thresholds, plan.own = self.thresholds, self.own

    def log_heads(self, trainer: Trainer, pl_module: LanguageModel, *, at_stop: bool) -> None:
        step, plan = trainer.global_step, pl_module.heads
        logged = at_stop and step in plan.steps
        if logged or not trainer.loggers or not trainer.is_global_zero:
            return
        record = plan.record(pl_module)
        for line in self.new_names(record, step):
            pl_module.print(line)
        for writer in [] if self.layout_written else tensorboard_writers(trainer):
            writer.add_custom_scalars(layout(record))
            self.layout_written = True
        log_scalars(trainer, scalars(record), step)

    def new_names(self, record: HeadRecord, step: int) -> list[str]:
        """A line for each head that gets a name for the first time, if the name says much."""
        lines = []
        for head, kind in zip(record.heads, record.types, strict=True):
            named = f"{head} {kind.name}"
            if kind.name not in (GLOBAL, MIXED, NONE) and named not in self.announced:
                self.announced.add(named)
                score = f"{kind.label}, {kind.score:.2f}" if kind.offset else f"{kind.score:.2f}"
                article = "an" if kind.name[0] in "aeiou" else "a"
                lines.append(f"step {step:,}  {head} is now {article} {kind.name} head ({score})")
        return lines


def scalars(record: HeadRecord) -> dict[str, float]:
    """The scalars to log, by their tags."""
    values = {f"{SCALARS}/diversity": record.diversity}
    for metric, tags in charted(record).items():
        values |= zip(tags, record.metrics[metric].flatten().tolist(), strict=True)
    return values


def layout(record: HeadRecord) -> dict[str, dict[str, list]]:
    """The layout of the tab Custom Scalars: one category per metric, with one chart per layer."""
    layers, heads = record.metrics["previous"].shape
    charts: dict[str, dict[str, list]] = {}
    for metric, tags in charted(record).items():
        of_layers = [tags[layer * heads :][:heads] for layer in range(layers)]
        charts[metric] = {f"layer {n}": ["Multiline", each] for n, each in enumerate(of_layers)}
    return charts


def charted(record: HeadRecord) -> dict[str, list[str]]:
    """The tags of all heads, by metric. Short texts have no induction metrics."""
    shown = [*CHARTED, *record.descriptions]
    measured = [metric for metric in shown if metric in record.metrics]
    return {each: [f"{SCALARS}/{each}/{head}" for head in record.heads] for each in measured}
