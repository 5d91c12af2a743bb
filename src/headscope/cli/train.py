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
from omegaconf import DictConfig, OmegaConf

from headscope.cli import command_line
from headscope.cli.conf import is_group
from headscope.cli.words import WRITES_NOTHING, key_of, value_of
from headscope.config.parse import parse
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.machine import core_seconds, cores_of_others
from headscope.stop import Interrupted
from headscope.terminal import note
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
    from headscope.training.trainer import silence_libraries, torch_flags_restored

    silence_libraries()
    first = processes.rank() == 0
    console = progress.new_console(quiet=quiet or not first)
    say = partial(progress.say, console)
    warn = partial(say, style="yellow")
    keys = [*map(key_of, HydraConfig.get().overrides.task)]
    folder = Path(composed.resume) if composed.resume else command_line.run_folder()
    resume = resuming.newest_checkpoint(folder, warn) if composed.resume else None
    if resume:
        plain: Any = OmegaConf.to_container(composed, resolve=True)
        config, changes = resuming.resumed_config(plain, resume, keys)
    else:
        config, changes = resuming.with_trained_model(parse(TrainConfig, composed), keys), []
    again = "the same command" if sweep else run_folder.how_to_resume(folder, config)
    if in_python:
        again = f"headscope.train({run_folder.resume_words(folder, config)})"
        again += ", with the same callbacks= and logger=" if callbacks or loggers else ""
    if (sweep or resume) and config.trainer.arguments.get("fast_dev_run"):
        raise UserError("trainer.fast_dev_run keeps nothing: use it without -m and resume=")
    lock = run_folder.locked(folder, say=say if sweep else None)
    with (
        lock if first else nullcontext(),
        processes.report_lost_process(folder, again),
        torch_flags_restored(),
    ):
        if first:
            run_folder.check_writable(folder)
            for line in resuming.sources(config, keys) if resume else ():
                note(line)
        if sweep and run_folder.is_run(folder):  # the same command continues
            resume = resuming.newest_checkpoint(folder, warn)
            resuming.check_same_config(resume, config)
            if summary := read_summary(folder):
                say(f"{run_folder.shown(folder)} is already finished")
                return folder, summary
        try:
            alone = sweep or in_python
            run = build(config, folder, console, resume, callbacks, loggers, alone=alone)
        except UserError as error:
            if resume is None or str(resume.path) in str(error):
                raise
            raise UserError(f"{resume.path}: {error}") from error
        if first:
            run_folder.remove_leftovers(folder)
        output.print_plan(run, changes)
        output.print_busy_machine(run, cores_of_others(started))
        try:
            summary = fit(run)
        except Interrupted:
            say(f"Saved at step {run.trainer.global_step:,}. To continue: {again}")
            if not first:
                sys.exit(0)  # the exit code of the run is that of the first process
            raise
        if run.trainer.fast_dev_run and first:
            say("fast_dev_run: training and validation work; nothing is kept")
            run_folder.remove_unused(folder)
        elif first:
            output.print_results(run, summary)
        return folder, summary
