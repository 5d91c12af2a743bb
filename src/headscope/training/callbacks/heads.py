"""What every head does, in numbers, in TensorBoard while it trains.

Shapes: L layers, H heads, N windows, T tokens.
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
from headscope.training.callbacks.watching import HeadProbe, spread_steps
from headscope.training.callbacks.writers import add_picture, add_scalars

REPEATED_TEXTS = 8
SIMILARITY = "cosine similarity of two heads"


class HeadFigures(HeadProbe):
    """Logs every `every_steps`, the untrained model first:

    - `heads/<figure>/L0H0`, ..., of every head each figure of `headscope.analysis`, means over
      `windows` (N, T) of tokens and, of induction, over repeated random texts. TensorBoard's tab
      Custom Scalars shows the heads of a layer in one chart;
    - `heads/diversity`, and `heads/types`: what each head is called;

    and at the steps of `spread_steps`, as heatmaps, the figures of all heads, and how alike any two
    heads are.
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
        self.arranged = False
        self.figures: LivePicture | None = None
        self.similarity: LivePicture | None = None

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"arranged": self.arranged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.arranged = state.get("arranged", False)

    def due(self, step: int) -> bool:
        return step % self.every_steps == 0 or step in self.picture_steps | {self.max_steps}

    def look(self, model: GPT, step: int, writers: list[SummaryWriter]) -> None:
        study = measure_heads(
            model,
            self.windows,
            kinds=self.kinds,
            thresholds=self.thresholds,
            texts=REPEATED_TEXTS,
        )
        heads = study.figures["self"].size(1)
        values = {
            tag(figure, name): value
            for figure, numbers in study.figures.items()
            for name, value in zip(study.names, numbers.flatten().tolist(), strict=True)
        }
        values["heads/diversity"] = float(diversity(study.similarity))
        for writer in writers:
            if not self.arranged:
                writer.add_custom_scalars(layout(study))
            add_scalars(writer, values, step)
            writer.add_text("heads/types", table(study.types, heads), step)
            if step in self.picture_steps:
                for name, picture in self._pictures(study, step).items():
                    add_picture(writer, name, picture, step)
        self.arranged = True

    def _pictures(self, study: HeadStatistics, step: int) -> dict[str, Image.Image]:
        """Heatmaps of the figures and of the similarities, by their tags."""
        ends = {name: colour_ends(name, study.tokens) for name in study.figures}
        shares = torch.stack(
            [
                (study.figures[name].flatten() - low) / (high - low)
                for name, (low, high) in ends.items()
            ]
        )
        if self.figures is None or self.similarity is None:
            rows = [f"{name}  ({low:.3g} to {high:.3g})" for name, (low, high) in ends.items()]
            drawn = figures_of_heads(shares, rows, study.names, title="Step")
            self.figures = LivePicture(drawn)
            alike = study.similarity.clamp(0, 1)  # as the scale of all steps
            drawn = similarity_matrix(alike, study.names, title="Step", label=SIMILARITY)
            self.similarity = LivePicture(drawn)
        return {
            "heads/figures": self.figures.draw([shares], f"What every head does, step {step:,}"),
            "heads/similarity": self.similarity.draw([study.similarity], f"Step {step:,}"),
        }


def tag(figure: str, name: str) -> str:
    return f"heads/{figure}/{name}"


def layout(study: HeadStatistics) -> dict[str, dict[str, list]]:
    """Of TensorBoard's custom scalars: a category for each figure, in it a chart for each layer."""
    layers, heads = study.figures["self"].shape
    return {
        figure: {
            f"layer {layer}": [
                "Multiline",
                [tag(figure, name) for name in study.names[layer * heads :][:heads]],
            ]
            for layer in range(layers)
        }
        for figure in study.figures
    }


def table(names: list[str], heads: int) -> str:
    """What each head is called, as Markdown: a row for each layer."""
    header = ["layer", *(f"head {head}" for head in range(heads))]
    rows = [
        [str(layer), *names[start : start + heads]]
        for layer, start in enumerate(range(0, len(names), heads))
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))
