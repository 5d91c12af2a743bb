"""A training state that does not fit the run is refused before Lightning restores it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import opened, save
from running import SMALL, Script

from headscope.checkpoint import read
from headscope.errors import UserError
from headscope.training import build
from headscope.training.checkpoint_io import AtomicCheckpointIO
from headscope.training.resume import check_training_state


def node_of(stored: dict[str, Any], place: str) -> tuple[Any, str]:
    *path, last = place.split("/")
    for key in path:
        stored = stored[key]
    return stored, last


def replace(place: str, value: Any):
    """A function that sets an entry of a checkpoint, such as "training/threads"."""

    def change(stored: dict[str, Any]) -> None:
        node, last = node_of(stored, place)
        node[last] = value

    return change


def remove(place: str):
    """A function that removes an entry of a checkpoint."""

    def change(stored: dict[str, Any]) -> None:
        node, last = node_of(stored, place)
        del node[last]

    return change


CALLBACKS = "training/callbacks"
STATE = "tensors/optimizer.norm.weight"
CHANGES = {
    "training is text": replace("training", "x"),
    "a callback is empty": replace(f"{CALLBACKS}/Clock", {}),
    "the best loss is text": replace(f"{CALLBACKS}/CheckpointSaver/best_val_loss", "low"),
    "the sum of losses is text": replace("training/running_loss/sum", "0"),
    "no state of the optimizer": lambda stored: [
        stored["tensors"].pop(name)
        for name in [*stored["tensors"]]
        if name.startswith("optimizer.")
    ],
    "a negative number of losses": replace("training/running_loss/count", -1),
    "no threads": remove("training/threads"),
    "state of a parameter that does not exist": replace(
        "tensors/optimizer.x.exp_avg", torch.ones(3)
    ),
    "no second moments": remove(f"{STATE}.exp_avg_sq"),
    "moments of another shape": replace(f"{STATE}.exp_avg", torch.zeros(3)),
    "moments are not finite": replace(f"{STATE}.exp_avg", torch.full((32,), torch.nan)),
}


def test_a_training_state_that_does_not_fit_is_refused(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=2", "trainer.val_batch_size=256"]
    said = script("train", *words, "callbacks.heads.every_steps=0", "hydra.run.dir=outputs/r")
    assert said.code == 0, said.err
    Path("outputs/r/checkpoints/best.safetensors").unlink()
    last = Path("outputs/r/checkpoints/last.safetensors")
    stored = opened(last)
    weights = {
        "an additional weight": replace("tensors/model.x", torch.zeros(3)),
        "a missing weight": remove("tensors/model.norm.weight"),
        "a weight of another shape": replace("tensors/model.norm.weight", torch.zeros(3)),
    }
    for name in (*weights, "no second moments"):
        changed = {**copy.deepcopy(stored)}
        (weights | CHANGES)[name](changed)
        save(changed, last)
        before = last.read_bytes()
        said = script("train", "resume=outputs/r", "trainer.max_steps=4")
        assert said.code == 1, name
        assert said.err.splitlines()[-1].startswith("Error: "), (name, said.err)
        assert last.read_bytes() == before

    save(stored, last)
    run_parts: list[Any] = []

    def recorded(stored: Any, *parts: Any) -> None:
        run_parts.extend(parts)
        check_training_state(stored, *parts)

    monkeypatch.setattr(build, "check_training_state", recorded)
    said = script("train", "resume=outputs/r", "trainer.max_steps=4")
    assert said.code == 0, said.err
    save(stored, last)
    check_training_state(read(last), *run_parts)
    entries = {"state_dict": {}, "optimizer_states": [{}], "global_step": 9}
    save(stored | {"training": stored["training"] | entries}, last)
    assert AtomicCheckpointIO().load_checkpoint(last)["global_step"] == stored["step"]
    for change in CHANGES.values():
        changed = copy.deepcopy(stored)
        change(changed)
        save(changed, last)
        with pytest.raises(UserError, match=r"last\.safetensors cannot be resumed: its "):
            check_training_state(read(last), *run_parts)
