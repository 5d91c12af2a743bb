"""Finds the heads and checkpoints that the keys `difference`, `other` and `checkpoints` select."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headscope.analysis.head_outputs import Head, parse_head
from headscope.checkpoint import find
from headscope.errors import UserError
from headscope.trained import TrainedModel, load

FIXED_KEYS = ("model", "data", "seed", "init_from")
"""Parts of the configuration that are the same in all checkpoints of a run."""


@dataclass(frozen=True)
class Selection:
    """The checkpoint of a report, those of the same run at other steps, and another one to compare
    with."""

    loaded: TrainedModel
    history: list[TrainedModel]
    other: TrainedModel | None


def select(
    checkpoint: str | None, checkpoints: Sequence[str], other: str | None, device: torch.device
) -> Selection:
    """Loads what the keys of a report with these names select. Raises UserError if something cannot
    be loaded, or does not belong together."""
    history = [load(file, device=device) for file in checkpoint_files(checkpoints)]
    history.sort(key=lambda stored: stored.step)
    newest = history[-1] if history and checkpoint is None else None
    loaded = newest or load(find(checkpoint), device=device)
    check_one_run(history, loaded)
    compared = load(find(other, key="other"), device=device) if other else None
    if compared:
        check_other(loaded, compared)
    return Selection(loaded, history, compared)


def parse_head_pair(names: Sequence[str], loaded: TrainedModel) -> tuple[Head, Head]:
    """Parse the names of two heads. Raises UserError if they are not two different heads of the
    model."""
    if len(set(map(str, names))) != 2 or len(names) != 2:
        raise UserError(f"difference={names} must name two heads, such as [L3H2,L0H1]")
    first, second = (parse_head(name, loaded.model, key="difference=") for name in names)
    return first, second


def check_other(loaded: TrainedModel, other: TrainedModel) -> None:
    """Raises UserError if the two checkpoints have different tokenizers."""
    if other.tokenizer.state() != loaded.tokenizer.state():
        raise UserError(
            f"other={other.path} has another vocabulary, so its maps are of other tokens: choose a "
            "checkpoint with the same tokenizer"
        )


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
