"""Train a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from headscope import command_line


def arguments(typed: list[str], quoted: list[str]) -> list[str]:
    """What to compose from: of a resumed run, its own words first."""
    from headscope.resume import resume_arguments

    command_line.check_name(typed)
    weights = command_line.value_of(typed, "init_from")
    if weights and not command_line.value_of(typed, "resume"):
        from headscope.checkpoint import check_same_tokenizer

        check_same_tokenizer(weights, typed)
    return resume_arguments(typed, quoted)


def train(composed: DictConfig) -> float:
    """Train what `composed` describes in Hydra's run folder; returns the final validation loss."""
    # Heavy, and not needed for --help or a misspelt key.
    from rich.console import Console

    from headscope import build, report, run
    from headscope.callbacks.saving import Interrupted
    from headscope.config import from_hydra
    from headscope.config.training import TrainConfig
    from headscope.resume import resumed_config, sources

    hydra = HydraConfig.get()
    console = Console()
    resume = composed.resume is not None
    folder = Path(composed.resume) if resume else command_line.run_folder()
    named = any("run.dir=" in word for word in hydra.overrides.hydra)
    with ExitStack() as unless_built:
        unless_built.callback(_remove_unused, folder, keep=named)
        if resume:
            plain: Any = OmegaConf.to_container(composed, resolve=True)
            config, changes = resumed_config(plain, folder, list(hydra.overrides.task))
            for line in sources(config):
                print(line, file=sys.stderr)
        else:
            config = from_hydra(TrainConfig, composed)
        this = build.build(config, folder=folder, console=console, resume=resume)
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
