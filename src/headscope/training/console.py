"""What a training run prints: how the data is prepared, its plan and its results."""

import shlex
from collections.abc import Generator, Iterable
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from headscope.checkpoint import Stored
from headscope.config.own_parts import parts_words
from headscope.config.training import TrainConfig
from headscope.data.encode import TextBatch
from headscope.data.machine import process_cores
from headscope.data.module import FORWARD_SHARE
from headscope.data.store import TokenStore
from headscope.terminal import command, printable
from headscope.training.callbacks.early_stopping import EarlyStopping
from headscope.training.callbacks.progress import say
from headscope.training.callbacks.samples import Samples, first_words
from headscope.training.run_folder import is_run, shown
from headscope.viewer import TAB

if TYPE_CHECKING:
    from headscope.training.build import Run


def track(
    batches: Iterable[TextBatch], size: int | None, *, console: Console
) -> Generator[TextBatch, None, None]:
    """Yields the batches of a corpus, and shows a progress bar while they are encoded, with the
    speed and the time left if `size`, the number of bytes, is known. If the output is not a
    terminal, prints one line instead."""
    if not console.is_terminal:
        amount = "text" if size is None else f"{size / 1e6:,.1f} MB of text"
        console.print(f"Encoding {amount}", highlight=False)
        yield from batches
        return
    columns = [
        *(TextColumn("Encoding"), BarColumn(), DownloadColumn(), TransferSpeedColumn()),
        *(TimeRemainingColumn(), TextColumn("left")),
    ]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=size)
        for batch in batches:
            yield batch
            progress.advance(task, batch.size)


def print_plan(run: "Run", changes: list[str]) -> None:
    """Prints the run folder, the text, the model and the training plan, before the first step. If
    the run is resumed, also prints the step, and the `changes` of the configuration."""
    config, store = run.config, run.data.store
    run.say(f"run         {shown(run.folder)}")
    run.say(
        f"text        {store.name}: {len(store.train):,} training tokens, "
        f"{len(store.validation):,} for validation, vocabulary {store.tokenizer.vocab_size:,}",
    )
    for line in [] if run.resume else notes(config, store):
        say(run.console, line, style="yellow")
    run.console.print(model_table(run.model))
    settings = config.trainer
    tokens = settings.batch_size * settings.accumulate * config.model.block_size
    run.say(f"training {settings.max_steps:,} steps of {tokens:,} tokens on {device_of(run)}")
    every, at_end = run.data.validation_every, run.data.final_every
    more = "" if every == at_end else f"; at the end on {part_of_split(at_end)}"
    if run.trainer.limit_val_batches:
        steps = f"{settings.val_every_steps:,} steps"
        run.say(f"validation every {steps} on {part_of_split(every)}{more}")
    if tensorboards(run.trainer):
        run.say(f"watch       {tensorboard_command(run.folder)}")
        run.say(f"            then open {TAB}")
    if run.resume:
        print_resume(run, run.resume, changes)


def print_busy_machine(run: "Run", others: float) -> None:
    """If other programs use more than half a core, and the run trains on a CPU with more threads
    than cores are free, says so. `others` is the number of cores that they use."""
    free = process_cores() - others
    threads = max(1, round(free))
    on_cpu = run.trainer.strategy.root_device.type == "cpu"
    if others > 0.5 and on_cpu and run.processes.count == 1 and torch.get_num_threads() > threads:
        line = (
            f"other programs use {others:.1f} of {process_cores()} cores, so {free:.1f} are free: "
            f"end them, or start with OMP_NUM_THREADS={threads}, or training is slow"
        )
        say(run.console, line, style="yellow")


def notes(config: TrainConfig, store: TokenStore) -> list[str]:
    """What the user should know about a text or a number of steps that is small for the run."""
    lines = []
    wished, found = getattr(config.tokenizer, "vocab_size", 0), store.tokenizer.vocab_size
    if found < wished and not config.init_from:
        lines.append(f"tokenizer.vocab_size={wished}: this text supports {found:,} tokens")
    if len(store.train) < 10_000:
        lines.append(
            f"{len(store.train):,} training tokens are so few that the model will memorize them"
        )
    return lines


def model_table(model: Any) -> Table:
    """A table with the number of parameters of each part of a GPT. A tied output head counts as
    0."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model", style="bold")
    table.add_column("parameters", justify="right")
    counted: set[int] = set()
    for name, part in model.named_children():
        uncounted = [p for p in part.parameters() if id(p) not in counted]
        counted.update(map(id, uncounted))
        label = f"{len(part)} {name}" if name == "blocks" else name
        if list(part.parameters()):
            note = " (tied)" if not uncounted else ""
            table.add_row(label + note, f"{sum(p.numel() for p in uncounted):,}")
    table.add_row("all", f"{model.parameter_count():,}", style="bold")
    return table


def part_of_split(every: int) -> str:
    """The text for a validation that uses every n-th window."""
    return "the whole split" if every == 1 else f"every {ordinal(every)} window of the split"


def print_final_validation(run: "Run", whole: bool) -> None:
    """Prints what the last validation uses, and how long it will take if this is known. `whole` is
    false if an argument of lightning.Trainer limits it."""
    if not whole:
        run.say(f"Validating on {run.trainer.limit_val_batches} of the batches of the split")
        return
    every = run.data.final_every
    tokens = len(run.data.store.validation) // every
    trained = run.trainer.global_step * run.data.tokens_per_step
    line = f"Validating on {part_of_split(every)}: {tokens:,} tokens"
    if trained:
        seconds = FORWARD_SHARE * run.module.timer.seconds() * tokens / trained
        line += f", about {max(1, round(seconds)):,} s"
    run.say(line)


def print_results(run: "Run", summary: dict[str, Any]) -> None:
    """Prints the summary, up to five lines of a sample, and the next commands to try."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in summary.items():
        table.add_row(name, f"{value:,.4f}" if isinstance(value, float) else str(value))
    console = run.console
    samples, store = run.callback(Samples), run.data.store
    prompt = (samples and samples.prompt) or first_words(store.tokenizer, store.validation)
    if summary["steps"] < run.config.trainer.max_steps:
        stopping = run.callback(EarlyStopping)
        reason = "a callback stopped training"
        if stopping and stopping.wait_count >= stopping.patience:
            reason = f"{stopping.patience} validations without a new best"
        run.say(f"stopped early: {reason}")
    console.print()
    console.print(table)
    console.print()
    if samples and samples.max_new_tokens:
        text = printable(samples.sample(run.module, prompt), keep="\n\t")
        rows = [row for line in text.splitlines() for row in wrap(line, 100) if row]
        console.print(Text("\n".join(rows[:5])), soft_wrap=True)
        console.print()
    if not is_run(run.folder):
        return  # nothing was saved
    name = "last" if summary["val_loss"] is None else "best"
    best = shown(run.folder / "checkpoints" / f"{name}.safetensors")
    run.say("Sample from the model:")
    words = [
        f"checkpoint={best}",
        *parts_words({"model": run.config.model, "tokenizer": run.config.tokenizer or {}}),
    ]
    line = prompt.strip().partition("\n")[0]  # several lines would need $'...'
    run.say(f"  {command('sample', *words, f'prompt={line}')}")
    run.say("Type, and watch the model and its heads:")
    run.say(f"  {command('explore', *words)}")
    run.say("See what each head does:")
    run.say(f"  {command('analyze', *words)}")
    if tensorboards(run.trainer):
        run.say(f"See the losses, the samples, and, at {TAB}, the attention over the steps:")
        run.say(f"  {tensorboard_command(run.folder)}")


def print_resume(run: "Run", resume: Stored, changes: list[str]) -> None:
    """Prints the step at which a resumed run continues, and the changed settings."""
    run.say(f"resuming    at step {resume.step:,} of {run.config.trainer.max_steps:,}")
    for change in changes:
        run.say(f"changed     {change}")
    if any(change.startswith("trainer.max_steps ") for change in changes):
        run.say("            the learning rate schedule now covers the new number of steps")
    if lost := [key for key in resume.data["added"] if key not in run.added]:
        line = "a checkpoint does not keep this; to use it, give its words again"
        run.say(f"left out    {', '.join(map(str, lost))}: {line}")
    before = resume.data["training"]["language_model"]
    processes, threads = before["processes"], before["threads"]
    if processes != run.processes.count:
        run.say(
            f"processes   {processes} before, {run.processes.count} now: the losses will differ in "
            "their last digits from those of an uninterrupted run, and with dropout a little more",
        )
    now = torch.get_num_threads()
    if run.trainer.strategy.root_device.type == "cpu" and threads != now:
        run.say(
            f"threads     {threads} before, {now} now: the weights will differ in their last bits "
            f"from those of an uninterrupted run; set OMP_NUM_THREADS={threads} to avoid this",
        )


def tensorboards(trainer: Trainer) -> list[TensorBoardLogger]:
    return [each for each in trainer.loggers if isinstance(each, TensorBoardLogger)]


def tensorboard_command(folder: Path) -> str:
    """The command that shows the run in TensorBoard."""
    return f"tensorboard --logdir {shlex.quote(str(shown(folder.parent)))}"


def ordinal(number: int) -> str:
    """A number such as 1st, 2nd, 3rd or 4th."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"


def device_of(run: "Run") -> str:
    root = run.trainer.strategy.root_device
    count = run.processes.count
    device = str(root) if count == 1 else f"{count} x {root.type}"
    return f"{device} ({run.trainer.precision})"
