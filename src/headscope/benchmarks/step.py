"""Measures the peak memory and the time of a training step on random tokens, in a separate process.

The peak memory includes weights, gradients, optimizer state, activations and temporary buffers. It
does not include memory that was in use before the model was created. On a CPU, it is the resident
memory of the process (only on Linux). On a GPU, it is the memory that PyTorch has allocated.
"""

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headscope import checkpoint
from headscope.benchmarks import runner
from headscope.benchmarks.runner import Figures, Request
from headscope.benchmarks.transformers import gpt2_of
from headscope.config import build_part
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.nn.loss import next_token_loss
from headscope.training.build import precision_of
from headscope.training.check import check
from headscope.training.objective import Objective
from headscope.training.process import prepare_process


@dataclass(frozen=True)
class StepPlan:
    """What a process measures: `rounds` training steps with the configuration `run`, after one step
    that is not timed. If `transformers` is true, the model is GPT-2 of the package transformers."""

    run: TrainConfig
    vocab_size: int
    rounds: int
    device: torch.device
    transformers: bool = False

    def changed(self, trainer: Mapping[str, Any] | None = None, **model: Any) -> "StepPlan":
        """A copy of the plan with other values for the given keys of `model` and `trainer`."""
        parts = {"model": model, "trainer": trainer or {}}
        new = {name: replace(getattr(self.run, name), **keys) for name, keys in parts.items()}
        return replace(self, run=replace(self.run, **new))


def step_plan(request: Request) -> StepPlan:
    """The plan for the training step that the command line describes."""
    if request.experiment:
        raise UserError(
            f"experiment={request.experiment}: this suite has its own model; set model.* instead"
        )
    check(request.run)
    return StepPlan(request.run, request.suite.vocab_size, request.suite.rounds, request.device)


def measure_isolated(plan: StepPlan) -> Figures:
    """Call `measure_step` in a new process."""
    if plan.device.type != "cuda" and (plan.device.type, sys.platform) != ("cpu", "linux"):
        raise UserError(
            "memory is measured on a CPU under Linux or on an NVIDIA GPU, not on "
            f"{plan.device.type} under {sys.platform}"
        )
    return runner.in_fresh_process(measure_step, plan)


def measure_step(plan: StepPlan) -> Figures:
    """Returns the time and the peak memory of a step, and the loss of the first step."""
    prepare_process()
    # A step of a tiny model loads the libraries, so that their memory does not count. The model is
    # too small to leave freed memory that the measured step could reuse.
    sizes = {"embed_dim": 8 * plan.run.model.heads, "layers": 1, "block_size": 8}
    Step(replace(plan.changed({"batch_size": 1}, **sizes), vocab_size=16))()
    on_gpu = plan.device.type == "cuda"
    before = torch.cuda.memory_allocated() / 2**20 if on_gpu else runner.process_mib("VmRSS")
    step = Step(plan)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM
    first_loss = step()
    seconds = [runner.seconds_of(step, plan.device) for _ in range(plan.rounds)]
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else runner.process_mib("VmHWM")
    return {
        "milliseconds": 1e3 * statistics.median(seconds),
        "peak_mib": peak - before,
        "parameters": sum(parameter.numel() for parameter in step.model.parameters()),
        "first_loss": first_loss,
    }


class Step:
    """A model with an optimizer and a random batch. A call trains one step and returns its loss."""

    def __init__(self, plan: StepPlan) -> None:
        run = plan.run
        torch.manual_seed(run.seed)
        size = (run.trainer.batch_size, run.model.block_size + 1)
        tokens = torch.randint(plan.vocab_size, size).to(plan.device)
        self.inputs, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        model = checkpoint.build_model(run.model, vocab_size=plan.vocab_size)
        self.precision = precision_of(run.trainer)
        dtype = torch.bfloat16 if self.precision == "bf16-true" else torch.float32
        model = model.to(plan.device, dtype).train()
        model.checkpoint_activations = run.trainer.checkpoint_activations
        chunk = run.trainer.loss_chunk_tokens
        self.model: nn.Module = model
        self.loss: Callable[..., Tensor] = Objective(model, chunk_tokens=chunk).loss
        if plan.transformers:
            self.model = gpt2_of(model, run.model)
            self.loss = lambda inputs, targets: next_token_loss(self.model(inputs).logits, targets)
        self.optimizer = build_part(run.optimizer)(self.model)

    def __call__(self) -> float:
        autocast = self.precision == "bf16-mixed"
        with torch.autocast(self.inputs.device.type, torch.bfloat16, enabled=autocast):
            loss = self.loss(self.inputs, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())
