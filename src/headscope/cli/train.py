"""The command train: composed configuration -> checked configuration -> run."""

import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from headscope.cli import command_line
from headscope.cli.conf import is_group
from headscope.cli.words import WRITES_NOTHING, key_of, value_of
from headscope.errors import UserError
from headscope.machine import core_seconds, cores_of_others
from headscope.stop import Interrupted
from headscope.training import processes, run_folder


def main() -> None:
    processes.end_with_first_process()
    command_line.run(train, "train", arguments)


def arguments(words: list[str]) -> list[str]:
    """The words for Hydra, without anything of a checkpoint, which may come from a stranger. Raises
    UserError if `hydra.run.dir=` names a folder that another run uses or has used."""
    resumed, folder = value_of(words, "resume"), value_of(words, "hydra.run.dir")
    if resumed is None:
        if folder and run_folder.is_run(Path(folder)):
            held = f"hydra.run.dir={folder} already holds a run"
            raise UserError(f"{held}: continue it with resume={folder}, or name another folder")
        if folder and Path(folder).is_dir() and processes.rank() == 0:
            with run_folder.locked(Path(folder)):
                pass  # before Hydra writes to it
        return words
    if folder is not None:
        own = f"resume={resumed} continues one run in its own folder"
        raise UserError(f"{own}: leave out hydra.run.dir=")
    # ++ sets a key also if the configuration of the words alone does not have it.
    plain = [re.match(r"(?!hydra\.)[\w.]+=", each) and not is_group(key_of(each)) for each in words]
    forced = [f"++{word}" if key else word for word, key in zip(words, plain, strict=True)]
    return [*forced, *WRITES_NOTHING]


def train(composed: DictConfig) -> float | None:
    """Trains a model. Returns the final validation loss, or None without validation."""
    sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    return run(composed, sweep=sweep)[1].get("val_loss")


def run(
    composed: DictConfig,
    *,
    sweep: bool = False,
    in_python: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Trains a model as the configuration `composed` says. Returns the run folder and the content
    of its summary.json. The runs of a `sweep` continue automatically. They, and a run `in_python`,
    use one device each. `quiet` prints nothing but warnings. `callbacks` are added to those of the
    configuration, and `loggers` replace them."""
    started = core_seconds()
    # These imports are slow, and --help and errors in the command line do not need them.
    from headscope.files import read_summary
    from headscope.training import console as output
    from headscope.training import resume as resuming
    from headscope.training.build import build
    from headscope.training.callbacks import progress
    from headscope.training.run import fit
    from headscope.training.trainer import silence_libraries

    silence_libraries()
    first = processes.rank() == 0
    console = progress.new_console(quiet=quiet or not first)
    say = partial(progress.say, console)
    keys = [*map(key_of, HydraConfig.get().overrides.task)]
    folder = command_line.run_folder()
    if composed.resume:
        resuming.check_is_run(folder := Path(composed.resume))
    with run_folder.locked(folder, say=say if sweep else None) if first else nullcontext():
        if first:
            run_folder.check_writable(folder)
        warn = partial(say, style="yellow")
        start = resuming.start_of(composed, folder, keys, sweep=sweep, say=warn)
        if sweep and start.resume and (summary := read_summary(folder)):
            say(f"{run_folder.shown(folder)} is already finished")
            return folder, summary
        alone = sweep or in_python
        run = build(start.config, folder, console, start.resume, callbacks, loggers, alone=alone)
        if first:
            run_folder.remove_leftovers(folder)
        output.print_plan(run, start.changes)
        output.print_busy_machine(run, cores_of_others(started))
        try:
            summary = fit(run)
        except Interrupted:
            again = "the same command" if sweep else run_folder.how_to_resume(folder, run.config)
            if in_python:
                again = f"headscope.train({run_folder.resume_words(folder, run.config)})"
                again += ", with the same callbacks= and logger=" if callbacks or loggers else ""
            say(f"Saved at step {run.trainer.global_step:,}. To continue: {again}")
            if not first:
                sys.exit(0)  # the exit code of the run is that of the first process
            raise
        if first:
            output.print_results(run, summary)
        return folder, summary
