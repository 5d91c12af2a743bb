"""Computes the memory and the FLOPs of a training step without running it.

The training step of the real model runs on fake tensors, which have shapes and dtypes but no data
(PyTorch's `FakeTensorMode`). `LiveBytes` adds up the sizes of the tensors that exist at the same
time. So every choice in conf/ is counted as it is, and none needs a formula here.
"""

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headscope import checkpoint
from headscope.config import build_part
from headscope.config.training import TrainConfig
from headscope.nn import GPT
from headscope.nn.capture import evaluating
from headscope.training.flops import training_flops
from headscope.training.objective import LOGIT_BYTES, Objective, gpu_logit_bytes


@dataclass(frozen=True)
class StepCost:
    """The bytes that a training step needs on one device, and its FLOPs per token.

    - `parameters` include masks and position tables. `block_parameters` are those of one block, and
      `shared_parameters` those outside of the blocks; both without masks and tables.
    - `gradients`; `optimizer`, the state of the optimizer.
    - `kept_gradients` exist during the forward pass: all gradients if they are accumulated over
      several batches, else 0.
    - `buckets`: what DDP sends. This memory always exists. When the backward pass of the last batch
      has computed a gradient, DDP moves it there.
    - `activations` are what the forward pass of the blocks keeps for the backward pass.

    Four times decide the peak. At each, this is the largest size of all other tensors:

    - `forward`: in the forward pass, in the loss, and in the backward pass of the loss and of the
      last block. Includes `activations`.
    - `backward`: in the backward pass of the first block and of the embeddings, when the gradients
      of the other blocks exist. Between the last block and the first, memory changes at a constant
      rate, so no peak is there.
    - `update`: in the optimizer's step.
    - `validation`: in a validation batch.
    """

    parameters: float
    block_parameters: float
    shared_parameters: float
    gradients: float
    optimizer: float
    kept_gradients: float
    activations: float
    forward: float
    backward: float
    update: float
    validation: float
    flops_per_token: float
    buckets: float = 0

    @property
    def peaks(self) -> dict[str, float]:
        """The memory at each of the four times."""
        always = self.parameters + self.optimizer + self.buckets
        outside = 0 if self.buckets else self.gradients
        return {
            "forward": always + self.kept_gradients + self.forward,
            "backward": always + max(outside, self.kept_gradients) + self.backward,
            "update": always + outside + self.update,
            "validation": always + self.validation,
        }

    @property
    def peak(self) -> float:
        return max(self.peaks.values())

    def replicated(self) -> "StepCost":
        """The same step with DDP: every device has the whole model."""
        return replace(self, buckets=self.gradients)

    def sharded(self, devices: int) -> "StepCost":
        """The same step with FSDP: every device keeps 1 / `devices` of the parameters, of the
        gradients and of the optimizer's state.

        A block is gathered before it is computed, together with the next block. Embeddings and
        output head stay gathered. Gradients are whole until they are reduced.
        """
        gathered = self.shared_parameters + 2 * self.block_parameters
        return replace(
            self,
            parameters=self.parameters / devices + gathered,
            gradients=self.gradients / devices,
            optimizer=self.optimizer / devices,
            kept_gradients=self.kept_gradients / devices,
            backward=self.backward + gathered,
            update=self.update / devices,
        )


MAX_CHUNKS = 8
"""The largest number of chunks of the loss that are traced. From two chunks on, memory grows
linearly with the sequences."""


def step_cost(
    config: TrainConfig,
    *,
    sequences: int,
    vocab_size: int,
    precision: str,
    gpu_memory: int | None = None,
) -> StepCost:
    """The cost of a training step on one device with batches of `sequences` sequences, without
    `torch.compile`, which needs less memory for activations.

    `precision` is one of PRECISIONS. If the device is a GPU, `gpu_memory` is its size in bytes.

    All sizes grow linearly with the number of blocks. So the step is traced with one block and with
    two blocks, and extended to all blocks. A large batch is extended from two smaller ones.
    """
    rows = config.trainer.loss_chunk_tokens
    if rows == "auto":
        limit = LOGIT_BYTES if gpu_memory is None else gpu_logit_bytes(gpu_memory)
        rows = max(1, limit // (4 * vocab_size))

    def cost(sequences: int, validation_sequences: int) -> StepCost:
        one, two = (
            traced(
                replace(config, model=replace(config.model, layers=layers)),
                sequences=sequences,
                validation_sequences=validation_sequences,
                vocab_size=vocab_size,
                precision=precision,
                chunk_tokens=rows,
                on_gpu=gpu_memory is not None,
            )
            for layers in (1, 2)
        )
        return extended(one, two, config.model.layers - 1)

    of_validation = config.trainer.val_batch_size
    most = max(2, MAX_CHUNKS * rows // config.model.block_size) if rows else math.inf
    if max(sequences, of_validation) <= most:
        return cost(sequences, of_validation)
    large, small = int(most), int(most) // 2
    low, high = cost(small, small), cost(large, large)
    step, validation = (
        extended(low, high, (size - small) / (large - small)) for size in (sequences, of_validation)
    )
    return replace(step, validation=validation.validation)


def extended(one: StepCost, two: StepCost, distance: float) -> StepCost:
    """The cost at `distance` from `one`, on the line through `one` and `two`. The distance between
    `one` and `two` is 1."""
    sizes, others = asdict(one), asdict(two)
    return StepCost(**{key: size + distance * (others[key] - size) for key, size in sizes.items()})


def traced(config: TrainConfig, **options: Any) -> StepCost:
    """The result of `trace`, which is kept: a search for settings that fit needs the same results
    several times, and so do the runs of a sweep."""
    settings = config.trainer
    parts = (config.model, config.optimizer, settings.checkpoint_activations)
    key = repr((*parts, min(settings.accumulate, 2), sorted(options.items())))
    if key not in _traced:
        _traced[key] = trace(config, **options)
    return _traced[key]


_traced: dict[str, StepCost] = {}


def trace(
    config: TrainConfig,
    *,
    sequences: int,
    validation_sequences: int,
    vocab_size: int,
    precision: str,
    chunk_tokens: int | None = None,
    on_gpu: bool = False,
) -> StepCost:
    """The cost of a training step, from running all its operations on fake tensors. This takes
    about 20 milliseconds for each block, and draws no random numbers.

    `chunk_tokens` is the argument of `Objective`.
    """
    settings, length = config.trainer, config.model.block_size
    with FakeTensorMode(), LiveBytes() as live:
        model = checkpoint.build_model(config.model, vocab_size=vocab_size)
        if precision == "bf16-true":
            for parameter in model.parameters():
                parameter.data = parameter.data.bfloat16()  # `.to` does not support fake tensors
        model.checkpoint_activations = settings.checkpoint_activations
        if on_gpu:
            for layer in model.attentions:
                layer.dropout = 0.0  # a GPU's kernels do not store the weights for dropout
        objective = Objective(model, chunk_tokens=chunk_tokens)
        optimizer = build_part(config.optimizer)(model)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed")
        parameters = live.now
        batch = torch.zeros(sequences, length, dtype=torch.long)
        base = live.now

        for _ in range(min(settings.accumulate, 2)):
            live.history.clear()
            start = live.now
            with block_marks(model, live) as marks:
                with autocast:
                    loss = objective.loss(batch, batch)
                loss.backward()
            del loss
        gradients = live.now - base
        forward = max(live.history[: marks["last block done"]]) - start
        backward = max(live.history[marks["first block"] :]) - live.now
        activations = live.history[marks["blocks"] - 1] - start

        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # creates the state
        state = live.now - base - gradients
        live.history.clear()
        optimizer.step()
        update = max(live.history) - live.now
        optimizer.zero_grad()

        batch = torch.zeros(validation_sequences, length, dtype=torch.long)
        live.history.clear()
        start_validation = live.now
        with torch.no_grad(), autocast, evaluating(model):
            objective.loss_sum(batch, batch)
        return StepCost(
            parameters=parameters,
            block_parameters=size_of(model.blocks[0]),
            shared_parameters=size_of(model) - size_of(model.blocks),
            gradients=gradients,
            optimizer=state,
            kept_gradients=start - base,
            activations=activations,
            forward=forward,
            backward=backward,
            update=update,
            validation=max(live.history) - start_validation,
            flops_per_token=training_flops(model),
        )


def size_of(part: nn.Module) -> int:
    """The size of the parameters in bytes. A tied matrix counts once."""
    return sum(parameter.nbytes for parameter in part.parameters())


@contextmanager
def block_marks(model: GPT, live: "LiveBytes") -> Iterator[dict[str, int]]:
    """Inside the `with` block, a forward and backward pass of `model` fills the yielded dictionary
    with the length of `live.history` at three times: `blocks`, after the forward pass of the
    blocks; `last block done`, after the backward pass of the last block; `first block`, before the
    backward pass of the first block."""
    marks: dict[str, int] = {}

    def mark(name: str) -> None:
        marks.setdefault(name, len(live.history))  # recomputed blocks call the hooks again

    def before_last(block: nn.Module, args: Any) -> None:
        args[0].register_hook(lambda grad: mark("last block done"))

    def after_last(block: nn.Module, args: Any, output: Tensor) -> None:
        mark("blocks")

    def after_first(block: nn.Module, args: Any, output: Tensor) -> None:
        output.register_hook(lambda grad: mark("first block"))

    handles = [
        model.blocks[-1].register_forward_pre_hook(before_last),
        model.blocks[-1].register_forward_hook(after_last),
        model.blocks[0].register_forward_hook(after_first),
    ]
    try:
        yield marks
    finally:
        for handle in handles:
            handle.remove()


class LiveBytes(TorchDispatchMode):
    """Inside this mode, `now` is the size in bytes of all tensors that were created in the mode and
    still exist. Views of a tensor do not count. `history` gets this number after each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.history: list[int] = []
        self.storages: dict[int, weakref.ref] = {}  # by address

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in (result,) if isinstance(result, Tensor) else tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        self.history.append(self.now)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata
        if address in self.storages:
            return
        size = storage.nbytes()
        self.now += size

        def remove(_: weakref.ref) -> None:
            self.now -= size
            del self.storages[address]

        self.storages[address] = weakref.ref(storage, remove)
