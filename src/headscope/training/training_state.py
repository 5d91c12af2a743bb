"""Checks the training state in a checkpoint before Lightning restores it.

Lightning restores the states of loops and callbacks without checks. A wrong type would raise an
exception far from its cause, or make training continue at a wrong step. So the state must have the
same structure as the state that this run would save.
"""

import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor

from headscope.checkpoint import Stored
from headscope.checkpoint.file import is_finite
from headscope.errors import UserError
from headscope.training.callbacks.clock import callbacks_of
from headscope.training.optimizer import CombinedOptimizer


def check_training_state(stored: Stored, trainer: Trainer, optimizer: CombinedOptimizer) -> None:
    """Raises UserError if the training state of a checkpoint does not fit this run, to which
    `trainer` and `optimizer` belong."""
    try:
        state = stored.data.get("training")
        callbacks = {each.state_key: each.state_dict() for each in callbacks_of(trainer)}
        saved = state.get("callbacks") if isinstance(state, dict) else None
        if not isinstance(state, dict) or not isinstance(saved, dict):
            raise Mismatch("training")
        template = {
            "loops": {"fit_loop": trainer.fit_loop.state_dict()},
            # A callback that this run has, but the run before did not have, starts from nothing.
            "callbacks": {key: each for key, each in callbacks.items() if key in saved},
            "running_loss": {"sum": 0.0, "count": 0},
            "threads": 1,
            "processes": 1,
        }
        check_structure(state, template, "training")
        steps = state["loops"]["fit_loop"]["epoch_loop.automatic_optimization.optim_progress"]
        if steps["optimizer"]["step"]["total"]["completed"] != stored.step:
            raise Mismatch("step")
        check_optimizer(stored.tensors("optimizer."), optimizer)
    except Mismatch as error:
        raise UserError(
            f"{stored.path} cannot be resumed: its {error} does not fit this run; the file may be "
            f"damaged (a new run can start from its weights with init_from={stored.path})"
        ) from error


class Mismatch(Exception):
    """Raised if an entry of the checkpoint does not fit the run. The message of the error is the
    key of this entry."""


def check_structure(value: Any, template: Any, where: str) -> None:
    """Raises Mismatch unless `value` has the keys, lengths and types of `template`.

    Additional keys are allowed. A whole number must not be negative, a number must be finite. Where
    the template is None, a number or None is allowed. `where` is the key of `value` in the
    checkpoint, for the error message.
    """
    if isinstance(template, dict):
        for key, part in template.items():
            if not isinstance(value, dict) or key not in value:
                raise Mismatch(f"{where}.{key}")
            check_structure(value[key], part, f"{where}.{key}")
    elif isinstance(template, list):
        if not isinstance(value, list) or len(value) != len(template):
            raise Mismatch(where)
        for number, part in enumerate(template):
            check_structure(value[number], part, f"{where}.{number}")
    else:
        kinds = {float: (int, float), type(None): (int, float, type(None))}
        if type(value) not in kinds.get(type(template), (type(template),)):
            raise Mismatch(where)
        if type(value) is float and not math.isfinite(value):
            raise Mismatch(where)
        if type(template) is int and value < 0:
            raise Mismatch(where)


def check_optimizer(tensors: Mapping[str, Tensor], optimizer: CombinedOptimizer) -> None:
    """Raises Mismatch unless `optimizer` can load `tensors`."""
    if not tensors:
        raise Mismatch("optimizer")
    shapes = optimizer.state_shapes()
    known = {name for each in shapes.values() for name in each}
    for name in tensors.keys() - known:
        raise Mismatch(f"optimizer.{name[:80]}")
    for expected in shapes.values():
        # A parameter without a gradient until now has no state.
        if not expected.keys() & tensors.keys():
            continue
        for name, shape in expected.items():
            if name not in tensors or tensors[name].shape != shape or not is_finite(tensors[name]):
                raise Mismatch(f"optimizer.{name}")
