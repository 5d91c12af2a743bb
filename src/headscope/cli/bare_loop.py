"""A plain PyTorch training loop without Lightning or callbacks, for timing training steps."""

import itertools
import math
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from torch import nn

from headscope.config.training import TrainConfig
from headscope.data.batches import TrainingBatches
from headscope.nn.loss import next_token_loss
from headscope.training.build import build
from headscope.training.timer import wait_for_gpu


class BareLoop:
    """Trains the model of `config`, with its batches, optimizer, schedule and precision."""

    def __init__(self, config: TrainConfig) -> None:
        with TemporaryDirectory() as folder:
            run = build(config, Path(folder), Console(quiet=True))
        self.device = run.trainer.strategy.root_device
        run.trainer.precision_plugin.convert_module(run.model)
        self.model = run.model.to(self.device).train()
        self.optimizer = run.module.make_optimizer(self.model)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.schedule = run.module.schedule
        self.clip = config.trainer.gradient_clip or math.inf
        self.precision = run.trainer.precision_plugin.forward_context
        sizes = {"block_size": config.model.block_size, "batch_size": config.trainer.batch_size}
        self.steps = enumerate(TrainingBatches(run.data.store.train, **sizes, seed=config.seed))
        self.first_loss = math.nan
        if run.module.compile_model:
            self.model.compile()

    def run(self, count: int) -> float:
        """Runs `count` steps and returns the mean milliseconds per step."""
        wait_for_gpu()
        started = time.perf_counter()
        for step, (inputs, targets) in itertools.islice(self.steps, count):
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * self.schedule(step)
            with self.precision():
                loss = next_token_loss(self.model(inputs.to(self.device)), targets.to(self.device))
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if step == 0:
                self.first_loss = float(loss.detach())
        wait_for_gpu()
        return 1e3 * (time.perf_counter() - started) / count
