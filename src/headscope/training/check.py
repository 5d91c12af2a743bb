"""Checks the settings of a training run before data is read or a model is built."""

import torch

from headscope import checkpoint
from headscope.checkpoint.building import check_limits
from headscope.config.parts import Part
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.viewer import MAX_STEPS

MAX_SAMPLE_TOKENS = 100_000


def check(config: TrainConfig, processes: int = 1) -> None:
    """Raises UserError if a setting is out of range, or if the model's sizes do not fit together.
    `processes` is the number of processes that train together."""
    settings, callbacks = config.trainer, config.callbacks
    if not settings.max_steps:  # an imported model has none
        raise UserError("trainer.max_steps=0 must be at least 1")
    if callbacks.attention.steps > MAX_STEPS // 2:
        raise UserError(
            f"callbacks.attention.steps={callbacks.attention.steps} must be at most "
            f"{MAX_STEPS // 2}: TensorBoard shows {MAX_STEPS:,} steps, and steps where the name of "
            "a head changes are added"
        )
    if callbacks.samples.max_new_tokens > MAX_SAMPLE_TOKENS:
        raise UserError(
            f"callbacks.samples.max_new_tokens={callbacks.samples.max_new_tokens} must be at most "
            f"{MAX_SAMPLE_TOKENS:,}: every validation generates a sample of this length"
        )
    if settings.batch_size % processes:
        below = settings.batch_size // processes * processes
        fitting = " or ".join(str(size) for size in (below, below + processes) if size)
        raise UserError(
            f"trainer.batch_size={settings.batch_size} must be a multiple of the number of devices "
            f"({processes}): for example {fitting}"
        )
    check_limits(config.model)
    with torch.device("meta"):  # one block shows it, without memory for its weights
        one_block = Part(config.model, layers=min(config.model.layers, 1))
        checkpoint.build_model(one_block, vocab_size=1)
