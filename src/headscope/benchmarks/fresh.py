"""A training step in a process of its own: how much memory it takes, and how long.

Counted is all that the step needs at the moment when most is held: weights, gradients, what the
optimizer keeps, and the rest, which is activations and what kernels work with. What the process
had before there was a model is not counted: the libraries, their code called once.

On a CPU that is resident memory, its highest mark as Linux keeps it, with the allocator as training
sets it: of small blocks it keeps some that are free, so that figures of small models are not even.
On a GPU of NVIDIA it is what PyTorch had allocated at most.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headscope import checkpoint
from headscope.benchmarks.peers import hugging_face
from headscope.benchmarks.timing import spread
from headscope.config.model import ModelConfig
from headscope.errors import UserError
from headscope.nn.loss import next_token_loss
from headscope.training.bare_loop import wait_for
from headscope.training.objective import Objective
from headscope.training.process import prepare_process

MIB = 2**20
NUMBERS = {
    "32-true": "float32",
    "bf16-mixed": "float32 weights, bfloat16 products",
    "bf16-true": "bfloat16",
}
"""Lightning's words for precision, for a title."""


class MakeOptimizer(Protocol):
    def __call__(self, model: nn.Module) -> torch.optim.Optimizer: ...


@dataclass(frozen=True)
class Plan:
    """What is to be measured, in plain data that another process can be given.

    `rounds` steps are timed, after one that is not. With
    `peer` the model is that of `transformers` with the same weights.
    """

    model: ModelConfig
    vocab_size: int
    batch_size: int
    optimizer: MakeOptimizer
    precision: str
    device: torch.device
    threads: int
    seed: int
    rounds: int
    loss_chunk_tokens: Any
    checkpoint_activations: bool
    peer: bool = False


@dataclass(frozen=True)
class Measured:
    """Of a step: memory in MiB, at the peak and of its parts, milliseconds, and the first loss.

    `rest_mib` is the peak less weights, gradients and what is of the optimizer. Not all gradients
    need be there at that moment, so activations may be more than that.
    """

    parameters: int
    peak_mib: float
    weights_mib: float
    gradients_mib: float
    optimizer_mib: float
    rest_mib: float
    milliseconds: dict[str, float]
    first_loss: float

    def row(self) -> dict[str, Any]:
        return asdict(self)


def measure_apart(plan: Plan) -> Measured:
    """`measure` in a fresh process. Raises UserError when it cannot be measured here, or that
    process does not come through."""
    if plan.device.type != "cuda" and (plan.device.type, sys.platform) != ("cpu", "linux"):
        raise UserError(
            "memory is measured on a CPU under Linux or a GPU of NVIDIA, not on "
            f"{plan.device.type} under {sys.platform}"
        )
    # Forked from a process that has imported this and done nothing else.
    fresh = get_context("forkserver")
    fresh.set_forkserver_preload([__name__])
    try:
        with ProcessPoolExecutor(1, mp_context=fresh) as pool:
            return pool.submit(measure, plan).result()
    except (BrokenProcessPool, torch.OutOfMemoryError):
        raise UserError(
            "a step was ended by the system, most likely for want of memory: take a smaller "
            "model.*, trainer.batch_size or vocabulary"
        ) from None


def measure(plan: Plan) -> Measured:
    """Take the steps of `plan`, here."""
    torch.set_num_threads(plan.threads)
    prepare_process()
    heads = plan.model.heads
    small = replace(plan.model, embed_dim=8 * heads, layers=1, block_size=8)
    Steps(replace(plan, model=small, vocab_size=16, batch_size=1)).take(2)

    before = memory(plan.device)
    steps = Steps(plan)
    forget_peak(plan.device)
    first_loss, milliseconds = steps.take(1 + plan.rounds)
    most = peak_memory(plan.device) - before
    weights = size(steps.model.parameters())
    optimizer = size(
        value
        for optimizer in getattr(steps.optimizer, "optimizers", [steps.optimizer])
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    )
    kept = 2 * weights + optimizer
    peak = max(kept, most / MIB)  # what is small finds room in what the process had
    return Measured(
        parameters=sum(p.numel() for p in steps.model.parameters()),
        peak_mib=round(peak, 3),
        weights_mib=round(weights, 3),
        gradients_mib=round(weights, 3),
        optimizer_mib=round(optimizer, 3),
        rest_mib=round(peak - kept, 3),
        milliseconds=spread(milliseconds[1:]),
        first_loss=first_loss,
    )


class Steps:
    """A model, its optimizer and a batch of random tokens to train it on, again and again."""

    def __init__(self, plan: Plan) -> None:
        self.device = plan.device
        torch.manual_seed(plan.seed)
        model = checkpoint.build_model(plan.model, vocab_size=plan.vocab_size)
        if plan.precision == "bf16-true":
            model = model.bfloat16()
        model = model.to(plan.device).train()
        model.checkpoint_activations = plan.checkpoint_activations
        self.autocast = partial(
            torch.autocast,
            plan.device.type,
            torch.bfloat16,
            enabled=plan.precision == "bf16-mixed",
        )
        self.model: nn.Module = model
        self.loss = Objective(model, chunk_tokens=plan.loss_chunk_tokens).loss
        if plan.peer:
            theirs = hugging_face(model)
            self.model = theirs
            self.loss = lambda inputs, targets: next_token_loss(
                theirs(inputs, use_cache=False).logits, targets
            )
        self.optimizer = plan.optimizer(self.model)
        shape = (plan.batch_size, plan.model.block_size + 1)
        drawn = torch.Generator().manual_seed(plan.seed)
        tokens = torch.randint(plan.vocab_size, shape, generator=drawn).to(plan.device)
        self.batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def take(self, count: int) -> tuple[float, list[float]]:
        """The loss of the first step, and the milliseconds of each: forward, backward, update."""
        losses, milliseconds = [], []
        for _ in range(count):
            wait_for(self.device)
            started = time.perf_counter()
            with self.autocast():
                loss = self.loss(*self.batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            wait_for(self.device)
            milliseconds.append(1e3 * (time.perf_counter() - started))
            losses.append(float(loss.detach()))
            del loss
        return losses[0], milliseconds


def size(tensors: Any) -> float:
    return sum(tensor.nbytes for tensor in tensors) / MIB


def memory(device: torch.device) -> int:
    """Bytes that are held now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else resident("VmRSS")


def peak_memory(device: torch.device) -> int:
    """Bytes that were held at once, at most, since `forget_peak`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resident("VmHWM")


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def resident(name: str) -> int:
    """Bytes of this process's memory as /proc has them (man 5 proc)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise AssertionError(f"/proc/self/status has no {name}")
