"""Estimates what a run needs on devices that need not be here."""

import math
from functools import partial
from typing import Any

import torch

from headscope.config.scripts import PlanConfig
from headscope.config.text import BpeConfig, ByteConfig, Gpt2Config, TokenizerConfig
from headscope.config.training import TrainConfig
from headscope.data.machine import available_memory
from headscope.errors import UserError
from headscope.training.build import precision_of
from headscope.training.capacity import Capacity, changed
from headscope.training.check import check_settings
from headscope.training.estimate import STRATEGIES, estimate
from headscope.training.flops import matrix_rate

BYTE_TOKENS, GPT2_TOKENS = 257, 50_257
"""The vocabularies of tokenizer=byte and tokenizer=gpt2."""


def plan(config: TrainConfig, planned: PlanConfig) -> dict[str, Any]:
    """What the run that `config` describes needs on the devices that `planned` describes:

    - `parameters`, and the training tokens: `tokens_per_step`, `steps`, `tokens`.
    - `batch_size` and `accumulate`, where `trainer.accumulate=auto` is replaced by a number.
    - `memory_gib`: the parts of the memory of one device, and `peaks_gib`: the memory at the times
      that decide the peak (`headscope.training.step_cost.StepCost`).
    - `peak_gib`, `available_gib` and `fits`.
    - `flops` of the whole run, `seconds_per_step` and `hours`.
    - `sent_gb_per_step`: what one device sends in an optimizer step.
    - `checkpoint_gb` and `text_gb`: the size on disk of a checkpoint and of the training tokens.

    Raises UserError if a value is out of range.
    """
    check_plan(planned)
    check_settings(config)
    if config.trainer.batch_size % planned.devices:
        raise UserError(
            f"trainer.batch_size={config.trainer.batch_size} must be a multiple of "
            f"estimate.devices={planned.devices}, which share every batch"
        )
    vocab_size = planned.vocab_size or vocab_size_of(config.tokenizer)
    gpu_memory = None if planned.gpu_gib is None else int(planned.gpu_gib * 2**30)
    precision = precision_of(config.trainer)
    if gpu_memory and config.trainer.precision == "auto":
        precision = "bf16-mixed"
    capacity = Capacity(
        available=gpu_memory or available_memory(),
        estimated=partial(
            estimate,
            vocab_size=vocab_size,
            precision=precision,
            gpu_memory=gpu_memory,
            devices=planned.devices,
            strategy=planned.strategy,
        ),
        devices=planned.devices,
    )
    if config.trainer.accumulate == "auto":
        config, needed = capacity.fewest_parts(changed(config, accumulate=1))
    else:
        needed = capacity.estimated(config)
    trainer, step = config.trainer, needed.step
    tokens_per_step = trainer.batch_size * trainer.accumulate * config.model.block_size
    steps = trainer.max_steps
    if planned.tokens is not None:
        steps = math.ceil(planned.tokens / tokens_per_step)
    rate = matrix_rate(torch.device("cpu")) if planned.tflops is None else 1e12 * planned.tflops
    seconds = needed.seconds(steps, rate=rate, devices=planned.devices, mfu=planned.mfu)
    sharded = planned.devices > 1 and planned.strategy == "fsdp"
    weights = step.shared_parameters + config.model.layers * step.block_parameters
    others = (planned.devices - 1) / planned.devices  # a device does not send its own part
    # FSDP gathers the weights twice for each batch, and reduces the gradients once. DDP reduces the
    # gradients once for each step, and sends the sums to all devices.
    sent = others * weights * (3 * trainer.accumulate if sharded else 2)
    state = step.optimizer * (planned.devices if sharded else 1)
    token_bytes = 2 if vocab_size <= 2**16 else 4
    parts = ("parameters", "gradients", "optimizer", "activations")
    return {
        "parameters": round(weights / (2 if precision == "bf16-true" else 4)),
        "precision": precision,
        "batch_size": trainer.batch_size,
        "accumulate": trainer.accumulate,
        "tokens_per_step": tokens_per_step,
        "steps": steps,
        "tokens": steps * tokens_per_step,
        "memory_gib": {part: gib(getattr(step, part)) for part in parts},
        "peaks_gib": {time: gib(size) for time, size in needed.peaks.items()},
        "peak_gib": gib(needed.peak),
        "available_gib": gib(capacity.available),
        "fits": capacity.fits(needed),
        "flops": steps * needed.step_flops,
        "seconds_per_step": float(f"{seconds / steps:.4g}"),
        "hours": float(f"{seconds / 3600:.4g}"),
        "sent_gb_per_step": round(sent / 1e9, 3),
        "checkpoint_gb": round((weights + state) / 1e9, 3),
        "text_gb": round(steps * tokens_per_step * token_bytes / 1e9, 3),
    }


def gib(size: float) -> float:
    return round(size / 2**30, 3)


def vocab_size_of(tokenizer: TokenizerConfig) -> int:
    """The size of the vocabulary, as far as the configuration of the tokenizer tells it. Raises
    UserError if only the text tells it."""
    if isinstance(tokenizer, BpeConfig):
        return tokenizer.vocab_size
    if isinstance(tokenizer, ByteConfig):
        return BYTE_TOKENS
    if isinstance(tokenizer, Gpt2Config):
        return GPT2_TOKENS
    raise UserError(
        "estimate.vocab_size=null: the vocabulary of this tokenizer depends on the text; give its "
        "size"
    )


def check_plan(planned: PlanConfig) -> None:
    """Raises UserError if a value is out of range."""
    for key in ("vocab_size", "tokens", "gpu_gib", "devices", "tflops", "mfu"):
        value = getattr(planned, key)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"estimate.{key}={value} must be above 0")
    if planned.strategy not in STRATEGIES:
        raise UserError(
            f"estimate.strategy={planned.strategy} must be one of {', '.join(STRATEGIES)}"
        )
