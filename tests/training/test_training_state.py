"""A training state that does not fit the run is refused before Lightning restores it."""

import copy
from pathlib import Path
from typing import Any

import torch
from checkpoint_files import opened, save
from composing import training_config
from refusals import refused
from rich.console import Console
from running import SMALL

import headscope
from headscope.training.build import build
from headscope.training.module import LanguageModel
from headscope.training.resume import newest_checkpoint
from headscope.training.run import fit

REMOVED = object()
CALLBACKS, MODULE = "training/callbacks", "training/language_model"
STATE = "tensors/optimizer.norm.weight"
CHANGES = [
    ("training", "x"),
    (CALLBACKS, "x"),
    (f"{CALLBACKS}/CheckpointSaver", {"x": 1}),
    (f"{CALLBACKS}/CheckpointSaver/best_val_loss", "low"),
    (f"{CALLBACKS}/CheckpointSaver/logged", [5]),
    (f"{CALLBACKS}/EarlyStopping", 5),
    *((f"{MODULE}/running_loss", wrong) for wrong in (0, ["x"])),
    (f"{MODULE}/running_count", "x"),
    (f"{MODULE}/threads", REMOVED),
    ("training/loops", {}),
    ("training/loops/epoch_loop.manual_optimization.optim_step_progress/total/completed", 1),
    ("tensors/optimizer.", REMOVED),
    ("tensors/optimizer.x.exp_avg", torch.ones(3)),
    (f"{STATE}.exp_avg_sq", REMOVED),
    (f"{STATE}.exp_avg", torch.zeros(3)),
    ("tensors/model.x", torch.zeros(3)),
    ("tensors/model.norm.weight", REMOVED),
    ("tensors/model.norm.weight", torch.zeros(3)),
]
"""Entries of a checkpoint, and wrong values for them."""


def changed(stored: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A copy of a checkpoint with another value for an entry. Without an entry, if it is removed:
    without all entries that begin like it."""
    copied = node = copy.deepcopy(stored)
    *path, last = place.split("/")
    for key in path:
        node = node[key]
    if value is not REMOVED:
        node[last] = value
    for key in [key for key in node if value is REMOVED and key.startswith(last)]:
        del node[key]
    return copied


def test_a_training_state_that_does_not_fit_is_refused_and_each_step_starts_without_gradients(
    speeches, monkeypatch
):
    words = [*SMALL, f"data.path={speeches}", "trainer.val_batch_size=256", "callbacks=plain"]
    words += ["trainer.accumulate=2"]
    backward, had_gradients = LanguageModel.manual_backward, []

    def recorded(module, loss):
        had_gradients.append({each.grad is not None for each in module.model.parameters()})
        backward(module, loss)

    monkeypatch.setattr(LanguageModel, "manual_backward", recorded)
    headscope.train([*words, "trainer.max_steps=2", "hydra.run.dir=outputs/r"])
    assert had_gradients == [{False}, {True}] * 2
    Path("outputs/r/checkpoints/best.safetensors").unlink()
    last = Path("outputs/r/checkpoints/last.safetensors")
    stored = opened(last)
    config = training_config("data=text", *words, "~logger", "trainer.max_steps=4")
    for change in CHANGES:
        save(changed(stored, *change), last)
        before = last.read_bytes()
        with refused():
            resume = newest_checkpoint(Path("outputs/r"))
            console = Console(quiet=True)
            fit(build(config, folder=Path("outputs/r"), console=console, resume=resume))
        assert last.read_bytes() == before
    # Entries of Lightning's own checkpoint mean nothing.
    entries = {"state_dict": {}, "optimizer_states": [{}], "global_step": 9}
    save(stored | {"training": stored["training"] | entries}, last)
    assert headscope.train(["resume=outputs/r", "trainer.max_steps=4"]).summary["steps"] == 4
