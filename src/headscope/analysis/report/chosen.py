"""What a person chose to compare: heads by their names, checkpoints by their paths."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from headscope.checkpoint import Checkpoint
from headscope.errors import UserError

Head = tuple[int, int]

OF_A_RUN = ("model", "data", "seed", "init_from")
"""What does not change in a run, of its configuration."""


def pair_named(names: Sequence[str], loaded: Checkpoint) -> tuple[Head, Head]:
    """Two heads of a model. Raises UserError when they are not two, or it has none such."""
    if len(set(map(str, names))) != 2 or len(names) != 2:
        raise UserError(f"difference={names} must be two heads, as [L3H2,L0H1]")
    return head_named(str(names[0]), loaded), head_named(str(names[1]), loaded)


def head_named(name: str, loaded: Checkpoint) -> Head:
    """The layer and the head that L0H1 means. Raises UserError when the model has none such."""
    layers, heads = len(loaded.model.attentions), loaded.model.attentions[0].heads
    found = re.fullmatch(r"L(\d+)H(\d+)", name)
    if not found or int(found[1]) >= layers or int(found[2]) >= heads:
        raise UserError(
            f"difference=: {name} is no head of this model, which has L0H0 to "
            f"L{layers - 1}H{heads - 1}"
        )
    return int(found[1]), int(found[2])


def check_other(loaded: Checkpoint, other: Checkpoint) -> None:
    """Raises UserError when the two do not read a text as the same tokens."""
    if other.tokenizer.state() != loaded.tokenizer.state():
        raise UserError(
            f"other={other.path} has another vocabulary: its maps would be of other tokens"
        )


def check_one_run(checkpoints: Sequence[Checkpoint], loaded: Checkpoint) -> None:
    """Raises UserError when these cannot be moments of the run that `loaded` is of."""
    for one in checkpoints:
        same = all(getattr(one.config, key) == getattr(loaded.config, key) for key in OF_A_RUN)
        if not same or one.tokenizer.state() != loaded.tokenizer.state():
            raise UserError(f"checkpoints=: {one.path} and {loaded.path} are not of one run")
    steps = [one.step for one in checkpoints]
    for one in checkpoints:
        if steps.count(one.step) > 1:
            raise UserError(f"checkpoints=: two are of step {one.step:,}, one is {one.path}")


def kept(paths: Iterable[str]) -> list[Path]:
    """Files as they are; of a run's folder, or its checkpoints', all that it kept, `step_*.ckpt`.

    Raises UserError when there are none.
    """
    found: list[Path] = []
    for name in paths:
        path = Path(name)
        if not name:
            raise UserError("checkpoints=: one of them is empty")
        if not path.exists():
            raise UserError(f"checkpoints=: {path} does not exist")
        if path.is_dir():
            inside = sorted([*path.glob("checkpoints/step_*.ckpt"), *path.glob("step_*.ckpt")])
            if not inside:
                raise UserError(
                    f"checkpoints={path} kept none: train with callbacks.keep_steps=[0,100,300,850]"
                )
            found += inside
        else:
            found.append(path)
    return found
