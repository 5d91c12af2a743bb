"""Estimates the memory and the FLOPs of a training run before it starts.

The training step of the real model runs on fake tensors, which have shapes and dtypes but no data
(PyTorch's `FakeTensorMode`). `LiveBytes` adds up the sizes of the tensors that exist at the same
time. So every choice in conf/ is counted as it is, and none needs a formula here.

Shapes: L layers, H heads, N windows, T tokens.
"""

import math
import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headscope import checkpoint
from headscope.analysis.head_statistics import MAX_WEIGHTS_PER_HEAD
from headscope.config import build_part
from headscope.config.training import Precision, TrainConfig
from headscope.nn.capture import evaluating
from headscope.training.flops import training_flops
from headscope.training.objective import LOGIT_BYTES, Objective, gpu_logit_bytes

MFU = 0.4  # typical share of the rate of a large matrix product that training reaches
WATCHING_COPIES = 4  # weights of each layer, all weights in one tensor, and temporary tensors
MAX_CHUNKS = 8  # the largest number of chunks of the loss that are traced

Sizes = dict[str, float]


@dataclass(frozen=True)
class Estimate:
    """What a run needs. Sizes are bytes on one device."""

    parameters: float  # with masks and position tables
    gradients: float
    optimizer: float  # the optimizer's state
    activations: float  # what the blocks keep for the backward pass
    temporary: float  # what the loss and the last block need in addition
    watching: float  # for measuring the heads
    peaks: Sizes  # the size of all tensors, at each time that may be the peak
    weights: float  # the parameters of the whole model, without masks and tables
    step_flops: float  # FLOPs of an optimizer step on all devices

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
    precision: Precision,
    gpu_memory: int | None = None,
    devices: int = 1,
    strategy: str = "ddp",
    traces: dict[str, Sizes] | None = None,
) -> Estimate:
    """The estimate for the run that `config` describes, whose `trainer.accumulate` is a number.

    A batch has `trainer.batch_size` sequences on all devices together. `precision` is one of
    PRECISIONS. If the devices are GPUs, `gpu_memory` is the memory of one in bytes. `strategy` is
    `ddp` or `fsdp`, for more than one device. `traces` keeps results of `trace` for later estimates
    of the same run with other settings. The estimate is for a model without `torch.compile`,
    which needs less memory for activations.
    """
    trainer, model = config.trainer, config.model
    rows = trainer.loss_chunk_tokens
    if rows == "auto":
        limit = LOGIT_BYTES if gpu_memory is None else gpu_logit_bytes(gpu_memory)
        rows = max(1, limit // (4 * vocab_size))
    of_device = replace(
        trainer,
        batch_size=math.ceil(trainer.batch_size / devices),
        accumulate=min(trainer.batches_per_step, 2),  # later batches need as much as the second
        loss_chunk_tokens=rows,
        precision=precision,
    )
    on_gpu = gpu_memory is not None
    traces = {} if traces is None else traces
    size = step_sizes(replace(config, trainer=of_device), vocab_size, on_gpu, traces)
    # With FSDP, every device keeps a part of the model. A block is gathered before it is computed,
    # together with the next block. Embeddings and output head stay gathered. Gradients are whole
    # until they are reduced.
    parts = devices if strategy == "fsdp" else 1
    weights = size["gradients"]
    gathered = weights - (model.layers - 2) * size["block"] if parts > 1 else 0
    parameters, gradients = size["parameters"] / parts + gathered, weights / parts
    optimizer, kept_gradients = size["optimizer"] / parts, size["kept_gradients"] / parts
    # DDP sends gradients from buckets, which always exist. When the backward pass of the last batch
    # has computed a gradient, DDP moves it there.
    buckets = gradients if devices > parts else 0
    always, outside = parameters + optimizer + buckets, 0 if buckets else gradients
    watching = watching_bytes(config)
    return Estimate(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        activations=size["activations"],
        temporary=size["forward"] - size["activations"],
        watching=watching,
        peaks={
            "forward": always + kept_gradients + size["forward"],
            "backward": always + max(outside, kept_gradients) + size["backward"] + gathered,
            "update": always + outside + size["update"] / parts,
            "validation": always + size["validation"],
            "watching": parameters + optimizer + watching,
        },
        weights=weights,
        step_flops=trainer.batch_size * trainer.batches_per_step * model.block_size * size["flops"],
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


def step_sizes(
    config: TrainConfig, vocab_size: int, on_gpu: bool, traces: dict[str, Sizes]
) -> Sizes:
    """The result of `trace`, and `block`, the size of the weights of a block.

    All sizes grow linearly with the number of blocks. So the step is traced with one block and with
    two blocks, and extended to all blocks. If the loss has several chunks, all sizes also grow
    linearly with the sequences. So a large batch is extended from two smaller ones.
    """
    model, trainer = config.model, config.trainer

    def sizes(batch: int, validation_batch: int) -> Sizes:
        batches = replace(trainer, batch_size=batch, val_batch_size=validation_batch)
        found = []
        for layers in (1, 2):
            blocks = replace(config, model=replace(model, layers=layers), trainer=batches)
            key = repr((blocks.model, blocks.optimizer, blocks.trainer))
            if key not in traces:
                traces[key] = trace(blocks, vocab_size, on_gpu)
            found.append(traces[key])
        one, two = found
        block = two["gradients"] - one["gradients"]
        return on_line(one, two, model.layers - 1) | {"block": block}

    given, rows = (trainer.batch_size, trainer.val_batch_size), trainer.loss_chunk_tokens
    assert rows != "auto"
    if not rows or max(given) <= max(2, MAX_CHUNKS * rows // model.block_size):
        return sizes(*given)
    large = max(2, MAX_CHUNKS * rows // model.block_size)
    small = large // 2
    low, high = sizes(small, small), sizes(large, large)
    step, validation = (on_line(low, high, (size - small) / (large - small)) for size in given)
    return step | {"validation": validation["validation"]}


def on_line(one: Sizes, two: Sizes, place: float) -> Sizes:
    """The sizes on the line through `one`, at place 0, and `two`, at place 1."""
    return {key: size + place * (two[key] - size) for key, size in one.items()}


def trace(config: TrainConfig, vocab_size: int, on_gpu: bool) -> Sizes:
    """The sizes of a training step on one device, from running all its operations on fake tensors.
    This takes about 20 milliseconds for each block, and draws no random numbers.

    `kept_gradients` exist in the forward pass: all gradients if they are accumulated over several
    batches, else 0. Four times decide the peak. At each, the size is that of all tensors except
    parameters, gradients and optimizer state: `forward`, until the backward pass of the last block;
    `backward`, from the backward pass of the first block on (in between, memory changes at a
    constant rate); `update`, in the optimizer's step; `validation`. `flops` are FLOPs per token.
    """
    settings, length = config.trainer, config.model.block_size
    with FakeTensorMode(), LiveBytes() as live:
        model = checkpoint.build_model(config.model, vocab_size=vocab_size)
        if settings.precision == "bf16-true":
            for parameter in model.parameters():
                parameter.data = parameter.data.bfloat16()  # `.to` does not support fake tensors
        model.checkpoint_activations = settings.checkpoint_activations
        if on_gpu:
            for layer in model.attentions:
                layer.dropout = 0.0  # a GPU's kernels do not store the weights for dropout
        objective = Objective(model, chunk_tokens=settings.loss_chunk_tokens)
        optimizer = build_part(config.optimizer)(model)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bf16-mixed")
        size: Sizes = {"parameters": live.now, "flops": training_flops(model)}
        batch = torch.zeros(settings.batch_size, length, dtype=torch.long)
        base = live.now

        marks: dict[str, int] = {}  # lengths of `live.history`

        def mark(name: str) -> None:
            marks.setdefault(name, len(live.history))  # recomputed blocks call the hooks again

        def mark_gradient(tensor: Tensor, name: str) -> None:
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: mark(name))

        first, last = model.blocks[0], model.blocks[-1]
        last.register_forward_pre_hook(lambda _, args: mark_gradient(args[0], "last block done"))
        last.register_forward_hook(lambda *_: mark("blocks done"))
        first.register_forward_hook(lambda _, args, output: mark_gradient(output, "first block"))
        for _ in range(settings.batches_per_step):
            live.history.clear()
            marks.clear()
            start = live.now
            with autocast:
                loss = objective.loss(batch, batch)
            loss.backward()
            del loss
        size["gradients"], size["kept_gradients"] = live.now - base, start - base
        size["activations"] = live.history[marks["blocks done"] - 1] - start
        size["forward"] = max(live.history[: marks["last block done"]]) - start
        size["backward"] = max(live.history[marks["first block"] :]) - live.now

        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # creates the state
        size["optimizer"] = live.now - base - size["gradients"]
        live.history.clear()
        optimizer.step()
        size["update"] = max(live.history) - live.now
        optimizer.zero_grad()

        batch = torch.zeros(settings.val_batch_size, length, dtype=torch.long)
        live.history.clear()
        start = live.now
        with torch.no_grad(), autocast, evaluating(model):
            objective.loss_sum(batch, batch)
        return size | {"validation": max(live.history) - start}


class LiveBytes(TorchDispatchMode):
    """Inside this mode, `now` is the size in bytes of all tensors that were created in the mode and
    still exist. Views of a tensor do not count. `history` gets this number after each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.history: list[int] = []
        self.addresses: set[int] = set()  # of storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                address, size = storage._cdata, storage.nbytes()
                if address not in self.addresses:
                    self.addresses.add(address)
                    self.now += size
                    weakref.finalize(storage, self._freed, address, size)
        self.history.append(self.now)
        return result

    def _freed(self, address: int, size: int) -> None:
        self.addresses.remove(address)
        self.now -= size
