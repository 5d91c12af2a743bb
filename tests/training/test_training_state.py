"""A training state that does not fit the run is refused before Lightning restores it."""

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
    """A function that sets an entry of a checkpoint, such as "callbacks/Clock/train_seconds"."""

    def change(stored: dict[str, Any]) -> None:
        *path, last = place.split("/")
        node: Any = stored
        for key in path:
            node = node[int(key) if key.isdigit() else key]
        node[int(last) if last.isdigit() else last] = value

    return change


def remove(place: str):
    """A function that removes an entry of a checkpoint."""

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
    "a version that is no version": replace("pytorch-lightning_version", "two"),
    "a version that is a number": replace("pytorch-lightning_version", 2.6),
    "no loops": remove("loops"),
    "loops are a list": replace("loops", []),
    "no fit loop": remove(FIT),
    "no progress": remove(f"{FIT}/epoch_progress"),
    "progress is text": replace(f"{FIT}/epoch_progress/current/ready", "1"),
    "progress below zero": replace(f"{FIT}/epoch_progress/current/ready", -1),
    "a number of steps that differs from global_step": replace(STEPS, 10**9),
    "callbacks are a number": replace("callbacks", 3),
    "a callback is a list": replace("callbacks/Clock", []),
    "a callback is empty": replace("callbacks/Clock", {}),
    "seconds are text": replace("callbacks/Clock/train_seconds", "fast"),
    "the best loss is None": replace("callbacks/CheckpointSaver/best_val_loss", None),
    "the sum of losses is an integer": replace("running_loss/sum", 0),
    "a negative number of losses": replace("running_loss/count", -1),
    "no lr_schedulers": remove("lr_schedulers"),
    "lr_schedulers are None": replace("lr_schedulers", None),
    "no optimizer": replace("optimizer_states", []),
    "an optimizer is None": replace("optimizer_states", [None]),
    "optimizers are text": replace(OPTIMIZERS, "ab"),
    "a missing optimizer": remove(f"{OPTIMIZERS}/1"),
    "no groups": remove(f"{OPTIMIZERS}/0/param_groups"),
    "a missing group": replace(f"{OPTIMIZERS}/1/param_groups", []),
    "other parameters": replace(f"{OPTIMIZERS}/0/param_groups/0/params", [0] * 10**5),
    "no state": remove(f"{OPTIMIZERS}/0/state"),
    "state of a parameter that does not exist": replace(f"{OPTIMIZERS}/0/state/9999", {}),
    "state is None": replace(f"{OPTIMIZERS}/0/state/0", None),
    "no moments": replace(f"{OPTIMIZERS}/1/state/0", {"step": torch.tensor(3.0)}),
    "moments of another shape": replace(f"{OPTIMIZERS}/1/state/0/exp_avg", torch.zeros(3)),
    "moments are not a tensor": replace(f"{OPTIMIZERS}/1/state/0/exp_avg", 0.5),
    "moments are not finite": replace(
        f"{OPTIMIZERS}/0/state/0/momentum_buffer", torch.full((96, 32), torch.nan)
    ),
    "an additional weight": replace("state_dict/x", torch.zeros(3)),
    "a missing weight": remove("state_dict/model.norm.weight"),
    "a weight of another shape": replace("state_dict/model.norm.weight", torch.zeros(3)),
}


TESTED_WITH_TRAIN = ("callbacks are a number", "no loops", "no optimizer", "lr_schedulers are None")
"""Changes that are tested with train.py, which may refuse them before `check_training_state`."""


def test_a_training_state_that_does_not_fit_is_refused(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=2", "trainer.val_batch_size=256"]
    said = script("train", *words, "callbacks.heads.every_steps=0", "hydra.run.dir=outputs/r")
    assert said.code == 0, said.err
    Path("outputs/r/checkpoints/best.ckpt").unlink()
    last = Path("outputs/r/checkpoints/last.ckpt")
    stored = torch.load(last, weights_only=True)
    for name in (*TESTED_WITH_TRAIN, "no moments"):
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
    run_parts: dict[str, Any] = {}

    def recorded(content: dict[str, Any], **parts: Any) -> None:
        run_parts.update(parts)
        check_training_state(content, **parts)

    monkeypatch.setattr(build, "check_training_state", recorded)
    said = script("train", "resume=outputs/r", "trainer.max_steps=4")
    assert said.code == 0, said.err
    check_training_state(stored, **run_parts)
    for name, change in CHANGES.items():
        if name not in TESTED_WITH_TRAIN:
            changed = copy.deepcopy(stored)
            change(changed)
            with pytest.raises(UserError, match=r"last\.ckpt cannot be resumed: its "):
                check_training_state(changed, **run_parts)
