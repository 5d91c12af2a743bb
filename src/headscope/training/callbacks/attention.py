"""Logs the attention of all heads on one text during training.

Shapes: L layers, H heads per layer, T tokens.
"""

from typing import Annotated, Any

import torch
from lightning.pytorch import Trainer

from headscope.analysis.activations import Activations, predict
from headscope.analysis.head_images import DESCRIPTION, head_image, image_tag
from headscope.analysis.headers import MAX_STEPS, SNAPSHOTS
from headscope.analysis.record import HeadRecord
from headscope.analysis.snapshot import snapshot, tokens_within
from headscope.config.parse import Count, NonNegative
from headscope.data.windows import first_passage
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.capture import evaluating
from headscope.training.callbacks.hold import Hold
from headscope.training.callbacks.steps import (
    MEGABYTE,
    StepCallback,
    data_of,
    evenly_chosen,
    last_step,
    snapshot_steps,
)
from headscope.training.loggers import add_image, add_snapshot, tensorboard_writers
from headscope.training.module import LanguageModel


class AttentionLog(StepCallback):
    """Logs to TensorBoard:

    - a snapshot for the tab Attention, at `steps` steps and when the name of a head has changed. A
      snapshot has at most `step_megabytes`, all have at most `run_megabytes`;
    - an image of each layer, with the attention maps of all its heads, at `images` of these steps.

    The attention is that on the beginning of `text`, by default the text that the data module
    names, or the validation split. When training stops early, both are logged once more.
    """

    def __init__(
        self,
        *,
        text: str | None = None,
        steps: Annotated[int, 0, MAX_STEPS // 2] = 32,  # steps with changed names are added
        images: Count = 8,
        step_megabytes: NonNegative = 4.0,
        run_megabytes: NonNegative = 200.0,
    ) -> None:
        self.text, self.steps, self.images = text, steps, images
        self.step_bytes = int(step_megabytes * MEGABYTE)
        self.run_bytes = int(run_megabytes * MEGABYTE)
        self.snapshot_steps: set[int] = set()
        self.image_steps: set[int] = set()
        self.logged_bytes = 0
        self.names: list[str] = []  # at the last step
        self.holds: list[Hold] = []

    def state_dict(self) -> dict[str, Any]:
        own = {"logged_bytes": self.logged_bytes, "names": " ".join(self.names)}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.logged_bytes = int(state["logged_bytes"])
        self.names = state["names"].split()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit" or not (self.steps or self.images):
            return
        last, model, data = last_step(trainer), pl_module.model, data_of(trainer)
        self.snapshot_steps = {*snapshot_steps(self.steps, last)}
        chosen = snapshot_steps(max(self.steps, self.images), last)
        self.image_steps = {*evenly_chosen(chosen, self.images)}
        pl_module.heads.shown = self.snapshot_steps | self.image_steps
        self.tokenizer = data.store.tokenizer
        text = data.probe_text if self.text is None else self.text
        passage = first_passage(data.store.validation, model.block_size)
        tokens = passage if text is None else self.tokenizer.encode_prompt(text)
        if not tokens:
            raise UserError("callbacks.attention.text= is empty: give a text, or null for its own")
        self.tokens, self.text_tokens = tokens[: model.block_size], len(tokens)
        if self.steps:
            self.vocabulary = self.tokenizer.vocabulary_labels()
            self.shorten_text(model)
        self.labels = self.tokenizer.labels(self.tokens)
        self.holds = [each for each in trainer.callbacks if isinstance(each, Hold)]

    def shorten_text(self, model: GPT) -> None:
        """Shortens the text, so that the snapshots keep to the limits of their size."""
        limit = min(self.step_bytes, self.run_bytes // len(self.snapshot_steps))
        layers, heads = len(model.attentions), model.attentions[0].heads
        sizes = {"layers": layers, "heads": heads, "tokens": len(self.tokens)}
        kept = tokens_within(limit, vocabulary=self.vocabulary, **sizes)
        if not kept:
            limits = "callbacks.attention.step_megabytes= and callbacks.attention.run_megabytes="
            raise UserError(f"{limits} are too small for one token: raise them")
        self.tokens = self.tokens[:kept]

    def log_heads(self, trainer: Trainer, pl_module: LanguageModel, *, at_stop: bool) -> None:
        if not (writers := tensorboard_writers(trainer)):
            return
        step, record = trainer.global_step, pl_module.heads.record(pl_module)
        names = [head_type.name for head_type in record.types]
        renamed, self.names = names != self.names, names
        planned, with_image = (
            bool(steps) and (step in steps) != at_stop
            for steps in (self.snapshot_steps, self.image_steps)
        )
        with_snapshot = planned or (self.snapshot_steps and renamed)
        if not with_snapshot and not with_image:
            return
        with evaluating(pl_module.model):  # once for both
            reading = Activations(pl_module.model, self.tokens, self.tokenizer, step=step)
            reading.labels = self.labels  # so that they are not computed again
            if with_snapshot:
                self.log_snapshot(step, reading, record, writers, planned=planned)
            if with_image:
                weights = reading.attention.float().cpu()  # (L, H, T, T)
                for layer, maps in enumerate(weights):
                    tag, image = image_tag(layer, weights.size(1)), head_image(maps)
                    for writer in writers:
                        add_image(writer, tag, image, step, DESCRIPTION)

    def log_snapshot(
        self,
        step: int,
        reading: Activations,
        record: HeadRecord,
        writers: list[Any],
        *,
        planned: bool,
    ) -> None:
        """Logs a snapshot. One that is not planned must leave room for all that are."""
        predictions = predict(reading, reading.targets())
        following = torch.from_numpy(predictions.target_probabilities[-1, :-1])
        reading.known_losses = -following.log().to(reading.model.device)
        header = {**reading.header(), **record.header(), "text_tokens": self.text_tokens}
        for each in self.holds:
            for layer, head in each.chosen if each.holds(max(0, step - 1)) else ():
                header["held"][layer * len(reading.attention[0]) + head] = 1
        label_of = self.vocabulary.__getitem__
        blobs = snapshot(header, reading.weights(), predictions, label_of).blobs()
        size = sum(map(len, blobs))
        later = sum(each > step for each in self.snapshot_steps)
        if planned or self.logged_bytes + size * (1 + later) <= self.run_bytes:
            self.logged_bytes += size
            self.snapshot_steps.add(step)
            for writer in writers:
                add_snapshot(writer, SNAPSHOTS, blobs, step)
