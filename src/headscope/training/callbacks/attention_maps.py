"""Logs attention maps of one fixed text to TensorBoard during training, one image per layer."""

import torch
from torch.utils.tensorboard import SummaryWriter

from headscope.analysis.pictures import attention_maps
from headscope.analysis.pictures.live import LivePicture
from headscope.nn import GPT
from headscope.nn.capture import attention_weights
from headscope.training.callbacks.step_callback import HeadProbe, spread_steps
from headscope.training.callbacks.tensorboard_log import add_picture


class AttentionMaps(HeadProbe):
    """Logs the attention weights of every head on `tokens` (T,), at the steps of `spread_steps`.
    There is one image per layer: `attention/layer_0`, `attention/layer_1`, and so on.

    `labels` are the tokens as text. Training itself uses fused attention, which does not return
    attention weights. So an additional forward pass with explicit attention computes the attention
    weights.
    """

    def __init__(
        self, *, tokens: list[int], labels: list[str], heads: int, images: int, max_steps: int
    ) -> None:
        self.tokens = tokens
        self.steps = set(spread_steps(images, max_steps))
        self.labels = labels
        self.heads = heads
        self.picture: LivePicture | None = None

    def due(self, step: int) -> bool:
        return step in self.steps

    def measure(self, model: GPT, step: int, writers: list[SummaryWriter]) -> None:
        tokens = torch.tensor([self.tokens], device=model.device)
        maps = attention_weights(model, tokens)[:, 0]  # (L, H, T, T)
        if self.picture is None:
            self.picture = LivePicture(attention_maps(maps[0], self.labels, title="Layer"))
        for layer, weights in enumerate(maps):
            image = self.picture.draw(list(weights), f"Layer {layer}, step {step:,}")
            for writer in writers:
                add_picture(writer, f"attention/layer_{layer}", image, step)
