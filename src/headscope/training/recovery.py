"""Finds the checkpoint from which a run can continue, even if some of its files are damaged."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headscope.checkpoint import Stored, read
from headscope.checkpoint.finding import without_checkpoint
from headscope.errors import UserError
from headscope.training.run_folder import CHECKPOINTS


@dataclass(frozen=True)
class ResumeCheckpoint:
    """A checkpoint to resume from. If it is not last.safetensors, `notice` explains the reason to
    the user."""

    stored: Stored
    notice: str | None = None

    @property
    def path(self) -> Path:
        return self.stored.path

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.path.parent.parent

    @property
    def step(self) -> int:
        return self.stored.step


def newest_checkpoint(folder: Path) -> ResumeCheckpoint:
    """The run's last.safetensors, or its best.safetensors if the former is damaged or missing.

    Raises UserError if `folder` is not a run folder, or if the run cannot be resumed from either
    checkpoint.
    """
    last, best = (folder / "checkpoints" / name for name in CHECKPOINTS)
    if not last.exists() and not best.exists():
        raise UserError(
            f"resume={folder} {without_checkpoint(folder)}; give the folder of a run, such as "
            "outputs/gpt_..."
        )
    try:
        return ResumeCheckpoint(_resumable(last))
    except UserError as error:
        reason = str(error)
    try:
        stored = _resumable(best)
    except UserError as error:
        more = f"; {error}" if best.exists() else ""
        raise UserError(f"resume={folder}: {reason}{more}") from error
    lost = _lost_steps(folder, stored.step)
    notice = f"{reason}. Continuing from {best} at step {stored.step:,}: {lost}"
    return ResumeCheckpoint(stored, notice)


def how_to_continue(folder: Path, rates: dict[str, float]) -> str:
    """Advice for the user after training has diverged: a command that continues with half the
    learning rates. `rates` maps the key of each learning rate to its current value.

    If there is no valid checkpoint, the advice is to start again.
    """
    words = [f"{key}={rate / 2:g}" for key, rate in rates.items()]
    try:
        newest = newest_checkpoint(folder)
    except UserError:
        return "there is no checkpoint to continue from; start again, for example with " + " ".join(
            words
        )
    command = shlex.join(["python", "scripts/train.py", f"resume={folder}", *words])
    return f"to continue from the newest checkpoint, at step {newest.step:,}: {command}"


def _resumable(path: Path) -> Stored:
    """Opens a checkpoint and verifies all of it. Raises UserError if a run cannot be resumed from
    this checkpoint."""
    stored = read(path)
    if not isinstance(stored.data.get("training"), dict):
        raise UserError(
            f"{path} cannot be resumed: it contains only weights, like a kept step, a copy without "
            f"optimizer state or an imported model; start a new run with init_from={path}"
        )
    stored.weights()
    stored.tensors("optimizer.")
    return stored


def _lost_steps(folder: Path, step: int) -> str:
    """A message that says how many steps after `step` are lost. Because the newer checkpoint is
    damaged, the last trained step is read from the run's TensorBoard log."""
    last = max(_logged_steps(folder / "tensorboard"), default=None)
    if last is None:
        return "the number of lost steps is unknown, because the run has no TensorBoard log"
    if last <= step:
        return "the run's TensorBoard log has no later step"
    return f"the run's TensorBoard log ends at step {last:,}; {last - step:,} steps are lost"


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
                continue  # the file is damaged here; the steps before this are valid
