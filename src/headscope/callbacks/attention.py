"""Attention maps in TensorBoard while it trains: one image per layer, of one fixed text."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from headscope.analysis.capture import attention_weights
from headscope.analysis.figures import AttentionGrid
from headscope.callbacks.clock import left_out
from headscope.callbacks.writers import tensorboard_writers
from headscope.nn import GPT


class AttentionMaps(Callback):
    """Logs `attention/layer_0`, ...: how every head reads `tokens` (T,), at the steps of
    `image_steps`, the untrained model first.

    The maps are computed aside, on the explicit path: training stays on the fused one. `labels`
    are the tokens as text.
    """

    def __init__(
        self, *, tokens: list[int], labels: list[str], heads: int, images: int, max_steps: int
    ) -> None:
        self.tokens = tokens
        self.steps = set(image_steps(images, max_steps))
        self.labels = labels
        self.heads = heads
        self.grid: AttentionGrid | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0 and 0 in self.steps:
            self._log(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if stepped and trainer.global_step in self.steps:
            self._log(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.steps and trainer.global_step < trainer.max_steps:  # it was stopped early
            self._log(trainer, pl_module)

    def _log(self, trainer: Trainer, pl_module: LightningModule) -> None:
        writers = tensorboard_writers(trainer)
        if not writers:
            return
        assert isinstance(pl_module.model, GPT)
        with left_out(trainer):
            self.grid = self.grid or AttentionGrid(self.labels, self.heads)
            tokens = torch.tensor([self.tokens], device=pl_module.device)
            maps = attention_weights(pl_module.model, tokens)[:, 0]  # (L, H, T, T)
            step = trainer.global_step
            for layer, weights in enumerate(maps):
                image = self.grid.draw(weights, f"Layer {layer}, step {step:,}")
                for writer in writers:
                    writer.add_image(f"attention/layer_{layer}", image, step, dataformats="HWC")


def image_steps(images: int, max_steps: int) -> list[int]:
    """At most `images` steps from 0 to `max_steps`, both included, spread evenly in log time.

    TensorBoard keeps ten images a tag unless told otherwise.
    """
    if images < 2:
        return [max_steps][:images]
    ratio = max_steps ** (1 / (images - 2)) if images > 2 else 1
    middle = {round(ratio**power) for power in range(images - 2)}
    return sorted({0, max_steps} | middle)
