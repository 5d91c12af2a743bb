"""Checks of a checkpoint's training state, before Lightning restores it.

Lightning takes loops, callbacks and optimizers as they are in the file: a wrong type shows as an
exception far from its cause, or as a wrong step. What may be restored is what this run itself would
save.
"""

import math
import re
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from headscope.checkpoint.file import is_finite
from headscope.errors import UserError
from headscope.training.muon import Muon
from headscope.training.optimizer import CombinedOptimizer

VERSION = re.compile(r"[2-9]\.\d{1,3}\.\d{1,3}((\.dev|\.post|rc)\d{1,10})?")
"""Of Lightning. Older ones never wrote a checkpoint of headscope."""

STATE_KEYS: dict[type, set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    Muon: {"momentum_buffer"},
}
"""What an optimizer keeps for each parameter."""


def check_training_state(
    content: dict[str, Any],
    *,
    path: Path,
    module: LightningModule,
    trainer: Trainer,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Raises UserError when Lightning could not restore the run from `content`, or not rightly.

    `module`, `trainer` and `optimizer` are those that it would be restored into; they stay as they
    are.
    """
    try:
        if not VERSION.fullmatch(str(content.get("pytorch-lightning_version"))):
            raise Mismatch("pytorch-lightning_version")
        check_weights(content["state_dict"], module.state_dict())
        check_alike(content.get("loops"), {"fit_loop": trainer.fit_loop.state_dict()}, "loops")
        steps = content["loops"]["fit_loop"]["epoch_loop.automatic_optimization.optim_progress"]
        if steps["optimizer"]["step"]["total"]["completed"] != content["global_step"]:
            raise Mismatch("global_step")
        callbacks = content.get("callbacks")
        if not isinstance(callbacks, dict):
            raise Mismatch("callbacks")
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set, but not declared
            if callback.state_key in callbacks:
                key = callback.state_key
                check_alike(callbacks[key], callback.state_dict(), f"callbacks.{key}")
        check_alike(content.get("lr_schedulers"), [], "lr_schedulers")
        check_alike(content.get("running_loss"), {"sum": 0.0, "count": 0}, "running_loss")
        check_alike(content.get("threads"), 1, "threads")
        running = content["running_loss"]
        if type(running["sum"]) is not float or not math.isfinite(running["sum"]):
            raise Mismatch("running_loss.sum")
        if running["count"] < 0:
            raise Mismatch("running_loss.count")
        states = content.get("optimizer_states")
        if not isinstance(states, list) or len(states) != 1:
            raise Mismatch("optimizer_states")
        check_optimizer(states[0], optimizer)
    except Mismatch as error:
        raise UserError(
            f"{path} cannot be resumed: its {error} is not what this run would have saved"
        ) from error


class Mismatch(Exception):
    """The message is the place in the checkpoint."""


def check_alike(value: Any, template: Any, where: str) -> None:
    """Raises Mismatch unless `value` has the keys, lengths, types and shapes of `template`. More
    keys are let through; where the template has None, anything that is no container is."""
    if isinstance(template, dict):
        if not isinstance(value, dict):
            raise Mismatch(where)
        for key, part in template.items():
            if key not in value:
                raise Mismatch(f"{where}.{key}")
            check_alike(value[key], part, f"{where}.{key}")
    elif isinstance(template, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(template):
            raise Mismatch(where)
        for number, part in enumerate(template):
            check_alike(value[number], part, f"{where}.{number}")
    elif isinstance(template, torch.Tensor):
        if not isinstance(value, torch.Tensor) or value.shape != template.shape:
            raise Mismatch(where)
    elif type(template) is float:
        if type(value) not in (int, float):
            raise Mismatch(where)
    elif type(template) is int:
        if type(value) is not int or value < 0:
            raise Mismatch(where)
    elif template is None:
        if isinstance(value, dict | list | tuple | torch.Tensor):
            raise Mismatch(where)
    elif type(value) is not type(template):
        raise Mismatch(where)


def check_weights(weights: dict[str, Any], own: dict[str, Any]) -> None:
    for name in own.keys() ^ weights.keys():
        raise Mismatch(f"state_dict.{name[:80]}")
    for name, weight in own.items():
        if weights[name].shape != weight.shape or not weights[name].is_floating_point():
            raise Mismatch(f"state_dict.{name}")


def check_optimizer(state: Any, optimizer: torch.optim.Optimizer) -> None:
    """Raises Mismatch unless `state` is one that `optimizer` can load."""
    if isinstance(optimizer, CombinedOptimizer):
        parts = state.get("optimizers") if isinstance(state, dict) else None
        if not isinstance(parts, list) or len(parts) != len(optimizer.optimizers):
            raise Mismatch("optimizer_states")
        for part, each in zip(parts, optimizer.optimizers, strict=True):
            check_optimizer(part, each)
        return
    own = optimizer.state_dict()["param_groups"]
    groups = state.get("param_groups") if isinstance(state, dict) else None
    if not isinstance(groups, list) or len(groups) != len(own):
        raise Mismatch("optimizer_states.param_groups")
    for group, template in zip(groups, own, strict=True):
        if not isinstance(group, dict) or group.get("params") != template["params"]:
            raise Mismatch("optimizer_states.param_groups")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    of_parameters = state.get("state")
    if not isinstance(of_parameters, dict):
        raise Mismatch("optimizer_states.state")
    for number, kept in of_parameters.items():
        where = f"optimizer_states.state.{str(number)[:80]}"
        if type(number) is not int or not 0 <= number < len(parameters):
            raise Mismatch(where)
        if not isinstance(kept, dict) or kept.keys() != STATE_KEYS[type(optimizer)]:
            raise Mismatch(where)
        for key, tensor in kept.items():
            shape = () if key == "step" else parameters[number].shape
            if not isinstance(tensor, torch.Tensor) or tensor.shape != shape:
                raise Mismatch(f"{where}.{key}")
            if not tensor.is_floating_point() or not is_finite(tensor):
                raise Mismatch(f"{where}.{key}")
