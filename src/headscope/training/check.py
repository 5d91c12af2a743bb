"""Checks the settings of a training run before data is read or a model is built."""

from dataclasses import replace
from typing import Any

import torch

from headscope import checkpoint
from headscope.checkpoint.building import check_limits
from headscope.config.parse import short
from headscope.config.training import PRECISIONS, MuonConfig, TrainConfig
from headscope.errors import UserError
from headscope.generation import check_sampling
from headscope.viewer import MAX_STEPS

ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
FINAL_VALIDATIONS = ("whole", "part")
STRATEGIES = ("auto", "ddp", "fsdp")
MAX_SAMPLE_TOKENS = 100_000

AT_LEAST = {
    0: (
        *("seed", "optimizer.lr", "optimizer.matrix_lr", "optimizer.weight_decay"),
        *("schedule.warmup_steps", "schedule.final_fraction", "trainer.gradient_clip"),
        *("callbacks.attention.images", "callbacks.attention.steps", "callbacks.heads.every_steps"),
        *("callbacks.attention.step_megabytes", "callbacks.attention.run_megabytes"),
        "callbacks.save_every_minutes",
    ),
    1: (
        *("trainer.max_steps", "trainer.batch_size", "trainer.val_batch_size"),
        *("trainer.val_every_steps", "trainer.log_every_steps", "callbacks.heads.windows"),
        "callbacks.early_stopping_patience",
    ),
}
"""The keys of numbers, by the smallest value that they may have."""


def check(config: TrainConfig, processes: int = 1) -> None:
    """Raises UserError if a setting is out of range, or if the model's sizes do not fit together.
    `processes` is the number of processes that train together."""
    check_settings(config, processes)
    check_limits(config.model)
    with torch.device("meta"):  # one block shows it, without memory for its weights
        one_block = replace(config.model, layers=min(config.model.layers, 1))
        checkpoint.build_model(one_block, vocab_size=1)


def check_settings(config: TrainConfig, processes: int = 1) -> None:
    """Raises UserError if a setting outside of `model` is out of range."""
    settings, callbacks = config.trainer, config.callbacks
    for key, minimum in ((key, least) for least, keys in AT_LEAST.items() for key in keys):
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name, None)  # some choices do not have this key
        if value is not None and not value >= minimum:
            raise UserError(f"{key}={value} must be at least {minimum}")
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
    if config.seed >= 2**63:
        raise UserError(f"seed={config.seed} must be below 2**63")
    for step in callbacks.keep_steps:
        if not isinstance(step, int) or not 0 <= step <= settings.max_steps:
            raise UserError(
                f"callbacks.keep_steps={callbacks.keep_steps}: {step} must be an integer from 0 to "
                f"trainer.max_steps={settings.max_steps}"
            )
    if settings.batch_size % processes:
        below = settings.batch_size // processes * processes
        fitting = " or ".join(str(size) for size in (below, below + processes) if size)
        raise UserError(
            f"trainer.batch_size={settings.batch_size} must be a multiple of the number of devices "
            f"({processes}): for example {fitting}"
        )
    if processes > 1 and settings.strategy == "fsdp" and isinstance(config.optimizer, MuonConfig):
        raise UserError(
            "trainer.strategy=fsdp optimizer=muon: Muon needs whole matrices, but with fsdp every "
            "device keeps a part of each: use optimizer=adamw or trainer.strategy=ddp"
        )
    check_choices(config)
    check_sampling(
        max_new_tokens=callbacks.samples.max_new_tokens,
        temperature=callbacks.samples.temperature,
        top_k=callbacks.samples.top_k,
        top_p=None,
    )


def check_choices(config: TrainConfig) -> None:
    """Raises UserError if a setting of `trainer` is not one of the allowed values."""
    settings = config.trainer
    for key, choices in (
        ("accelerator", ACCELERATORS),
        ("precision", ("auto", *PRECISIONS)),
        ("final_validation", FINAL_VALIDATIONS),
        ("strategy", STRATEGIES),
    ):
        value = getattr(settings, key)
        if value not in choices:
            raise UserError(f"trainer.{key}={value} must be one of {', '.join(choices)}")
    if settings.compile != "auto" and type(settings.compile) is not bool:
        raise UserError(f"trainer.compile={short(settings.compile)} must be auto, true or false")
    accumulate = settings.accumulate
    if accumulate != "auto" and (type(accumulate) is not int or accumulate < 1):
        raise UserError(f"trainer.accumulate={short(accumulate)} must be auto, or at least 1")
    tokens = settings.loss_chunk_tokens
    if tokens not in ("auto", None) and (type(tokens) is not int or tokens < 0):
        raise UserError(
            f"trainer.loss_chunk_tokens={short(tokens)} must be auto, null, or a number of tokens"
        )
