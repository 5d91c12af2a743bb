"""What a training run prints: how the data is prepared, its plan and its results."""

import shlex
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from headscope.analysis.headers import TAB
from headscope.config.own_parts import parts_words
from headscope.config.training import TrainConfig
from headscope.data.module import FORWARD_SHARE
from headscope.data.store import TokenStore
from headscope.machine import process_cores
from headscope.terminal import command, printable
from headscope.trained.checkpoint import Stored
from headscope.training.build import Run
from headscope.training.callbacks.early_stopping import EarlyStopping
from headscope.training.callbacks.progress import say
from headscope.training.callbacks.samples import Samples
from headscope.training.loggers import tensorboards
from headscope.training.run_folder import is_run, remove_unused, shown


def print_plan(run: Run, changes: list[str]) -> None:
    """Prints the run folder, the text, the model and the training plan, before the first step. If
    the run is resumed, also prints the step, and the `changes` of the configuration."""
    config, store = run.config, run.data.store
    run.say(f"run         {shown(run.folder)}")
    tokens = f"{len(store.train):,} training tokens, {len(store.validation):,} for validation"
    run.say(f"text        {store.name}: {tokens}, vocabulary {store.tokenizer.vocab_size:,}")
    for line in [] if run.resume else notes(config, store):
        say(run.console, line, style="yellow")
    settings, sizes = config.trainer, config.model
    model = f"{sizes.layers} layers with {sizes.heads} heads, width {sizes.embed_dim}"
    run.say(f"model       {model}: {run.module.model.parameter_count():,} parameters")
    size = settings.batch_size * settings.accumulate * sizes.block_size
    root, count = run.trainer.strategy.root_device, run.trainer.world_size
    device = f"{count} x {root.type}" if count > 1 else root
    steps = f"{settings.max_steps:,} steps of {size:,} tokens"
    run.say(f"training    {steps} on {device} ({run.trainer.precision})")
    every, at_end = run.data.validation_every, run.data.final_every
    more = "" if every == at_end else f"; at the end on {part_of_split(at_end)}"
    if run.trainer.limit_val_batches:
        steps = f"{settings.val_every_steps:,} steps"
        run.say(f"validation  every {steps} on {part_of_split(every)}{more}")
    if not run.trainer.checkpoint_callbacks:
        run.say("saving      nothing, because no callback saves")
    if tensorboards(run.trainer):
        run.say(f"watch       {tensorboard_command(run.folder)}")
        run.say(f"            then open {TAB}")
    if run.resume:
        print_resume(run, run.resume, changes)


def print_busy_machine(run: Run, others: float) -> None:
    """If other programs use more than half a core, and the run trains on a CPU with more threads
    than cores are free, says so. `others` is the number of cores that they use."""
    threads = max(1, round(process_cores() - others))
    alone_on_cpu = run.trainer.strategy.root_device.type == "cpu" and run.trainer.world_size == 1
    if others > 0.5 and alone_on_cpu and torch.get_num_threads() > threads:
        line = f"other programs use {others:.1f} of {process_cores()} cores, so training is slow: "
        say(run.console, f"{line}end them, or set OMP_NUM_THREADS={threads}", style="yellow")


def notes(config: TrainConfig, store: TokenStore) -> list[str]:
    """What the user should know about a text that is small for the run."""
    lines = []
    wanted, supported = getattr(config.tokenizer, "vocab_size", 0), store.tokenizer.vocab_size
    if supported < wanted and not config.init_from:
        lines.append(f"tokenizer.vocab_size={wanted}: this text supports {supported:,} tokens")
    if (tokens := len(store.train)) < 10_000:
        lines.append(f"{tokens:,} training tokens are so few that the model will memorize them")
    return lines


def part_of_split(every: int) -> str:
    """The text for a validation that uses every n-th window."""
    return "the whole split" if every == 1 else f"one of {every} windows of the split"


def print_final_validation(run: Run, whole: bool) -> None:
    """Prints what the last validation uses, and how long it will take. `whole` is false if an
    argument of lightning.Trainer limits it."""
    if not whole:
        run.say(f"Validating on {run.trainer.limit_val_batches} of the batches of the split")
        return
    every = run.data.final_every
    tokens = len(run.data.store.validation) // every
    trained = max(1, run.trainer.global_step * run.data.tokens_per_step)
    seconds = max(1, round(FORWARD_SHARE * run.module.timer.seconds() * tokens / trained))
    run.say(f"Validating on {part_of_split(every)}: {tokens:,} tokens, about {seconds:,} s")


def print_results(run: Run, summary: dict[str, Any]) -> None:
    """Prints the summary, up to five lines of a sample, and the next commands to try. After
    `fast_dev_run`, removes the folder instead."""
    if run.trainer.fast_dev_run:
        run.say("fast_dev_run: training and validation work; nothing is kept")
        remove_unused(run.folder)
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in summary.items():
        table.add_row(name, f"{value:,.4f}" if isinstance(value, float) else str(value))
    console = run.console
    samples = run.callback(Samples)
    prompt = (samples and samples.prompt) or next(iter(run.contents["texts"]), "")
    if summary["steps"] < run.config.trainer.max_steps:
        stopping = run.callback(EarlyStopping)
        reason = "a callback has ended training"  # those of Lightning say why
        if stopping and stopping.wait_count >= stopping.patience:
            reason = f"{stopping.patience} validations without a new best"
            reason += "; a larger callbacks.early_stopping.patience= trains longer"
        run.say(f"stopped early: {reason}")
    console.print()
    console.print(table)
    console.print()
    if samples and samples.max_new_tokens:
        text = printable(samples.sample(run.module, prompt), keep="\n\t")
        rows = [row for line in text.splitlines() for row in wrap(line, 100) if row]
        console.print(Text("\n".join(rows[:5])), soft_wrap=True)
        console.print()
    if not is_run(run.folder):  # nothing was saved
        return
    name = "last" if summary["val_loss"] is None else "best"
    best = shown(run.folder / "checkpoints" / f"{name}.safetensors")
    run.say("Sample from the model:")
    parts: dict[str, Any] = {"model": run.config.model, "tokenizer": run.config.tokenizer or {}}
    words = [f"checkpoint={best}", *parts_words(parts)]
    line = prompt.strip().partition("\n")[0]  # several lines would need $'...'
    run.say(f"  {command('sample', *words, f'prompt={line}')}")
    run.say("Type, and watch the model and its heads:")
    run.say(f"  {command('explore', *words)}")
    run.say("See what each head does:")
    run.say(f"  {command('analyze', *words)}")
    if tensorboards(run.trainer):
        run.say(f"See the losses, the samples, and, at {TAB}, the attention over the steps:")
        run.say(f"  {tensorboard_command(run.folder)}")


def print_resume(run: Run, resume: Stored, changes: list[str]) -> None:
    """Prints where a resumed run continues, what changed, and why its figures will differ."""
    run.say(f"resuming    at step {resume.step:,} of {run.config.trainer.max_steps:,}")
    for change in changes:
        run.say(f"changed     {change}")
    if any(change.startswith("trainer.max_steps ") for change in changes):
        run.say("            the learning rate schedule now covers the new number of steps")
    if lost := [key for key in resume.data["added"] if key not in run.contents["added"]]:
        line = "a checkpoint does not keep this; to use it, give its words again"
        run.say(f"left out    {', '.join(map(str, lost))}: {line}")
    before = resume.data["training"]["language_model"]
    processes, threads = before["processes"], before["threads"]
    if processes != run.trainer.world_size:
        line = f"{processes} before, {run.trainer.world_size} now: the losses will differ in their"
        run.say(f"processes   {line} last digits, and with dropout a little more")
    now = torch.get_num_threads()
    if run.trainer.strategy.root_device.type == "cpu" and threads != now:
        line = f"{threads} before, {now} now: the weights will differ in their last bits"
        run.say(f"threads     {line}; set OMP_NUM_THREADS={threads} to avoid this")


def tensorboard_command(folder: Path) -> str:
    """The command that shows the run in TensorBoard."""
    return f"tensorboard --logdir {shlex.quote(str(shown(folder.parent)))}"
