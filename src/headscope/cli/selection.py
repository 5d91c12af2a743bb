"""Finds the checkpoints that the keys `checkpoint` and `checkpoints` select."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from headscope.errors import UserError
from headscope.trained import TrainedModel, load
from headscope.trained.checkpoint import find

FIXED_KEYS = ("model", "data", "seed", "init_from")
"""Parts of the configuration that are the same in all checkpoints of a run."""


def select(
    checkpoint: str | None, checkpoints: Sequence[str], device: torch.device
) -> tuple[TrainedModel, list[TrainedModel]]:
    """Loads the checkpoint of a report, and those of the same run at other steps, by step. Raises
    UserError if something cannot be loaded, or does not belong together."""
    history = [load(file, device=device) for file in checkpoint_files(checkpoints)]
    history.sort(key=lambda stored: stored.step)
    newest = history[-1] if history and checkpoint is None else None
    loaded = newest or load(find(checkpoint), device=device)
    check_one_run(history, loaded)
    return loaded, history


def check_one_run(checkpoints: Sequence[TrainedModel], loaded: TrainedModel) -> None:
    """Raises UserError if a checkpoint is not from the same run as `loaded`, or if two checkpoints
    are from the same step."""
    for one in checkpoints:
        same = all(getattr(one.config, key) == getattr(loaded.config, key) for key in FIXED_KEYS)
        if not same or one.tokenizer.state() != loaded.tokenizer.state():
            raise UserError(
                f"checkpoints= and checkpoint=: {one.path} and {loaded.path} are not from one run; "
                "choose checkpoints of the same run"
            )
    steps = [one.step for one in checkpoints]
    for one in checkpoints:
        if steps.count(one.step) > 1:
            raise UserError(
                f"checkpoints=: two files are from step {one.step:,}; leave out {one.path} or the "
                "other"
            )


def checkpoint_files(paths: Iterable[str]) -> list[Path]:
    """Find the checkpoint files for all `paths`. A path may be a checkpoint file, a run folder, or
    the `checkpoints` folder of a run. A folder stands for all its kept steps, `step_*.safetensors`.

    Raises UserError if a path does not exist, or if a folder has no stored steps.
    """
    files: list[Path] = []
    for name in paths:
        path = Path(name)
        if not name:
            raise UserError("checkpoints=: one of the paths is empty; name a file or a run folder")
        if not path.exists():
            raise UserError(f"checkpoints={path} does not exist: name a file or a run folder")
        if path.is_dir():
            steps = sorted(
                [*path.glob("checkpoints/step_*.safetensors"), *path.glob("step_*.safetensors")]
            )
            if not steps:
                raise UserError(
                    f"checkpoints={path} has no stored steps (step_*.safetensors): train with "
                    "callbacks.saving.keep_steps=[0,100,300,850]"
                )
            files += steps
        else:
            files.append(path)
    return files
