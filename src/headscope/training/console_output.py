"""Prints a training run's plan and results on the console."""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from headscope.data.module import FORWARD_SHARE
from headscope.terminal import printable
from headscope.training.build import Run
from headscope.training.callbacks.clock import Clock
from headscope.training.console import say
from headscope.training.fit import readable
from headscope.training.flops import matrix_rate
from headscope.training.memory import MFU
from headscope.training.resume import ResumeCheckpoint
from headscope.training.run_folder import shown


def print_plan(run: Run, changes: list[str]) -> None:
    """Prints the run folder, the text, the model and the training plan, before the first step. If
    the run is resumed, also prints the step, and the `changes` of the configuration."""
    config, store = run.config, run.store
    write = partial(say, run.console)
    write(f"run         {shown(run.folder)}")
    write(
        f"text        {store.name}: {len(store.train):,} training tokens, "
        f"{len(store.validation):,} for validation, vocabulary {store.tokenizer.vocab_size:,}"
    )
    run.console.print(model_table(run.model))
    settings = config.trainer
    tokens = settings.batch_size * settings.accumulate * config.model.block_size
    write(f"training    {settings.max_steps:,} steps of {tokens:,} tokens on {device_of(run)}")
    print_estimate(run)
    every, at_end = run.data.validation_every, run.data.final_every
    more = "" if every == at_end else f"; at the end on {part_of_split(at_end)}"
    write(f"validation  every {settings.val_every_steps:,} steps on {part_of_split(every)}{more}")
    if config.logger:
        write(f"watch       {tensorboard_command(run.folder)}")
    if run.resume:
        print_resume(run, run.resume, changes)


def print_estimate(run: Run) -> None:
    """Prints the memory and the time that training needs."""
    needed, write = run.estimate, partial(say, run.console)
    parts = {
        "parameters": needed.parameters,
        "gradients": needed.gradients,
        "optimizer": needed.optimizer,
        "activations": needed.activations,
        "logits and temporary": needed.temporary,
        "measuring heads": needed.watching,
    }
    listed = ", ".join(f"{name} {readable(size)}" for name, size in parts.items() if size)
    write(
        f"memory      about {readable(needed.peak)} at the peak, "
        f"{readable(run.capacity.available)} available ({listed})"
    )
    device, settings = run.trainer.strategy.root_device, run.config.trainer
    size = 512 if device.type == "cpu" else 4096
    with run.trainer.precision_plugin.forward_context():
        rate = matrix_rate(device, size=size, rounds=3)
    steps = settings.max_steps - (run.resume.step if run.resume else 0)
    seconds = needed.seconds(steps, rate=rate, devices=run.processes.count)
    write(
        f"time        about {duration(seconds)} of training, at {MFU:.0%} "
        f"of the {rate / 1e9:,.0f} GFLOP/s of a matrix product"
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


def print_final_validation(run: Run, clock: Clock) -> None:
    """Prints what the last validation uses, and how long it will take if this is known."""
    every = run.data.final_every
    tokens = len(run.store.validation) // every
    trained = run.trainer.global_step * clock.tokens_per_step
    line = f"Validating on {part_of_split(every)}: {tokens:,} tokens"
    if trained:
        seconds = FORWARD_SHARE * clock.train_seconds * tokens / trained
        line += f", about {max(1, round(seconds)):,} s"
    say(run.console, line)


def print_results(run: Run, summary: dict[str, Any]) -> None:
    """Prints the summary, one sample, and the next commands to try. Every process of the run must
    call this."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in summary.items():
        table.add_row(name, f"{value:,.4f}" if isinstance(value, float) else str(value))
    console = run.console
    write = partial(say, console)
    if summary["steps"] < run.config.trainer.max_steps:
        patience = run.config.callbacks.early_stopping_patience
        write(f"stopped early: {patience} validations without a new best")
    console.print()
    console.print(table)
    console.print()
    if run.samples.max_new_tokens:
        with run.module.whole_model() as model:
            if model is not None:
                text = printable(run.samples.sample(model), keep="\n\t")
                console.print(Text(text), soft_wrap=True)
                console.print()
    best = shown(run.folder / "checkpoints" / "best.safetensors")
    write("Sample from the model:")
    words = [f"checkpoint={best}"]
    if run.samples.prompt:
        words.append(f"prompt={run.samples.prompt}")
    write(f"  python scripts/sample.py {shlex.join(words)}")
    write("See what each head does:")
    write(f"  python scripts/analyze.py {shlex.join(words[:1])}")
    if run.config.logger:
        write("See the losses, the samples, and the attention over the steps (tab Attention):")
        write(f"  {tensorboard_command(run.folder)}")


def print_resume(run: Run, resume: ResumeCheckpoint, changes: list[str]) -> None:
    """Prints the step at which a resumed run continues, and the changed settings."""
    write = partial(say, run.console)
    write(f"resuming    at step {resume.step:,} of {run.config.trainer.max_steps:,}")
    for change in changes:
        write(f"changed     {change}")
    if any(change.startswith("trainer.max_steps ") for change in changes):
        write("            the learning rate schedule now covers the new number of steps")
    before = resume.stored.data["training"]
    processes, threads = before["processes"], before["threads"]
    if processes != run.processes.count:
        write(
            f"processes   {processes} before, {run.processes.count} now: the losses will differ in "
            "their last digits from those of an uninterrupted run, and with dropout a little more"
        )
    now = torch.get_num_threads()
    if run.trainer.strategy.root_device.type == "cpu" and threads != now:
        write(
            f"threads     {threads} before, {now} now: the weights will differ in their last bits "
            f"from those of an uninterrupted run; set OMP_NUM_THREADS={threads} to avoid this"
        )


def tensorboard_command(folder: Path) -> str:
    """The command that shows the run in TensorBoard."""
    return f"tensorboard --logdir {shlex.quote(str(shown(folder.parent)))}"


def ordinal(number: int) -> str:
    """A number such as 1st, 2nd, 3rd or 4th."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"


def device_of(run: Run) -> str:
    root = run.trainer.strategy.root_device
    count = run.processes.count
    device = str(root) if count == 1 else f"{count} x {root.type}"
    return f"{device} ({run.trainer.precision})"
