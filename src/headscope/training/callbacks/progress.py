"""Shows the progress of training: as a progress bar if the output is a terminal, as one line that
changes in a notebook, otherwise as plain lines."""

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from headscope.training.callbacks.clock import clock_of
from headscope.training.module import LanguageModel

REFRESH_SECONDS = 0.25
LINES = 20
"""Approximate number of plain progress lines per run, without the lines for validations."""


class ProgressReport(Callback):
    """Shows the step, the training and validation loss, tokens per second and the time left."""

    def __init__(self, *, console: Console, tokens_per_step: int) -> None:
        self.console = console
        self.tokens_per_step = tokens_per_step
        self.bar: Progress | None = None
        self.cell: Any = None
        self.val_loss: float | None = None
        self.refreshed = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.first_step = trainer.global_step
        self.first_seconds = clock_of(trainer).seconds()
        # The number of steps between two lines is a multiple of log_every_steps, so that a line
        # shows the same loss as TensorBoard.
        assert isinstance(pl_module, LanguageModel)
        log_every_steps = pl_module.log_every_steps
        steps_per_line = trainer.max_steps / LINES
        self.print_every_steps = log_every_steps * max(1, round(steps_per_line / log_every_steps))
        if self.console.is_terminal and trainer.is_global_zero:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[metrics]}"),
                console=self.console,
                auto_refresh=False,
                transient=True,
                expand=True,
            )
            self.task = self.bar.add_task(
                "training", total=trainer.max_steps, completed=self.first_step, metrics=""
            )
            self.bar.start()
        elif Console().is_jupyter:
            from IPython.display import display

            self.cell = display({"text/plain": ""}, raw=True, display_id=True)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        step = trainer.global_step
        if self.bar or self.cell:
            now = time.perf_counter()
            if now - self.refreshed > REFRESH_SECONDS:
                self.refreshed = now
                self._draw(trainer, pl_module)
        elif step == 1 or step % self.print_every_steps == 0:
            self._print(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        self.val_loss = float(trainer.callback_metrics["val/loss"])
        bits = float(trainer.callback_metrics["val/bits_per_byte"])
        if trainer.is_global_zero and not self.cell:
            self.console.print(
                f"step {trainer.global_step:,}  validation loss {self.val_loss:.4f}"
                f"  {bits:.4f} bits per byte",
                highlight=False,
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.cell and trainer.global_step > self.first_step:
            self._draw(trainer, pl_module)
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None

    def _draw(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step = f"step {trainer.global_step:,} of {trainer.max_steps:,}"
        metrics = self._metrics(trainer, pl_module)
        if self.cell:
            self.cell.update({"text/plain": f"{step}  {metrics}"}, raw=True)
        if self.bar:
            self.bar.update(
                self.task, completed=trainer.global_step, description=step, metrics=metrics
            )
            self.bar.refresh()

    def _print(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.console.print(
                f"step {trainer.global_step:,} of {trainer.max_steps:,}"
                f"  {self._metrics(trainer, pl_module)}",
                highlight=False,
                soft_wrap=True,
            )

    def _metrics(self, trainer: Trainer, pl_module: LightningModule) -> str:
        steps = trainer.global_step - self.first_step
        seconds = clock_of(trainer).seconds() - self.first_seconds
        left = seconds / steps * (trainer.max_steps - trainer.global_step)
        assert isinstance(pl_module, LanguageModel)
        loss = pl_module.mean_loss()
        parts = [
            f"loss {loss:.4f}" if loss is not None else "",
            f"val {self.val_loss:.4f}" if self.val_loss is not None else "",
            f"{steps * self.tokens_per_step / seconds:,.0f} tokens/s",
            f"{int(left) // 60}:{int(left) % 60:02d} left",
        ]
        return "  ".join(part for part in parts if part)
