"""The law of a resumed run: its training state is one that it could have saved, or it is refused in
one line before Lightning restores anything."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from running import SMALL, Script

from headscope.errors import UserError
from headscope.training import build
from headscope.training.training_state import check_training_state


def replace(place: str, value: Any):
    """Puts `value` at a place in a checkpoint, such as "callbacks.Clock.train_seconds"."""

    def change(stored: dict[str, Any]) -> None:
        *path, last = place.split("/")
        node: Any = stored
        for key in path:
            node = node[int(key) if key.isdigit() else key]
        node[int(last) if last.isdigit() else last] = value

    return change


def remove(place: str):
    def change(stored: dict[str, Any]) -> None:
        *path, last = place.split("/")
        node: Any = stored
        for key in path:
            node = node[int(key) if key.isdigit() else key]
        del node[int(last) if last.isdigit() else last]

    return change


FIT = "loops/fit_loop"
STEPS = f"{FIT}/epoch_loop.automatic_optimization.optim_progress/optimizer/step/total/completed"
OPTIMIZERS = "optimizer_states/0/optimizers"
CHANGES = {
    "no version of Lightning": remove("pytorch-lightning_version"),
    "an old version of Lightning": replace("pytorch-lightning_version", "0.8.1"),
    "a version that is none": replace("pytorch-lightning_version", "two"),
    "a version that is a number": replace("pytorch-lightning_version", 2.6),
    "no loops": remove("loops"),
    "loops are a list": replace("loops", []),
    "no fit loop": remove(FIT),
    "no progress": remove(f"{FIT}/epoch_progress"),
    "progress of text": replace(f"{FIT}/epoch_progress/current/ready", "1"),
    "progress below zero": replace(f"{FIT}/epoch_progress/current/ready", -1),
    "other steps than it says": replace(STEPS, 10**9),
    "callbacks are a number": replace("callbacks", 3),
    "a callback is a list": replace("callbacks/Clock", []),
    "a callback is empty": replace("callbacks/Clock", {}),
    "seconds of text": replace("callbacks/Clock/train_seconds", "fast"),
    "a best loss of None": replace("callbacks/CheckpointSaver/best_val_loss", None),
    "a sum of losses without a fraction": replace("running_loss/sum", 0),
    "fewer losses than none": replace("running_loss/count", -1),
    "no lr_schedulers": remove("lr_schedulers"),
    "lr_schedulers of None": replace("lr_schedulers", None),
    "no optimizer": replace("optimizer_states", []),
    "an optimizer of None": replace("optimizer_states", [None]),
    "optimizers of text": replace(OPTIMIZERS, "ab"),
    "one optimizer too few": remove(f"{OPTIMIZERS}/1"),
    "no groups": remove(f"{OPTIMIZERS}/0/param_groups"),
    "a group too few": replace(f"{OPTIMIZERS}/1/param_groups", []),
    "other parameters": replace(f"{OPTIMIZERS}/0/param_groups/0/params", [0] * 10**5),
    "no state": remove(f"{OPTIMIZERS}/0/state"),
    "state of a parameter that is none": replace(f"{OPTIMIZERS}/0/state/9999", {}),
    "state of None": replace(f"{OPTIMIZERS}/0/state/0", None),
    "no moments": replace(f"{OPTIMIZERS}/1/state/0", {"step": torch.tensor(3.0)}),
    "moments of another shape": replace(f"{OPTIMIZERS}/1/state/0/exp_avg", torch.zeros(3)),
    "moments that are no tensor": replace(f"{OPTIMIZERS}/1/state/0/exp_avg", 0.5),
    "moments that are not finite": replace(
        f"{OPTIMIZERS}/0/state/0/momentum_buffer", torch.full((96, 32), torch.nan)
    ),
    "a weight too many": replace("state_dict/x", torch.zeros(3)),
    "a weight too few": remove("state_dict/model.norm.weight"),
    "a weight of another shape": replace("state_dict/model.norm.weight", torch.zeros(3)),
}


SEEN_BEFORE = ("callbacks are a number", "no loops", "no optimizer", "lr_schedulers of None")
"""These are refused before the others are looked at."""


def test_a_training_state_that_does_not_fit_is_refused(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=2", "trainer.val_batch_size=256"]
    said = script("train", *words, "callbacks.heads.every_steps=0", "hydra.run.dir=outputs/r")
    assert said.code == 0, said.err
    Path("outputs/r/checkpoints/best.ckpt").unlink()
    last = Path("outputs/r/checkpoints/last.ckpt")
    stored = torch.load(last, weights_only=True)
    for name in (*SEEN_BEFORE, "no moments"):
        changed = copy.deepcopy(stored)
        CHANGES[name](changed)
        torch.save(changed, last)
        before = last.read_bytes()
        said = script("train", "resume=outputs/r", "trainer.max_steps=4")
        assert said.code == 1, name
        assert said.err.splitlines()[-1].startswith("Error: "), (name, said.err)
        assert "last.ckpt" in said.err, (name, said.err)
        assert last.read_bytes() == before

    torch.save(stored, last)
    into: dict[str, Any] = {}

    def recorded(content: dict[str, Any], **parts: Any) -> None:
        into.update(parts)
        check_training_state(content, **parts)

    monkeypatch.setattr(build, "check_training_state", recorded)
    said = script("train", "resume=outputs/r", "trainer.max_steps=4")
    assert said.code == 0, said.err
    check_training_state(stored, **into)
    for name, change in CHANGES.items():
        if name not in SEEN_BEFORE:
            changed = copy.deepcopy(stored)
            change(changed)
            with pytest.raises(UserError, match=r"last\.ckpt cannot be resumed: its "):
                check_training_state(changed, **into)
