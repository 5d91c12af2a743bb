"""Train a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from headscope import stop
from headscope.cli import command_line, words
from headscope.errors import UserError
from headscope.terminal import printable
from headscope.training import run_folder


def arguments(held: ExitStack, typed: list[str], quoted: list[str]) -> list[str]:
    """What to compose from: of a resumed run, its choices first.

    A folder that the command line names is locked until `held` closes, before Hydra writes there.
    """
    from headscope.checkpoint import check_same_tokenizer
    from headscope.cli.resume import resume_arguments

    words.check_name(typed)
    weights = words.value_of(typed, "init_from")
    if weights and not words.value_of(typed, "resume"):
        check_same_tokenizer(weights, [*words.tokenizer_of_experiment(typed), *typed])
    given = resume_arguments(typed, quoted)
    for key in ("resume", "hydra.run.dir"):
        folder = words.value_of(typed, key)
        if folder and "${" not in folder:
            claim(held, Path(folder))
    return given


def claim(held: ExitStack, folder: Path) -> None:
    """Make and lock a run's folder until `held` closes; a new one that is not used is removed."""
    existed = folder.exists()
    unused = partial(run_folder.remove_unused, folder, keep=existed)
    held.enter_context(stop.on_stop(unused))
    folder.mkdir(parents=True, exist_ok=True)
    held.enter_context(run_folder.locked(folder))
    # Only with the lock: these may be the files of another process.
    held.enter_context(stop.on_stop(partial(run_folder.leave, folder, keep=existed)))
    held.callback(unused)


def train(composed: DictConfig) -> float:
    """Train what `composed` describes in Hydra's run folder; returns the final validation loss."""
    hydra = HydraConfig.get()
    resume = composed.resume is not None
    folder = Path(composed.resume) if resume else command_line.run_folder()
    named = any("run.dir=" in word for word in hydra.overrides.hydra)
    sweep = hydra.mode == RunMode.MULTIRUN
    stopped = partial(leave, folder, keep=named, sweep=sweep)
    with run_folder.locked(folder), stop.on_stop(stopped):
        run_folder.check_writable(folder)
        return train_in(folder, composed, named=named, sweep=sweep)


def leave(folder: Path, *, keep: bool, sweep: bool) -> str | None:
    """Leave nothing half-made; returns how to continue, where there is a checkpoint."""
    run_folder.leave(folder, keep=keep)
    return f"To continue: {how_to_continue(folder, sweep)}" if run_folder.is_run(folder) else None


def how_to_continue(folder: Path, sweep: bool) -> str:
    return "the same command" if sweep else run_folder.how_to_resume(folder)


def train_in(folder: Path, composed: DictConfig, *, named: bool, sweep: bool) -> float:
    """Train in `folder`, which is locked."""
    # Heavy, and not needed for --help or a misspelt key.
    from rich.console import Console

    from headscope.cli.resume import changed_keys
    from headscope.config import from_hydra
    from headscope.config.training import TrainConfig
    from headscope.training import build, report, run
    from headscope.training.recovery import Recovered, newest_checkpoint, read_summary
    from headscope.training.resume import resumed_config, sources

    console = Console()
    say = partial(console.print, soft_wrap=True, markup=False, highlight=False)
    changes: list[str] = []
    found: Recovered | None
    with ExitStack() as unless_built:
        unless_built.callback(run_folder.remove_unused, folder, keep=named)
        if composed.resume is not None:
            plain: Any = OmegaConf.to_container(composed, resolve=True)
            found = newest_checkpoint(folder)
            keys = changed_keys(list(HydraConfig.get().overrides.task))
            config, changes = resumed_config(plain, found, keys)
            for line in sources(config):
                print(printable(line), file=sys.stderr)
        else:
            config = from_hydra(TrainConfig, composed)
            found = newest_checkpoint(folder) if run_folder.is_run(folder) else None
        if found and not sweep and composed.resume is None:
            raise UserError(
                f"hydra.run.dir={folder} is a run already; continue it with resume={folder}, or "
                "name another folder"
            )
        if found and sweep:
            run.check_same_recipe(found, config)
            summary = read_summary(folder)
            if summary:
                say(f"{run_folder.shown(folder)} is finished already")
                return summary["val_loss"]
        this = build.build(config, folder=folder, console=console, found=found)
        unless_built.pop_all()
    run_folder.remove_leftovers(folder)
    report.describe(this)
    if this.resumed_step is not None:
        report.describe_resume(this, changes)
    try:
        summary = run.fit(this)
    except stop.Interrupted:
        step = this.trainer.global_step
        say(f"Saved at step {step:,}. To continue: {how_to_continue(folder, sweep)}")
        raise
    report.conclude(this, summary)
    return summary["val_loss"]


if __name__ == "__main__":
    with stop.stop_on_signal(), ExitStack() as held:
        command_line.run(train, "train", prepare=partial(arguments, held))
