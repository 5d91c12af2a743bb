"""Checks the training state in a checkpoint before Lightning restores it.

Lightning restores the states of loops, callbacks and optimizers without checks. A wrong type would
raise an exception far from its cause, or make training continue at a wrong step. So the state must
have the same structure as the state that this run would save.
"""

import math
import re
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from headscope.checkpoint.file import is_finite
from headscope.errors import UserError
from headscope.training.callbacks.clock import callbacks_of
from headscope.training.muon import Muon
from headscope.training.optimizer import CombinedOptimizer

VERSION = re.compile(r"[2-9]\.\d{1,3}\.\d{1,3}((\.dev|\.post|rc)\d{1,10})?")
"""Versions of Lightning that a checkpoint may name. headscope has never used an older version."""

STATE_KEYS: dict[type, set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    Muon: {"momentum_buffer"},
}
"""For each optimizer, the keys of the state that it saves for each parameter."""


def check_training_state(
    content: dict[str, Any],
    *,
    path: Path,
    module: LightningModule,
    trainer: Trainer,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Raises UserError if the training state in a checkpoint does not fit this run.

    `content` is the content of the checkpoint file `path`. `module`, `trainer` and `optimizer`
    belong to this run and are not changed.
    """
    try:
        if not VERSION.fullmatch(str(content.get("pytorch-lightning_version"))):
            raise Mismatch("pytorch-lightning_version")
        check_weights(content["state_dict"], module.state_dict())
        check_structure(content.get("loops"), {"fit_loop": trainer.fit_loop.state_dict()}, "loops")
        steps = content["loops"]["fit_loop"]["epoch_loop.automatic_optimization.optim_progress"]
        if steps["optimizer"]["step"]["total"]["completed"] != content["global_step"]:
            raise Mismatch("global_step")
        callbacks = content.get("callbacks")
        if not isinstance(callbacks, dict):
            raise Mismatch("callbacks")
        for callback in callbacks_of(trainer):
            if callback.state_key in callbacks:
                key = callback.state_key
                check_structure(callbacks[key], callback.state_dict(), f"callbacks.{key}")
        check_structure(content.get("lr_schedulers"), [], "lr_schedulers")
        check_structure(content.get("running_loss"), {"sum": 0.0, "count": 0}, "running_loss")
        check_structure(content.get("threads"), 1, "threads")
        check_structure(content.get("processes", 1), 1, "processes")
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
            f"{path} cannot be resumed: its {error} does not fit this run; the file may be damaged "
            f"(a new run can start from its weights with init_from={path})"
        ) from error


class Mismatch(Exception):
    """Raised if an entry of the checkpoint does not fit the run. The message of the error is the
    key of this entry."""


def check_structure(value: Any, template: Any, where: str) -> None:
    """Raises Mismatch unless `value` has the keys, lengths, types and shapes of `template`.

    Additional keys are allowed. Where the template is None, a number, a text or None is allowed.
    `where` is the key of `value` in the checkpoint, for the error message.
    """
    if isinstance(template, dict):
        if not isinstance(value, dict):
            raise Mismatch(where)
        for key, part in template.items():
            if key not in value:
                raise Mismatch(f"{where}.{key}")
            check_structure(value[key], part, f"{where}.{key}")
    elif isinstance(template, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(template):
            raise Mismatch(where)
        for number, part in enumerate(template):
            check_structure(value[number], part, f"{where}.{number}")
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


def check_weights(weights: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raises Mismatch unless `weights` have the names and shapes of `expected`."""
    for name in expected.keys() ^ weights.keys():
        raise Mismatch(f"state_dict.{name[:80]}")
    for name, weight in expected.items():
        if weights[name].shape != weight.shape or not weights[name].is_floating_point():
            raise Mismatch(f"state_dict.{name}")


def check_optimizer(state: Any, optimizer: torch.optim.Optimizer) -> None:
    """Raises Mismatch unless `optimizer` can load `state`."""
    if isinstance(optimizer, CombinedOptimizer):
        parts = state.get("optimizers") if isinstance(state, dict) else None
        if not isinstance(parts, list) or len(parts) != len(optimizer.optimizers):
            raise Mismatch("optimizer_states")
        for part, each in zip(parts, optimizer.optimizers, strict=True):
            check_optimizer(part, each)
        return
    expected_groups = optimizer.state_dict()["param_groups"]
    groups = state.get("param_groups") if isinstance(state, dict) else None
    if not isinstance(groups, list) or len(groups) != len(expected_groups):
        raise Mismatch("optimizer_states.param_groups")
    for group, template in zip(groups, expected_groups, strict=True):
        if not isinstance(group, dict) or group.get("params") != template["params"]:
            raise Mismatch("optimizer_states.param_groups")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    parameter_states = state.get("state")
    if not isinstance(parameter_states, dict):
        raise Mismatch("optimizer_states.state")
    for number, tensors in parameter_states.items():
        where = f"optimizer_states.state.{str(number)[:80]}"
        if type(number) is not int or not 0 <= number < len(parameters):
            raise Mismatch(where)
        if not isinstance(tensors, dict) or tensors.keys() != STATE_KEYS[type(optimizer)]:
            raise Mismatch(where)
        for key, tensor in tensors.items():
            shape = () if key == "step" else parameters[number].shape
            if not isinstance(tensor, torch.Tensor) or tensor.shape != shape:
                raise Mismatch(f"{where}.{key}")
            if not tensor.is_floating_point() or not is_finite(tensor):
                raise Mismatch(f"{where}.{key}")
