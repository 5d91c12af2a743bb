"""Estimates the memory and the time of a run before it starts.

Shapes: L layers, H heads, N windows, T tokens.
"""

from dataclasses import dataclass

from headscope.analysis.head_statistics import MAX_WEIGHTS_PER_HEAD
from headscope.config.training import TrainConfig
from headscope.training.step_cost import StepCost, step_cost

ERROR = 0.15
"""The memory that training needs differs from the estimate by at most this share
(docs/performance.md)."""

COMPILED_ERROR = 0.4
"""A compiled model may need less memory than the estimate, by at most this share: the compiler
recomputes some activations instead of keeping them."""

MFU = 0.4
"""The typical share of the rate of a large matrix product that training reaches (model FLOPs
utilization, docs/performance.md)."""

WATCHING_COPIES = 4
"""Measuring heads needs four times the memory of their weights: the weights of each layer, all
weights in one tensor, and temporary tensors of the metrics."""

STRATEGIES = ("ddp", "fsdp")


@dataclass(frozen=True)
class Estimate:
    """What a run needs. `step` is the cost of a batch on one device, `watching` the memory in bytes
    for measuring the heads, and `step_flops` the FLOPs of an optimizer step on all devices."""

    step: StepCost
    watching: float
    step_flops: float

    @property
    def peaks(self) -> dict[str, float]:
        """The bytes of tensors on one device, at the times of `StepCost` and when the heads are
        measured."""
        return self.step.peaks | {
            "watching": self.step.parameters + self.step.optimizer + self.watching
        }

    @property
    def peak(self) -> float:
        """The largest size of all tensors on one device, in bytes."""
        return max(self.peaks.values())

    def seconds(self, steps: int, *, rate: float, devices: int = 1, mfu: float = MFU) -> float:
        """The seconds of `steps` optimizer steps. `rate` are the FLOPs per second of a large matrix
        product on one device, and `mfu` is the share of it that training reaches."""
        return steps * self.step_flops / (devices * rate * mfu)


def estimate(
    config: TrainConfig,
    *,
    vocab_size: int,
    precision: str,
    gpu_memory: int | None = None,
    devices: int = 1,
    strategy: str = "ddp",
) -> Estimate:
    """The estimate for the run that `config` describes, whose `trainer.accumulate` is a number.

    A batch has `trainer.batch_size` sequences on all devices together. `precision` is one of
    PRECISIONS. If the devices are GPUs, `gpu_memory` is the memory of one in bytes. `strategy` is
    one of STRATEGIES, for more than one device.
    """
    trainer, model = config.trainer, config.model
    sequences = -(-trainer.batch_size // devices)  # rounded up
    step = step_cost(
        config,
        sequences=sequences,
        vocab_size=vocab_size,
        precision=precision,
        gpu_memory=gpu_memory,
    )
    tokens = trainer.batch_size * trainer.accumulate * model.block_size
    if devices > 1:
        step = step.sharded(devices) if strategy == "fsdp" else step.replicated()
    return Estimate(
        step=step, watching=watching_bytes(config), step_flops=tokens * step.flops_per_token
    )


def watching_bytes(config: TrainConfig) -> float:
    """The memory for measuring the heads: their weights (L, N, H, T, T) on a batch of N windows."""
    callbacks, model = config.callbacks, config.model
    attention, heads = callbacks.attention, callbacks.heads
    if not config.logger or not (attention.steps or attention.images or heads.every_steps):
        return 0
    windows = min(heads.windows, max(1, MAX_WEIGHTS_PER_HEAD // model.block_size**2))
    weights = model.layers * windows * model.heads * model.block_size**2
    return WATCHING_COPIES * 4 * weights
