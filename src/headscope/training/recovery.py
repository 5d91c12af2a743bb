"""Which checkpoint a run continues from, when files of it are damaged or missing."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.checkpoint.file import read
from headscope.errors import UserError
from headscope.files import read_json

TRAINING_STATE = {"loops": dict, "callbacks": dict, "optimizer_states": list, "lr_schedulers": list}
"""What Lightning writes for a resume, beside the weights."""


@dataclass(frozen=True)
class Recovered:
    """A checkpoint to resume from: its file and raw content. `notice` is a line for the user when
    it is not the run's last.ckpt."""

    path: Path
    content: dict[str, Any]
    notice: str | None = None

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.path.parent.parent

    @property
    def step(self) -> int:
        return self.content["global_step"]


def newest_checkpoint(folder: Path) -> Recovered:
    """The run's last.ckpt or, when that is damaged or missing, its best.ckpt.

    Raises UserError when `folder` is not a run, or neither can be resumed from.
    """
    last, best = (folder / "checkpoints" / f"{name}.ckpt" for name in ("last", "best"))
    if not last.exists() and not best.exists():
        what = "is not a run" if folder.exists() else "does not exist"
        raise UserError(
            f"resume={folder} {what}: there is no {last}; name the folder of a run, such as "
            "outputs/gpt_..."
        )
    try:
        return Recovered(last, _resumable(last))
    except UserError as error:
        reason = str(error)
    try:
        content = _resumable(best)
    except UserError as error:
        more = f"; {error}" if best.exists() else ""
        raise UserError(f"resume={folder}: {reason}{more}") from error
    found = Recovered(best, content)
    notice = f"{reason}. Continuing from {best} at step {found.step:,}: {_lost(folder, found.step)}"
    return Recovered(best, content, notice)


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary.json of a finished run. None when the file is missing or damaged: the run then
    counts as not finished, and to resume it writes the file again."""
    found = read_json(folder / "summary.json")
    keys = ("val_loss", "val_bits_per_byte", "train_seconds", "steps")
    whole = isinstance(found, dict) and all(type(found.get(key)) in (int, float) for key in keys)
    return found if whole else None


def how_to_continue(folder: Path, rates: dict[str, float]) -> str:
    """What to do after training diverged: a command that continues at half of the learning rates,
    which are given by key.

    The checkpoint that it names has been read and verified.
    """
    words = [f"{key}={rate / 2:g}" for key, rate in rates.items()]
    lower = " ".join(words)
    try:
        found = newest_checkpoint(folder)
    except UserError:
        return f"there is no checkpoint to continue from; start again, for example with {lower}"
    command = shlex.join(["python", "scripts/train.py", f"resume={folder}", *words])
    return f"the newest checkpoint is of step {found.step:,}; to continue from it: {command}"


def _resumable(path: Path) -> dict[str, Any]:
    content = read(path)
    if "optimizer_states" not in content:
        raise UserError(
            f"{path} holds weights alone, as kept steps do; start a new run with init_from={path}"
        )
    for key, kind in TRAINING_STATE.items():
        if not isinstance(content.get(key), kind):
            raise UserError(f"{path} cannot be resumed: its {key} is missing, or of another type")
    return content


def _lost(folder: Path, step: int) -> str:
    """How many steps are trained again. A damaged checkpoint cannot say at which step it was saved;
    the run's TensorBoard log says which step was reached."""
    logged = max(_logged_steps(folder / "tensorboard"), default=None)
    if logged is None:
        return "how many steps are lost is not known, as the run has no TensorBoard log"
    if logged <= step:
        return "the run's TensorBoard log has no later step"
    return f"the run's TensorBoard log reaches step {logged:,}; {logged - step:,} steps are lost"


def _logged_steps(folder: Path) -> Iterator[int]:
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for file in folder.glob("events.out.tfevents.*"):
        if file.is_file():  # not a pipe
            try:
                for event in EventFileLoader(str(file)).Load():
                    if any(value.tag == "train/loss" for value in event.summary.value):
                        yield event.step
            except DecodeError:
                continue  # what comes before the damage counts
