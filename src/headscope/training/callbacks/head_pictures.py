"""Draws the attention of all heads as images for TensorBoard.

Shapes: L layers, H heads per layer, T tokens.
"""

from PIL import Image
from torch import Tensor

from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.pictures import attention_maps
from headscope.analysis.pictures.live import LivePicture

TOKENS = 32
"""An image shows at most this many tokens, so that every token can be read."""

TITLE_CHARACTERS = 40
"""A title has at most this many characters of the text."""


class HeadPictures:
    """Images of the heads of one run, on a text whose tokens have `labels`."""

    def __init__(self, *, run: str, labels: list[str]) -> None:
        self.run = run
        self.labels = labels[:TOKENS]
        self.text = "".join(self.labels).replace("·", " ")[:TITLE_CHARACTERS]
        self.maps: LivePicture | None = None

    def draw(
        self, weights: Tensor, statistics: HeadStatistics, step: int
    ) -> dict[str, Image.Image]:
        """The attention maps of weights (L, H, T, T) after `step` steps: an image for each layer,
        by its TensorBoard tag `attention/layer_0`, `attention/layer_1`, and so on."""
        shown = weights[..., : len(self.labels), : len(self.labels)]
        if self.maps is None:
            self.maps = LivePicture(attention_maps(shown[0], self.labels, title="Layer"))
        images, heads = {}, shown.size(1)
        for layer, maps in enumerate(shown):
            types = statistics.types[layer * heads :][:heads]
            names = [
                f"L{layer}H{head} {each.name} {each.score:.2f}" for head, each in enumerate(types)
            ]
            images[f"attention/layer_{layer}"] = self.maps.draw(
                list(maps), f"{self.run}, step {step:,}, layer {layer}: {self.text}…", names
            )
        return images
