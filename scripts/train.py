"""Train a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

import shutil
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from headscope import command_line
from headscope.resume import resume_arguments, resumed_config


def train(config: DictConfig) -> float:
    """Train what `config` describes in Hydra's run folder; returns the final validation loss."""
    # Heavy, and not needed for --help or a misspelt key.
    from rich.console import Console

    from headscope import build, report, run
    from headscope.callbacks.saving import Interrupted

    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    overrides = list(hydra.overrides.task)
    console = Console()
    resume = bool(config.resume)
    try:
        if resume:
            config, changes = resumed_config(config, overrides)
            overrides = [word for word in overrides if not word.startswith("resume=")]
        this = build.build(
            config, folder=folder, overrides=overrides, console=console, resume=resume
        )
    except BaseException:
        _remove_unused(folder)
        raise
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


def _remove_unused(folder: Path) -> None:
    """A run that could not be built leaves no folder behind."""
    if {entry.name for entry in folder.iterdir()} <= {".hydra"}:
        shutil.rmtree(folder)


if __name__ == "__main__":
    command_line.run(train, "train", prepare=resume_arguments)
