"""Train a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from headscope import command_line, run_folder, stop
from headscope.errors import UserError


def arguments(held: ExitStack, typed: list[str], quoted: list[str]) -> list[str]:
    """What to compose from: of a resumed run, its own words first.

    A folder that the command line names is locked until `held` closes, before Hydra writes there.
    """
    from headscope.resume import resume_arguments

    name = command_line.value_of(typed, "name")
    if name and "/" in name:
        raise UserError(f"name={name} must be without a slash: it begins a folder of outputs/")
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


def train(config: DictConfig) -> float:
    """Train what `config` describes in Hydra's run folder; returns the final validation loss."""
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    named = any("run.dir=" in word for word in hydra.overrides.hydra)
    sweep = hydra.mode == RunMode.MULTIRUN
    stopped = partial(leave, folder, keep=named, sweep=sweep)
    with stop.on_stop(stopped), run_folder.locked(folder):
        run_folder.remove_partial_files(folder)
        run_folder.remove_leftovers(folder)
        return train_in(
            folder, config, overrides=list(hydra.overrides.task), named=named, sweep=sweep
        )


def leave(folder: Path, *, keep: bool, sweep: bool) -> str | None:
    """Leave nothing half-made; returns how to continue, where there is a checkpoint."""
    run_folder.leave(folder, keep=keep)
    return f"To continue: {how_to_continue(folder, sweep)}" if run_folder.is_run(folder) else None


def how_to_continue(folder: Path, sweep: bool) -> str:
    return "the same command" if sweep else run_folder.how_to_resume(folder)


def train_in(
    folder: Path, config: DictConfig, *, overrides: list[str], named: bool, sweep: bool
) -> float:
    # Heavy, and not needed for --help or a misspelt key.
    from rich.console import Console

    from headscope import build, report, run
    from headscope.resume import resumed_config

    console = Console()
    say = partial(console.print, soft_wrap=True, markup=False, highlight=False)
    resume = bool(config.resume)
    if sweep and run_folder.is_run(folder):
        resume = True
        run.check_same_recipe(folder, config)
        summary = run.summary_of(folder)
        if summary:
            say(f"{run_folder.shown(folder)} is finished already")
            return summary["val_loss"]
    with ExitStack() as unless_built:
        unless_built.callback(run_folder.remove_unused, folder, keep=named)
        changes: list[str] = []
        if config.resume:
            config, changes = resumed_config(config, overrides)
            overrides = [word for word in overrides if not word.startswith("resume=")]
        this = build.build(
            config,
            folder=folder,
            overrides=overrides,
            console=console,
            resume=resume,
        )
        unless_built.pop_all()
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
