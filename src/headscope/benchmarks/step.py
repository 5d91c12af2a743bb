"""A training step in a process of its own: how much memory it takes, and how long.

Memory is all that the step needs at its peak: weights, gradients, optimizer state, and the rest,
which is activations and work space. What the process holds before the model exists is not counted.
On a CPU that is resident memory (Linux only), on a GPU what PyTorch allocated.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headscope import checkpoint
from headscope.benchmarks.data import write_tokens
from headscope.benchmarks.data_side import process_mib
from headscope.benchmarks.runner import Figures, Request, fresh_process, seconds_of
from headscope.benchmarks.transformers import gpt2_of
from headscope.config import build_part
from headscope.config.training import TrainConfig
from headscope.data.batches import TrainingBatches
from headscope.data.store import token_dtype
from headscope.errors import UserError
from headscope.nn.loss import next_token_loss
from headscope.training.build import precision_of
from headscope.training.check import check
from headscope.training.objective import Objective
from headscope.training.process import prepare_process


@dataclass(frozen=True)
class StepPlan:
    """A step of `run` on random tokens, as plain data for another process. `rounds` steps are timed
    after one that is not. With `peer` the model is that of transformers."""

    run: TrainConfig
    vocab_size: int
    rounds: int
    device: torch.device
    threads: int
    corpus: int
    peer: bool = False

    def changed(self, trainer: Mapping[str, Any] | None = None, **model: Any) -> "StepPlan":
        """The same with other keys of `model` and `trainer`."""
        parts = {"model": model, "trainer": trainer or {}}
        new = {name: replace(getattr(self.run, name), **keys) for name, keys in parts.items()}
        return replace(self, run=replace(self.run, **new))


def step_plan(request: Request) -> StepPlan:
    """The step that the command line describes."""
    suite, experiment = request.suite, request.choices["experiment"]
    if experiment:
        raise UserError(
            f"experiment={experiment}: this suite has its own model; give its sizes as model.*"
        )
    check(request.run)
    corpus = max(100_000, 4 * request.run.trainer.batch_size * request.run.model.block_size)
    threads = torch.get_num_threads()
    return StepPlan(request.run, suite.vocab_size, suite.rounds, request.device, threads, corpus)


def measure_isolated(plan: StepPlan) -> Figures:
    """`measure_step` in a fresh process, on a corpus in a temporary folder."""
    if plan.device.type != "cuda" and (plan.device.type, sys.platform) != ("cpu", "linux"):
        raise UserError(
            "memory is measured on a CPU under Linux or a GPU of NVIDIA, not on "
            f"{plan.device.type} under {sys.platform}"
        )
    try:
        with tempfile.TemporaryDirectory() as folder, fresh_process(__name__) as process:
            path = Path(folder) / "tokens.bin"
            write_tokens(path, plan.corpus, vocab_size=plan.vocab_size, seed=plan.run.seed)
            return process.submit(measure_step, plan, path).result()
    except (BrokenProcessPool, torch.OutOfMemoryError):
        raise UserError(
            "the system ended a step, most likely for lack of memory: choose a smaller model.*, "
            "trainer.batch_size or vocabulary"
        ) from None


def measure_step(plan: StepPlan, path: Path) -> Figures:
    """Peak memory and its parts in MiB, the median of milliseconds, and the first loss. Not all
    gradients need exist at the peak, so activations may be more than `rest_mib`."""
    torch.set_num_threads(plan.threads)
    prepare_process()
    # Loads libraries, and is too small to leave freed memory that the real step could reuse.
    tiny = plan.changed(
        {"batch_size": 1}, embed_dim=8 * plan.run.model.heads, layers=1, block_size=8
    )
    write_tokens(path.with_name("tiny"), 1000, vocab_size=16, seed=1)
    Step(replace(tiny, vocab_size=16), path.with_name("tiny"))()
    on_gpu = plan.device.type == "cuda"
    before = torch.cuda.memory_allocated() / 2**20 if on_gpu else process_mib("VmRSS")
    step = Step(plan, path)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM
    first_loss = step()
    seconds = [seconds_of(step, plan.device) for _ in range(plan.rounds)]
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else process_mib("VmHWM")
    parameters = list(step.model.parameters())
    weights, optimizer = mib(parameters), mib(step.optimizer_state())
    peak = max(peak - before, 2 * weights + optimizer)  # small models fit in memory freed before
    return {
        "milliseconds": 1e3 * statistics.median(seconds),
        "peak_mib": peak,
        "weights_mib": weights,
        "gradients_mib": weights,
        "optimizer_mib": optimizer,
        "rest_mib": peak - 2 * weights - optimizer,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "first_loss": first_loss,
    }


def mib(tensors: Iterable[Tensor]) -> float:
    return sum(tensor.nbytes for tensor in tensors) / 2**20


class Step:
    """A model, its optimizer and its batches; a call trains on the next batch and returns the
    loss."""

    def __init__(self, plan: StepPlan, path: Path) -> None:
        run, self.device = plan.run, plan.device
        torch.manual_seed(run.seed)
        model = checkpoint.build_model(run.model, vocab_size=plan.vocab_size)
        self.precision = precision_of(run.trainer)
        dtype = torch.bfloat16 if self.precision == "bf16-true" else torch.float32
        model = model.to(plan.device, dtype).train()
        model.checkpoint_activations = run.trainer.checkpoint_activations
        self.model: nn.Module = gpt2_of(model) if plan.peer else model
        self.loss: Callable[..., Tensor] = Objective(
            model, chunk_tokens=run.trainer.loss_chunk_tokens
        ).loss
        if plan.peer:
            self.loss = lambda inputs, targets: next_token_loss(self.model(inputs).logits, targets)
        self.optimizer = build_part(run.optimizer)(self.model)
        tokens = np.memmap(path, dtype=token_dtype(plan.vocab_size), mode="r")
        length, size = run.model.block_size, run.trainer.batch_size
        batches = TrainingBatches(tokens, block_size=length, batch_size=size, seed=run.seed)
        self.batches = iter(batches)

    def __call__(self) -> float:
        inputs, targets = (half.to(self.device) for half in next(self.batches))
        autocast = self.precision == "bf16-mixed"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=autocast):
            loss = self.loss(inputs, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def optimizer_state(self) -> list[Tensor]:
        parts = getattr(self.optimizer, "optimizers", [self.optimizer])
        states = [state for part in parts for state in part.state.values()]
        return [value for state in states for value in state.values() if torch.is_tensor(value)]
