"""Trains a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from headscope import stop
from headscope.cli import command_line, words
from headscope.cli.sweeps import SweepRun
from headscope.errors import UserError
from headscope.terminal import printable
from headscope.training import processes, run_folder


def arguments(stack: ExitStack, typed: list[str], quoted: list[str]) -> list[str]:
    """Returns the command-line arguments for Hydra. With `resume=`, they also contain the choices
    of the resumed run, such as `optimizer=muon`.

    If the command line names a run folder, the first process of the run locks the folder until
    `stack` closes. The folder must be locked before Hydra writes to it.
    """
    from headscope.cli.initial_model import check_same_tokenizer
    from headscope.cli.resume import resume_arguments

    words.check_name(typed)
    weights = words.value_of(typed, "init_from")
    if weights and not words.value_of(typed, "resume"):
        check_same_tokenizer(weights, [*words.tokenizer_of_experiment(typed), *typed])
    hydra_words = resume_arguments(typed, quoted)
    if processes.rank() > 0:
        return hydra_words
    for key in ("resume", "hydra.run.dir"):
        folder = words.value_of(typed, key)
        if folder and "${" not in folder:
            make_and_lock(stack, Path(folder))
    return hydra_words


def make_and_lock(stack: ExitStack, folder: Path) -> None:
    """Creates and locks a run folder. When `stack` closes, releases the lock, and removes the
    folder if it is new and no run has started in it."""
    existed = folder.exists()
    remove_unused = partial(run_folder.remove_unused, folder, keep=existed)
    stack.enter_context(stop.on_stop(remove_unused))
    folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(run_folder.locked(folder))
    # Only a locked folder may be cleaned up: otherwise, the files may belong to another process.
    stack.enter_context(stop.on_stop(partial(run_folder.clean_up, folder, keep=existed)))
    stack.callback(remove_unused)


def train(composed: DictConfig) -> float:
    """Trains a model as the configuration `composed` says. Returns the final validation loss."""
    hydra = HydraConfig.get()
    resume = composed.resume is not None
    folder = Path(composed.resume) if resume else command_line.run_folder()
    named = any("run.dir=" in word for word in hydra.overrides.hydra)
    sweep = hydra.mode == RunMode.MULTIRUN
    with processes.report_lost_process(folder), ExitStack() as stack:
        if processes.rank() == 0:
            stack.enter_context(run_folder.locked(folder))
            clean_up_on_stop = partial(clean_up, folder, keep=named, sweep=sweep)
            stack.enter_context(stop.on_stop(clean_up_on_stop))
            run_folder.check_writable(folder)
        return train_in(folder, composed, named=named, sweep=sweep)


def clean_up(folder: Path, *, keep: bool, sweep: bool) -> str | None:
    """Removes partial files. Returns a message that says how to continue the run, or None if the
    run has no checkpoint."""
    run_folder.clean_up(folder, keep=keep)
    return f"To continue: {how_to_continue(folder, sweep)}" if run_folder.is_run(folder) else None


def how_to_continue(folder: Path, sweep: bool) -> str:
    return "the same command" if sweep else run_folder.how_to_resume(folder)


def train_in(folder: Path, composed: DictConfig, *, named: bool, sweep: bool) -> float:
    """Trains in `folder`, which the caller has locked. `named` is true if the user named the
    folder."""
    # These imports are slow, and --help and errors in the command line do not need them.
    from rich.console import Console

    from headscope.cli.initial_model import with_trained_model
    from headscope.cli.resume import changed_keys
    from headscope.config import from_hydra
    from headscope.config.training import TrainConfig
    from headscope.files import read_summary
    from headscope.training import console_output
    from headscope.training.build import build
    from headscope.training.recovery import ResumeCheckpoint, newest_checkpoint
    from headscope.training.resume import resumed_config, sources
    from headscope.training.run import check_same_config, fit
    from headscope.training.sharding import remove_unused_shards

    console = Console(quiet=processes.rank() > 0)
    say = partial(console.print, soft_wrap=True, markup=False, highlight=False)
    changes: list[str] = []
    resume: ResumeCheckpoint | None = None
    with ExitStack() as on_failure:
        if processes.rank() == 0:
            on_failure.callback(run_folder.remove_unused, folder, keep=named)
        if composed.resume is not None:
            plain: Any = OmegaConf.to_container(composed, resolve=True)
            resume = newest_checkpoint(folder)
            keys = changed_keys(list(HydraConfig.get().overrides.task))
            config, changes = resumed_config(plain, resume, keys)
            for line in sources(config) if processes.rank() == 0 else ():
                print(printable(line), file=sys.stderr)
        else:
            words = list(HydraConfig.get().overrides.task)
            config = with_trained_model(from_hydra(TrainConfig, composed), words)
        connected = processes.connect(config.trainer, sweep=sweep)
        folder = connected.from_first(folder)
        if composed.resume is None and run_folder.is_run(folder):
            resume = newest_checkpoint(folder)
            if not sweep:
                raise UserError(
                    f"hydra.run.dir={folder} already holds a run: continue it with "
                    f"resume={folder}, or name another folder"
                )
            check_same_config(resume, config)
            summary = read_summary(folder)
            if summary:
                say(f"{run_folder.shown(folder)} is already finished")
                return summary["val_loss"]
        run = build(config, folder=folder, console=console, resume=resume, processes=connected)
        on_failure.pop_all()
    if connected.is_first:
        run_folder.remove_leftovers(folder)
        remove_unused_shards(folder / "checkpoints")
    console_output.print_plan(run)
    if run.resumed_step is not None:
        console_output.print_resume(run, changes)
    try:
        summary = fit(run)
    except stop.Interrupted:
        step = run.trainer.global_step
        say(f"Saved at step {step:,}. To continue: {how_to_continue(folder, sweep)}")
        if not connected.is_first:
            sys.exit(0)  # the exit code of the run is that of the first process
        raise
    console_output.print_results(run, summary)
    return summary["val_loss"]


def report_sweep(runs: Sequence[SweepRun], folder: Path) -> None:
    """Prints a table of the runs, and writes it and a picture to the folder of the sweep."""
    from rich.console import Console

    from headscope.comparison.sweep import report

    report(runs, folder, Console())


if __name__ == "__main__":
    if processes.starter() == "lightning":
        processes.end_with_first_process()
    quiet = processes.rank() > 0
    with stop.stop_on_signal(quiet=quiet, until_end=True), ExitStack() as stack:
        command_line.run(
            train, "train", prepare=partial(arguments, stack), report_sweep=report_sweep
        )
