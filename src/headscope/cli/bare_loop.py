"""A plain PyTorch training loop without Lightning or callbacks, for timing training steps."""

import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from torch import Tensor, nn

from headscope.config.training import TrainConfig
from headscope.data.batches import TrainingBatches
from headscope.nn.loss import next_token_loss
from headscope.training.build import build
from headscope.training.timer import wait_for_gpu


def bare_loop(config: TrainConfig) -> Iterator[Tensor]:
    """Trains the model of `config`, with its batches, optimizer, schedule and precision. Yields the
    loss of each step."""
    with TemporaryDirectory() as folder:
        run = build(config, Path(folder), Console(quiet=True))
    device, precision = run.trainer.strategy.root_device, run.trainer.precision_plugin
    precision.convert_module(run.module.model)
    model = run.module.model.to(device).train()
    optimizer = run.module.make_optimizer(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    clip = config.trainer.gradient_clip or math.inf
    sizes = {"block_size": config.model.block_size, "batch_size": config.trainer.batch_size}
    batches = TrainingBatches(run.data.store.train, **sizes, seed=config.seed)
    if run.module.compile_model:
        model.compile()
    for step, (inputs, targets) in enumerate(batches):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * run.module.schedule(step)
        with precision.forward_context():
            loss = next_token_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def milliseconds(steps: Iterator[Tensor], count: int) -> float:
    """The mean time of the next `count` steps of a training loop."""
    wait_for_gpu()
    started = time.perf_counter()
    for _ in itertools.islice(steps, count):
        pass
    wait_for_gpu()
    return 1e3 * (time.perf_counter() - started) / count
