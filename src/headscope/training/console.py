"""What a training run prints: how the data is prepared, its plan and its results."""

import shlex
from collections.abc import Generator, Iterable
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import torch
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
from headscope.training.callbacks.clock import Clock
from headscope.training.callbacks.samples import first_words
from headscope.training.flops import matrix_rate, training_flops
from headscope.training.run_folder import shown
from headscope.viewer import TAB

if TYPE_CHECKING:
    from headscope.training.build import Run

MFU = 0.4  # typical share of the rate of a large matrix product that training reaches


def new_console(*, quiet: bool = False) -> Console:
    """The console of a run. In a notebook, which claims to be a terminal, it prints plain lines."""
    terminal = False if Console().is_jupyter else None
    return Console(quiet=quiet, force_jupyter=False, force_terminal=terminal)


def say(console: Console, line: str, style: str | None = None) -> None:
    """Prints `line` as it is, without markup, colours of numbers or line breaks. Control characters
    are escaped."""
    console.print(printable(line), style=style, highlight=False, soft_wrap=True, markup=False)


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
    config, store = run.config, run.store
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
    print_time(run, tokens)
    every, at_end = run.data.validation_every, run.data.final_every
    more = "" if every == at_end else f"; at the end on {part_of_split(at_end)}"
    run.say(f"validation every {settings.val_every_steps:,} steps on {part_of_split(every)}{more}")
    if config.logger:
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
    last = config.trainer.max_steps
    if late := [step for step in config.callbacks.keep_steps if step > last]:
        lines.append(f"callbacks.keep_steps: {late} are skipped: trainer.max_steps={last}")
    return lines


def print_time(run: "Run", tokens_per_step: int) -> None:
    """Prints how long training will take, from the FLOPs of a matrix product on this device."""
    device, settings = run.trainer.strategy.root_device, run.config.trainer
    size = 512 if device.type == "cpu" else 4096
    with run.trainer.precision_plugin.forward_context():
        rate = matrix_rate(device, size=size, rounds=3)
    steps = settings.max_steps - (run.resume.step if run.resume else 0)
    flops = steps * tokens_per_step * training_flops(run.model)
    run.say(
        f"time        about {duration(flops / (run.processes.count * rate * MFU))} of training, "
        f"at {MFU:.0%} of the {rate / 1e9:,.0f} GFLOP/s of a matrix product",
    )


def duration(seconds: float) -> str:
    """A time in seconds, minutes, hours or days."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s"


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


def print_final_validation(run: "Run", clock: Clock) -> None:
    """Prints what the last validation uses, and how long it will take if this is known."""
    every = run.data.final_every
    tokens = len(run.store.validation) // every
    trained = run.trainer.global_step * clock.tokens_per_step
    line = f"Validating on {part_of_split(every)}: {tokens:,} tokens"
    if trained:
        seconds = FORWARD_SHARE * clock.train_seconds * tokens / trained
        line += f", about {max(1, round(seconds)):,} s"
    run.say(line)


def print_results(run: "Run", summary: dict[str, Any]) -> None:
    """Prints the summary, up to five lines of a sample, and the next commands to try."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in summary.items():
        table.add_row(name, f"{value:,.4f}" if isinstance(value, float) else str(value))
    console = run.console
    prompt = run.samples.prompt or first_words(run.store.tokenizer, run.store.validation)
    if summary["steps"] < run.config.trainer.max_steps:
        patience = run.config.callbacks.early_stopping_patience
        run.say(f"stopped early: {patience} validations without a new best")
    console.print()
    console.print(table)
    console.print()
    if run.samples.max_new_tokens:
        text = printable(run.samples.sample(run.model, prompt), keep="\n\t")
        rows = [row for line in text.splitlines() for row in wrap(line, 100) if row]
        console.print(Text("\n".join(rows[:5])), soft_wrap=True)
        console.print()
    best = shown(run.folder / "checkpoints" / "best.safetensors")
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
    if run.config.logger:
        run.say(f"See the losses, the samples, and, at {TAB}, the attention over the steps:")
        run.say(f"  {tensorboard_command(run.folder)}")


def print_resume(run: "Run", resume: Stored, changes: list[str]) -> None:
    """Prints the step at which a resumed run continues, and the changed settings."""
    run.say(f"resuming    at step {resume.step:,} of {run.config.trainer.max_steps:,}")
    for change in changes:
        run.say(f"changed     {change}")
    if any(change.startswith("trainer.max_steps ") for change in changes):
        run.say("            the learning rate schedule now covers the new number of steps")
    before = resume.data["training"]
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
