"""Logs metrics of every attention head to TensorBoard during training.

Shapes: L layers, H heads per layer, N windows, T tokens.
"""

from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from headscope.analysis.diversity import diversity
from headscope.analysis.head_statistics import HeadStatistics, measure_heads
from headscope.analysis.head_types import Thresholds
from headscope.analysis.metrics import colour_ends
from headscope.analysis.pictures import figures_of_heads, similarity_matrix
from headscope.analysis.pictures.live import LivePicture
from headscope.analysis.tokens import TokenKinds
from headscope.nn import GPT
from headscope.training.callbacks.step_callback import HeadProbe, spread_steps
from headscope.training.callbacks.tensorboard_log import add_picture, add_scalars

REPEATED_TEXTS = 8
"""Number of random texts for the induction metrics. Each text contains a random passage twice."""

SIMILARITY = "cosine similarity of two heads"


class HeadFigures(HeadProbe):
    """Measures all heads before training, every `every_steps` steps, at the steps of
    `spread_steps`, and after the last step. Logs:

    - `heads/<metric>/<head>`, for example `heads/entropy/L0H0`: each metric of each head. The
      induction metrics are averaged over random texts that contain a passage twice. All other
      metrics are averaged over `windows` (N, T) of tokens. TensorBoard's tab Custom Scalars shows
      the heads of a layer in one chart.
    - `heads/diversity`: how different the heads are.
    - `heads/types`: a table with the type of each head.
    - `heads/figures` and `heads/similarity`: heatmaps of all metrics, and of the similarity of each
      pair of heads. These heatmaps are logged only at the steps of `spread_steps`.
    """

    def __init__(
        self,
        *,
        windows: Tensor,
        every_steps: int,
        images: int,
        max_steps: int,
        kinds: TokenKinds,
        thresholds: Thresholds,
    ) -> None:
        self.windows = windows
        self.kinds = kinds
        self.every_steps = every_steps
        self.picture_steps = set(spread_steps(images, max_steps))
        self.max_steps = max_steps
        self.thresholds = thresholds
        self.layout_written = False
        self.figures: LivePicture | None = None
        self.similarity: LivePicture | None = None

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"layout_written": self.layout_written}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.layout_written = state["layout_written"]

    def due(self, step: int) -> bool:
        return step % self.every_steps == 0 or step in self.picture_steps | {self.max_steps}

    def measure(self, model: GPT, step: int, writers: list[SummaryWriter]) -> None:
        statistics = measure_heads(
            model,
            self.windows,
            kinds=self.kinds,
            thresholds=self.thresholds,
            texts=REPEATED_TEXTS,
        )
        heads = statistics.figures["self"].size(1)
        values = {
            tag(figure, name): value
            for figure, numbers in statistics.figures.items()
            for name, value in zip(statistics.names, numbers.flatten().tolist(), strict=True)
        }
        values["heads/diversity"] = float(diversity(statistics.similarity))
        for writer in writers:
            if not self.layout_written:
                writer.add_custom_scalars(layout(statistics))
            add_scalars(writer, values, step)
            writer.add_text("heads/types", type_table(statistics.types, heads), step)
            if step in self.picture_steps:
                for name, picture in self._pictures(statistics, step).items():
                    add_picture(writer, name, picture, step)
        self.layout_written = True

    def _pictures(self, statistics: HeadStatistics, step: int) -> dict[str, Image.Image]:
        """The heatmap of the metrics and the heatmap of the similarities, in a dictionary whose
        keys are the TensorBoard tags."""
        ends = {name: colour_ends(name, statistics.tokens) for name in statistics.figures}
        # Each metric is rescaled to [0, 1], so that all metrics share one colour scale.
        rescaled = torch.stack(
            [
                (statistics.figures[name].flatten() - low) / (high - low)
                for name, (low, high) in ends.items()
            ]
        )
        names, similarity = statistics.names, statistics.similarity
        if self.figures is None or self.similarity is None:
            rows = [f"{name}  ({low:.3g} to {high:.3g})" for name, (low, high) in ends.items()]
            self.figures = LivePicture(figures_of_heads(rescaled, rows, names, title="Step"))
            # The values are clamped, because the first picture sets the colour scale of all later
            # pictures.
            matrix = similarity_matrix(
                similarity.clamp(0, 1), names, title="Step", label=SIMILARITY
            )
            self.similarity = LivePicture(matrix)
        return {
            "heads/figures": self.figures.draw([rescaled], f"Metrics of all heads, step {step:,}"),
            "heads/similarity": self.similarity.draw([similarity], f"Step {step:,}"),
        }


def tag(figure: str, name: str) -> str:
    return f"heads/{figure}/{name}"


def layout(statistics: HeadStatistics) -> dict[str, dict[str, list]]:
    """The layout of TensorBoard's tab Custom Scalars: one category per metric, with one chart per
    layer."""
    layers, heads = statistics.figures["self"].shape
    return {
        figure: {
            f"layer {layer}": [
                "Multiline",
                [tag(figure, name) for name in statistics.names[layer * heads :][:heads]],
            ]
            for layer in range(layers)
        }
        for figure in statistics.figures
    }


def type_table(types: list[str], heads: int) -> str:
    """The types of all heads as a Markdown table with one row per layer."""
    header = ["layer", *(f"head {head}" for head in range(heads))]
    rows = [
        [str(layer), *types[start : start + heads]]
        for layer, start in enumerate(range(0, len(types), heads))
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))
