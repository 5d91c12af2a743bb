"""Train a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from headscope import command_line
from headscope.errors import UserError


def arguments(typed: list[str], quoted: list[str]) -> list[str]:
    """What to compose from: of a resumed run, its own words first."""
    from headscope.resume import resume_arguments

    name = command_line.value_of(typed, "name")
    if name and "/" in name:
        raise UserError(f"name={name} must be without a slash: it begins a folder of outputs/")
    weights = command_line.value_of(typed, "init_from")
    if weights and not command_line.value_of(typed, "resume"):
        from headscope.checkpoint import check_same_tokenizer

        check_same_tokenizer(weights, typed)
    return resume_arguments(typed, quoted)


def train(config: DictConfig) -> float:
    """Train what `config` describes in Hydra's run folder; returns the final validation loss."""
    # Heavy, and not needed for --help or a misspelt key.
    from rich.console import Console

    from headscope import build, report, run
    from headscope.callbacks.saving import Interrupted
    from headscope.resume import resumed_config

    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    overrides = list(hydra.overrides.task)
    console = Console()
    resume = bool(config.resume)
    named = any("run.dir=" in word for word in hydra.overrides.hydra)
    with ExitStack() as unless_built:
        unless_built.callback(_remove_unused, folder, keep=named)
        if resume:
            config, changes = resumed_config(config, overrides)
            overrides = [word for word in overrides if not word.startswith("resume=")]
        this = build.build(
            config, folder=folder, overrides=overrides, console=console, resume=resume
        )
        unless_built.pop_all()
    report.describe(this)
    if resume:
        report.describe_resume(this, changes)
    try:
        summary = run.fit(this)
    except Interrupted:
        console.print(
            f"Saved. To go on: {report.how_to_resume(folder)}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
        sys.exit(130)
    report.conclude(this, summary)
    return summary["val_loss"]


def _remove_unused(folder: Path, *, keep: bool) -> None:
    """A run that could not be built leaves nothing behind; a folder that the user named stays."""
    if {entry.name for entry in folder.iterdir()} == {".hydra"}:
        shutil.rmtree(folder / ".hydra" if keep else folder)


if __name__ == "__main__":
    command_line.run(train, "train", prepare=arguments)
