"""Train a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from headscope import command_line, run_folder, stop
from headscope.errors import UserError
from headscope.terminal import printable


def arguments(held: ExitStack, typed: list[str], quoted: list[str]) -> list[str]:
    """What to compose from: of a resumed run, its choices first.

    A folder that the command line names is locked until `held` closes, before Hydra writes there.
    """
    from headscope.checkpoint import check_same_tokenizer
    from headscope.resume import resume_arguments

    command_line.check_name(typed)
    weights = command_line.value_of(typed, "init_from")
    if weights and not command_line.value_of(typed, "resume"):
        check_same_tokenizer(weights, [*command_line.tokenizer_of_experiment(typed), *typed])
    words = resume_arguments(typed, quoted)
    for key in ("resume", "hydra.run.dir"):
        folder = command_line.value_of(typed, key)
        if folder and "${" not in folder:
            claim(held, Path(folder))
    return words


def claim(held: ExitStack, folder: Path) -> None:
    """Make and lock a run's folder until `held` closes; a new one that is not used is removed."""
    unused = partial(run_folder.remove_unused, folder, keep=folder.exists())
    held.enter_context(stop.on_stop(unused))
    folder.mkdir(parents=True, exist_ok=True)
    held.enter_context(run_folder.locked(folder))
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

    from headscope import build, report, run
    from headscope.config import from_hydra
    from headscope.config.training import TrainConfig
    from headscope.recovery import read_summary
    from headscope.resume import resumed_config, sources

    console = Console()
    say = partial(console.print, soft_wrap=True, markup=False, highlight=False)
    changes: list[str] = []
    with ExitStack() as unless_built:
        unless_built.callback(run_folder.remove_unused, folder, keep=named)
        if composed.resume is not None:
            plain: Any = OmegaConf.to_container(composed, resolve=True)
            words = list(HydraConfig.get().overrides.task)
            config, changes = resumed_config(plain, folder, words)
            for line in sources(config):
                print(printable(line), file=sys.stderr)
        else:
            config = from_hydra(TrainConfig, composed)
        resume = run_folder.is_run(folder)
        if resume and not sweep and composed.resume is None:
            raise UserError(
                f"hydra.run.dir={folder} is a run already; continue it with resume={folder}, or "
                "name another folder"
            )
        if resume and sweep:
            run.check_same_recipe(folder, config)
            summary = read_summary(folder)
            if summary:
                say(f"{run_folder.shown(folder)} is finished already")
                return summary["val_loss"]
        this = build.build(config, folder=folder, console=console, resume=resume)
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
    with stop.at_once(), ExitStack() as held:
        command_line.run(train, "train", prepare=partial(arguments, held))
