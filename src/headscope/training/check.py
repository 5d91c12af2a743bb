"""Settings that no run can have, told before anything is read or made."""

import torch

from headscope import checkpoint
from headscope.config.parse import short
from headscope.config.training import PRECISIONS, TrainConfig, TrainerConfig
from headscope.errors import UserError
from headscope.generation import check_sampling

ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
LONGEST_SAMPLE = 100_000


def check(config: TrainConfig) -> None:
    """Raises UserError when a setting is out of range, or the model's sizes do not fit."""
    plan, callbacks = config.trainer, config.callbacks
    at_least = {
        "trainer.max_steps": (plan.max_steps, 1),
        "trainer.batch_size": (plan.batch_size, 1),
        "trainer.accumulate": (plan.accumulate, 1),
        "trainer.val_every_steps": (plan.val_every_steps, 1),
        "trainer.val_batch_size": (plan.val_batch_size, 1),
        "trainer.log_every_steps": (plan.log_every_steps, 1),
        "trainer.gradient_clip": (plan.gradient_clip, 0),
        "optimizer.lr": (config.optimizer.lr, 0),
        "callbacks.attention.images": (callbacks.attention.images, 0),
        "callbacks.attention.tokens": (callbacks.attention.tokens, 1),
        "callbacks.heads.every_steps": (callbacks.heads.every_steps, 0),
        "callbacks.heads.images": (callbacks.heads.images, 0),
        "callbacks.heads.windows": (callbacks.heads.windows, 1),
        "callbacks.save_every_minutes": (callbacks.save_every_minutes, 0),
        "seed": (config.seed, 0),
    }
    for key in (
        "optimizer.weight_decay",
        "optimizer.matrix_lr",
        "schedule.warmup_steps",
        "schedule.final_fraction",
    ):
        group, _, name = key.partition(".")
        value = getattr(getattr(config, group), name, None)  # not every choice has it
        if value is not None:
            at_least[key] = (value, 0)
    if callbacks.early_stopping_patience is not None:
        patience = callbacks.early_stopping_patience
        at_least["callbacks.early_stopping_patience"] = (patience, 1)
    for key, (value, least) in at_least.items():
        if not value >= least:
            raise UserError(f"{key}={value} must be at least {least}")
    if callbacks.samples.max_new_tokens > LONGEST_SAMPLE:
        raise UserError(
            f"callbacks.samples.max_new_tokens={callbacks.samples.max_new_tokens} must be at most "
            f"{LONGEST_SAMPLE:,}: a sample is drawn at every validation"
        )
    if config.seed >= 2**63:
        raise UserError(f"seed={config.seed} must be below 2**63")
    for step in callbacks.keep_steps:
        if not isinstance(step, int) or not 0 <= step <= plan.max_steps:
            raise UserError(
                f"callbacks.keep_steps={callbacks.keep_steps}: {step} is no step from 0 to "
                f"trainer.max_steps={plan.max_steps}"
            )
    check_choices(config)
    check_sampling(
        max_new_tokens=callbacks.samples.max_new_tokens,
        temperature=callbacks.samples.temperature,
        top_k=callbacks.samples.top_k,
        top_p=None,
    )
    checkpoint.check_model(config.model, vocab_size=1)


def check_choices(config: TrainConfig) -> None:
    """The same for settings that are words."""
    plan = config.trainer
    if plan.accelerator not in ACCELERATORS:
        raise UserError(
            f"trainer.accelerator={plan.accelerator} must be one of {', '.join(ACCELERATORS)}"
        )
    precisions = ("auto", *PRECISIONS)
    if plan.precision not in precisions:
        raise UserError(
            f"trainer.precision={plan.precision} must be one of {', '.join(precisions)}"
        )
    if plan.compile != "auto" and type(plan.compile) is not bool:
        raise UserError(f"trainer.compile={short(plan.compile)} must be auto, true or false")
    check_devices(plan)
    rows = plan.loss_chunk_tokens
    if rows not in ("auto", None) and (type(rows) is not int or rows < 0):
        raise UserError(
            f"trainer.loss_chunk_tokens={short(rows)} must be auto, null, or a number of tokens"
        )


def check_devices(plan: TrainerConfig) -> None:
    """Raises UserError when `trainer.devices` is not one device that this machine has."""
    devices = plan.devices
    if devices == "auto" or (type(devices) is int and devices == 1):
        return
    count = torch.cuda.device_count() if plan.accelerator != "cpu" else 0
    there = [[number] for number in range(count)]
    if devices not in there:
        more = f", or the number of a GPU in brackets: {' or '.join(map(str, there))}"
        raise UserError(
            f"trainer.devices={short(devices)}: headscope trains on one device; give auto or 1"
            f"{more if there else ''}"
        )
