"""Measures and names the attention heads during training.

Shapes: L layers, H heads per layer, N windows, T tokens.
"""

from itertools import chain
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor

from headscope.analysis.diversity import diversity
from headscope.analysis.head_statistics import HeadStatistics, measure_heads, repeat_probe
from headscope.analysis.head_types import GLOBAL, MIXED, NONE, Thresholds
from headscope.analysis.own_metrics import HeadMetric, own_metrics
from headscope.analysis.repeats import RepeatProbe
from headscope.analysis.tokens import TokenKinds, classify_vocabulary
from headscope.config.parse import Count, Positive
from headscope.config.parts import Part
from headscope.data.store import TokenStore
from headscope.data.windows import spread_windows
from headscope.nn import GPT
from headscope.nn.capture import evaluating
from headscope.training.callbacks.steps import StepCallback, data_of, last_step
from headscope.training.loggers import log_scalars, tensorboard_writers
from headscope.training.module import LanguageModel

TOKENS = 256  # fewer than at the end of the run, because heads are measured at many steps
REPEATED_TEXTS = 4  # random texts for the induction metrics, each with a passage twice

CHARTED = ("previous", "first", "induction", "entropy_share")
"""The metrics that are logged as scalars for each head. The tab Attention has all metrics."""

SCALARS = "watch"  # the group of these scalars, in TensorBoard after `train` and `val`


class HeadWatch(StepCallback):
    """Measures all heads at the steps of `AttentionLog` and at the last step. Where these steps are
    more than `every_steps` apart, it also measures every `every_steps` steps (0: never).

    `metrics` are metrics of the user by name, functions of weights and tokens (see `HeadMetric`).

    Logs `watch/<metric>/<head>`, for example `watch/previous/L0H1`, for the metrics in CHARTED and
    those of the user, and `watch/diversity`. TensorBoard's tab Custom Scalars shows the heads of a
    layer in one chart. Prints a line when a head gets a name, which `thresholds` decide.

    The induction metrics are means over random texts that contain a passage twice, all others over
    `windows` windows of the validation split: by default as many as have TOKENS tokens, and at
    least four. Training uses fused attention, which returns no attention weights, so additional
    forward passes compute them.
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
        self.others: list[StepCallback] = []
        self.last = 0
        self.texts: Tensor | None = None  # (N, T)
        self.kinds: TokenKinds | None = None
        self.repeats: RepeatProbe | None = None
        self.uniform: dict[str, float] | None = None  # the texts are the same at all steps
        self.latest: tuple[int, HeadStatistics] | None = None  # of the last measurement
        self.names: list[str] = []
        self.renamed = False  # whether the last measurement changed `names`
        self.announced: set[str] = set()  # heads with names, such as "L0H2 previous-token"
        self.layout_written = False  # by this process: an earlier event file may be lost

    def state_dict(self) -> dict[str, Any]:
        names = {"names": " ".join(self.names), "announced": "\n".join(sorted(self.announced))}
        return super().state_dict() | names

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.names = state["names"].split()
        self.announced = set(state["announced"].splitlines())

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.last = last_step(trainer)
            self.others = [each for each in trainer.callbacks if isinstance(each, StepCallback)]
            self.read(data_of(trainer).store, pl_module.model.block_size)

    def read(self, store: TokenStore, length: int) -> None:
        """Reads the texts on which the heads are measured."""
        windows = self.windows or max(4, TOKENS // length)
        self.texts = spread_windows(store.validation, windows=windows, length=length)
        self.kinds = classify_vocabulary(store.tokenizer, store.validation)

    def due(self, step: int) -> bool:
        planned = {*chain.from_iterable(each.planned for each in self.others)}
        if planned or self.every_steps:
            planned.add(self.last)
        if step in planned or not self.every_steps or step % self.every_steps:
            return step in planned
        return not any(step - self.every_steps < other < step for other in planned)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        step = trainer.global_step
        if step < self.last and step != self.ended and not self.due(step):  # stopped early
            self.last = self.ended = step
            self.call(trainer, pl_module)

    def on_due_step(self, trainer: Trainer, pl_module: LanguageModel) -> None:
        if not trainer.loggers or not trainer.is_global_zero:
            return
        step = trainer.global_step
        statistics = self.measure(pl_module.model, step)
        for line in self.new_names(statistics, step):
            pl_module.print(line)
        for writer in [] if self.layout_written else tensorboard_writers(trainer):
            writer.add_custom_scalars(layout(statistics))
            self.layout_written = True
        log_scalars(trainer, scalars(statistics), step)

    def measure(self, model: GPT, step: int) -> HeadStatistics:
        """The metrics and names of the heads of `model` after `step` steps."""
        if self.latest and self.latest[0] == step:
            return self.latest[1]
        assert self.texts is not None
        with evaluating(model):
            if self.repeats is None:
                self.repeats = repeat_probe(model, self.kinds, REPEATED_TEXTS)
            statistics = measure_heads(
                model,
                self.texts,
                source="the validation split",
                kinds=self.kinds,
                thresholds=self.thresholds,
                repeats=self.repeats,
                uniform_metrics=self.uniform,
                own=self.own,
            )
        self.uniform = statistics.uniform
        names = [head_type.name for head_type in statistics.types]
        self.renamed, self.names = names != self.names, names
        self.latest = step, statistics
        return statistics

    def new_names(self, statistics: HeadStatistics, step: int) -> list[str]:
        """A line for each head that gets a name for the first time, if the name says much."""
        lines = []
        for head, kind in zip(statistics.heads, statistics.types, strict=True):
            named = f"{head} {kind.name}"
            if kind.name not in (GLOBAL, MIXED, NONE) and named not in self.announced:
                self.announced.add(named)
                score = f"{kind.label}, {kind.score:.2f}" if kind.offset else f"{kind.score:.2f}"
                article = "an" if kind.name[0] in "aeiou" else "a"
                lines.append(f"step {step:,}  {head} is now {article} {kind.name} head ({score})")
        return lines


def scalars(statistics: HeadStatistics) -> dict[str, float]:
    """The scalars to log, by their tags."""
    values = {f"{SCALARS}/diversity": float(diversity(statistics.similarity))}
    for metric, tags in charted(statistics).items():
        values |= zip(tags, statistics.metrics[metric].flatten().tolist(), strict=True)
    return values


def layout(statistics: HeadStatistics) -> dict[str, dict[str, list]]:
    """The layout of the tab Custom Scalars: one category per metric, with one chart per layer."""
    layers, heads = statistics.metrics["previous"].shape
    charts: dict[str, dict[str, list]] = {}
    for metric, tags in charted(statistics).items():
        of_layers = [tags[layer * heads :][:heads] for layer in range(layers)]
        charts[metric] = {f"layer {n}": ["Multiline", each] for n, each in enumerate(of_layers)}
    return charts


def charted(statistics: HeadStatistics) -> dict[str, list[str]]:
    """The tags of all heads, by metric. Short texts have no induction metrics."""
    shown = [*CHARTED, *statistics.descriptions]
    measured = [metric for metric in shown if metric in statistics.metrics]
    return {each: [f"{SCALARS}/{each}/{head}" for head in statistics.heads] for each in measured}
