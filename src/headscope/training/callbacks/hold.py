"""Holds heads and feed-forward networks during a part of the training.

Shapes: N windows, T tokens, D head_dim, C embed_dim.
"""

import math
from itertools import groupby
from typing import Any, Literal

import torch
from lightning.pytorch import Callback
from torch import Tensor

from headscope.analysis.head_outputs import largest_batch, parse_head
from headscope.config.parse import Count
from headscope.data.windows import spread_windows
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.capture import capture
from headscope.nn.held import add_hold
from headscope.training.callbacks.steps import data_of


class Hold(Callback):
    """Holds `heads`, such as ["L0H0"], and the feed-forward networks of the layers `feed_forward`,
    such as [0], in all optimizer steps after step `from_step`, up to and including `until_step` (by
    default, to the end). This shows what the rest of the model learns if they write or learn
    nothing (Singh 2024: "clamping"). Raises UserError if a key does not fit the model or the run.

    - `by="zero"`: their output is zero.
    - `by="mean"`: their output is their mean output at `from_step`, over windows of the validation
      split with about 4,096 tokens.
    - `by="frozen"`: their output changes only if what they read does.

    With "mean" and "frozen", their own weights stay as they are at `from_step` (see `own_weights`).
    With "zero", these get a gradient of zero: only weight decay and momentum change them. The
    checkpoints contain what is held, so loaded models compute the same as in training.
    """

    def __init__(
        self,
        *,
        heads: tuple[str, ...] = (),
        feed_forward: tuple[Count, ...] = (),
        from_step: Count = 0,
        until_step: Count | None = None,
        by: Literal["zero", "mean", "frozen"] = "zero",
    ) -> None:
        if until_step is not None and until_step <= from_step:
            raise UserError(f"until_step={until_step} must be above {from_step=}, or null")
        if by not in ("zero", "mean", "frozen") or isinstance(heads, str):
            raise UserError(f'{by=}, {heads=}: give by="zero", and heads=["L0H0"]')
        self.heads, self.feed_forward, self.by = sorted({*heads}), sorted({*feed_forward}), by
        self.from_step, self.until_step = from_step, until_step or math.inf
        self.active = False
        self.means: dict[str, Tensor] = {}  # of each part, (D,) or (C,)
        self.frozen: list[tuple[Tensor, Tensor]] = []  # views of weights, and the values to keep

    @property
    def parts(self) -> list[str]:
        return [*self.heads, *(f"L{layer} feed-forward" for layer in self.feed_forward)]

    @property
    def state_key(self) -> str:  # a run may have several
        return f"Hold {', '.join(self.parts)} from step {self.from_step}"

    def state_dict(self) -> dict[str, Any]:
        return {"means": self.means} if self.means else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means = state["means"]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit" or not self.parts:
            return
        model, last = pl_module.model, trainer.max_steps
        try:
            self.chosen = [parse_head(name, model) for name in self.heads]
        except UserError as error:
            raise UserError(f"callbacks.hold.heads: {error}") from None
        for each in trainer.callbacks:
            both = {*self.parts} & {*each.parts} if isinstance(each, Hold) else {}
            if both and each is not self:
                raise UserError(f"callbacks.hold: two holds have {', '.join(both)}: name it in one")
        for layer in self.feed_forward:
            if not 0 <= layer < len(model.blocks) or model.blocks[layer].feed_forward is None:
                problem = f"callbacks.hold.feed_forward: layer {layer} has no network"
                raise UserError(f"{problem}: name others")
        if self.from_step >= last > 0 and not trainer.fast_dev_run:
            key = f"callbacks.hold.from_step={self.from_step}"
            raise UserError(f"{key} must be below max_steps={last}: lower it")
        if self.by != "zero":
            self.own_weights(model)  # raises UserError if they are unknown
        if self.by == "mean":
            data_of(trainer)  # raises UserError if there is none
        if self.by != "frozen":
            self.outputs(model)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.active = False
        if self.by != "zero":
            # Weight decay and momentum need no gradient, and with "mean", `out_proj` has one.
            trainer.optimizers[0].register_step_post_hook(lambda *_: self.write_back())

    def holds(self, step: int) -> bool:
        """Whether the parts are held in the optimizer step after `step`."""
        return bool(self.parts) and self.from_step <= step < self.until_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        step = trainer.global_step
        if pl_module.clear_held_at_first_batch():
            # In a resumed run, all hold what they held before.
            for each in trainer.callbacks:
                if isinstance(each, Hold):
                    each.change(each.holds(step - 1), trainer, pl_module)
        self.change(self.holds(step), trainer, pl_module)

    def change(self, active: bool, trainer: Any, pl_module: Any) -> None:
        """Begins or ends to hold the parts."""
        if active == self.active:
            return
        self.active = active
        model, step = pl_module.model, trainer.global_step
        says = f"held ({self.by})" if active else "no longer held"
        pl_module.print(f"step {step:,}  {', '.join(self.parts)}: {says}")
        views = self.own_weights(model) if active and self.by != "zero" else []
        self.frozen = [(view, view.detach().clone()) for view in views]
        if self.by == "frozen":
            return
        if self.by == "mean" and active and not self.means:
            with pl_module.timer.paused():
                means = self.mean_outputs(model, data_of(trainer).store.validation)
            self.means = trainer.strategy.broadcast(means)  # the same in all processes
        for part, (held, where) in zip(self.parts, self.outputs(model), strict=True):
            mean = self.means[part].to(held.values) if active and self.by == "mean" else 0
            held.mask[where], held.values[where] = float(active), mean

    def outputs(self, model: GPT) -> list[tuple[Any, slice]]:
        """For each part, what holds its output, and where in it."""
        places = []
        for layer, head in self.chosen:
            width = model.attentions[layer].head_dim
            own = slice(head * width, (head + 1) * width)
            places.append((add_hold(model, layer, "attention.out_proj"), own))
        networks = [add_hold(model, layer, "feed_forward") for layer in self.feed_forward]
        return places + [(held, slice(None)) for held in networks]

    def mean_outputs(self, model: GPT, validation: Any) -> dict[str, Tensor]:
        """The mean output of each part over all tokens of windows (N, T) of the validation split:
        (D,) for a head, (C,) for a network."""
        windows = spread_windows(validation, length=model.block_size)
        sums: dict[str, Any] = dict.fromkeys(self.parts, 0)
        for batch in windows.split(largest_batch(model, windows.size(1))):
            captured = capture(model, batch.to(model.device))
            outputs = [captured.outputs[layer][:, :, head] for layer, head in self.chosen]
            outputs += [captured.fed[layer] for layer in self.feed_forward]
            for part, of_part in zip(self.parts, outputs, strict=True):
                sums[part] += of_part.float().sum(dim=(0, 1))
        return {part: total / windows.numel() for part, total in sums.items()}

    def own_weights(self, model: GPT) -> list[Tensor]:
        """Views of the weights that nothing else uses: of a feed-forward network all, of heads
        those that `MultiHeadAttention.own_weights` returns."""
        views = [
            w for layer in self.feed_forward for w in model.blocks[layer].feed_forward.parameters()
        ]
        for layer, heads in groupby(self.chosen, key=lambda each: each[0]):
            views += model.attentions[layer].own_weights([head for _, head in heads])
        return views

    @torch.no_grad()
    def write_back(self) -> None:
        for view, kept in self.frozen:
            view.copy_(kept)
