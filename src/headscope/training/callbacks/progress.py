"""Shows the progress of training: as a progress bar if the output is a terminal, as one line that
changes in a notebook, otherwise as plain lines."""

import time
from collections.abc import Generator, Iterable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from headscope.data.encode import TextBatch
from headscope.terminal import printable

REFRESH_SECONDS = 0.25
LINES = 20  # per run, about, without those for validations


class ProgressReport(ProgressBar):
    """Shows the step, the training and validation loss, tokens per second and the time left. Prints
    to `console`, by default to the terminal."""

    is_enabled = True  # for LightningModule.print, which then calls `print`

    def __init__(self, *, console: Console | None = None) -> None:
        super().__init__()
        self.console = console or new_console()
        self.bar: Progress | None = None
        self.cell: Any = None
        self.val_loss: float | None = None
        self.refreshed = 0.0

    def print(self, *args: Any, **kwargs: Any) -> None:
        for line in args:
            say(self.console, str(line))

    def disable(self) -> None:
        """Lightning calls this in all processes but the first, which print nothing."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.first_step = trainer.global_step
        self.first_seconds = pl_module.timer.seconds()
        # A multiple of log_every_steps, so that a line shows the same loss as TensorBoard.
        every = pl_module.log_every_steps
        self.print_every_steps = every * max(1, round(trainer.max_steps / LINES / every))
        if self.console.is_terminal and trainer.is_global_zero:
            step, metrics = TextColumn("{task.description}"), TextColumn("{task.fields[metrics]}")
            options: Any = {"auto_refresh": False, "transient": True, "expand": True}
            bar = BarColumn(bar_width=None)
            self.bar = Progress(step, bar, metrics, console=self.console, **options)
            self.task = self.bar.add_task("training", total=trainer.max_steps, metrics="")
            self.bar.start()
        elif Console().is_jupyter:
            from IPython.display import display

            self.cell = display({"text/plain": ""}, raw=True, display_id=True)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        step = trainer.global_step
        due = step == 1 or step % self.print_every_steps == 0
        if self.bar or self.cell:
            due = time.perf_counter() - self.refreshed > REFRESH_SECONDS
        if due:
            self.refreshed = time.perf_counter()
            self._draw(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self.val_loss = float(trainer.callback_metrics["val/loss"])
        bits = float(trainer.callback_metrics["val/bits_per_byte"])
        if trainer.is_global_zero and not self.cell:
            losses = f"validation loss {self.val_loss:.4f}  {bits:.4f} bits per byte"
            say(self.console, f"step {trainer.global_step:,}  {losses}")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self.cell and trainer.global_step > self.first_step:
            self._draw(trainer, pl_module)
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None

    def _draw(self, trainer: Trainer, pl_module: Any) -> None:
        step = f"step {trainer.global_step:,} of {trainer.max_steps:,}"
        metrics = self._metrics(trainer, pl_module)
        if self.cell:
            self.cell.update({"text/plain": f"{step}  {metrics}"}, raw=True)
        elif self.bar:
            done = trainer.global_step
            self.bar.update(self.task, completed=done, description=step, metrics=metrics)
            self.bar.refresh()
        elif trainer.is_global_zero:
            say(self.console, f"{step}  {metrics}")

    def _metrics(self, trainer: Trainer, pl_module: Any) -> str:
        steps = trainer.global_step - self.first_step
        seconds = pl_module.timer.seconds() - self.first_seconds
        left = seconds / steps * (trainer.max_steps - trainer.global_step)
        tokens_per_step = pl_module.data.tokens_per_step if pl_module.data else 0
        loss = pl_module.latest_loss
        parts = [
            f"loss {loss:.4f}" if loss is not None else "",
            f"val {self.val_loss:.4f}" if self.val_loss is not None else "",
            f"{steps * tokens_per_step / seconds:,.0f} tokens/s",
            f"{int(left) // 60}:{int(left) % 60:02d} left",
        ]
        return "  ".join(part for part in parts if part)


def new_console(*, quiet: bool = False) -> Console:
    """The console of a run. In a notebook, which claims to be a terminal, it prints plain lines."""
    terminal = False if Console().is_jupyter else None
    return Console(quiet=quiet, force_jupyter=False, force_terminal=terminal)


def say(console: Console, line: str, style: str | None = None) -> None:
    """Prints `line` without markup, colours and line breaks. Escapes its control characters."""
    console.print(printable(line), style=style, highlight=False, soft_wrap=True, markup=False)


def track(
    batches: Iterable[TextBatch], size: int | None, *, console: Console
) -> Generator[TextBatch, None, None]:
    """Yields the batches of a corpus of `size` bytes, and shows a progress bar while they are
    encoded. If the output is not a terminal, prints one line instead."""
    if not console.is_terminal:
        amount = "text" if size is None else f"{size / 1e6:,.1f} MB of text"
        console.print(f"Encoding {amount}", highlight=False)
        yield from batches
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Encoding", total=size)
        for batch in batches:
            yield batch
            progress.advance(task, batch.size)
