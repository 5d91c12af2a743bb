"""The user's own parts: a Python file that registers an attention, a position encoding or a corpus.

Only a file that the user names is executed, never one that a checkpoint names.
"""

import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from headscope.config.model import ATTENTIONS, POSITIONS, AttentionConfig, PositionConfig
from headscope.config.parts import part
from headscope.config.text import CORPORA, CorpusConfig
from headscope.errors import UserError, first_line

GROUPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "attention": (AttentionConfig, ATTENTIONS),
    "position": (PositionConfig, POSITIONS),
    "data": (CorpusConfig, CORPORA),
}
"""The groups that can have own parts: the schema of each group, and its registry."""

EXECUTED: dict[str, int] = {}
"""The files that `load_parts` has executed, and the times of their last changes, in nanoseconds."""


def register(group: str, name: str, target: Callable[..., Any], **keys: Any) -> None:
    """Makes a class or function available as a choice of a group, in a file that `parts=` names.

    `group` is "attention", "position" or "data". `name` is the name of the choice. If it is
    "window", then `conf/model/attention/window.yaml` contains the values of all keys, and
    `_target_: my_parts.SlidingWindow`, where `my_parts` is the name of the Python file. `keys` maps
    each key to its type, such as `window=int`, or to a type and a default. An attention also has
    the keys `scale`, `qk_norm` and `out_proj`. `target` is called with the values of the keys, and
    with the sizes of the model.

    Raises UserError if there is no such group, or if headscope has a choice of this name.
    """
    if group not in GROUPS:
        raise UserError(f"register({group!r}, ...): choose one of {', '.join(GROUPS)}")
    base, registry = GROUPS[group]
    if name in registry and vars(registry[name])["_target_"].startswith("headscope."):
        raise UserError(f"register({group!r}, {name!r}, ...): headscope has a choice of this name")
    registry[name] = part(base, f"{target.__module__}.{target.__qualname__}", **keys)


def load_parts(path: str | None) -> None:
    """Executes the Python file `path`, which calls `register`, unless it has not changed since it
    was executed. Does nothing if `path` is None.

    Raises UserError if there is no such file, if it has the name of an installed module, or if it
    raises an error.
    """
    if path is None:
        return
    file, name = Path(path).resolve(), Path(path).stem
    if not (file.is_file() and file.suffix == ".py" and name.isidentifier()):
        raise UserError(f"parts={path} is not the path of a Python module, such as my_parts.py")
    changed, before = file.stat().st_mtime_ns, sys.modules.get(name)
    if EXECUTED.get(str(file)) == changed:
        return
    found = None if name == "__main__" else find_spec(name)
    if name == "__main__" or (found and Path(found.origin or "").resolve() != file):
        raise UserError(f"parts={path}: there is already a module named {name}: rename the file")
    spec: Any = spec_from_file_location(name, file)
    sys.modules[name] = module = module_from_spec(spec)
    EXECUTED[str(file)] = changed
    sys.path.append(str(file.parent))  # the file may import files next to it
    try:
        # Without the byte code of an earlier content, which Python compares by the second.
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        problem = f"parts={path}: {type(error).__name__}: {first_line(error)}"
        if place := own_code(error):
            problem += f" ({place})"
        del EXECUTED[str(file)], sys.modules[name]
        if before:
            sys.modules[name] = before
        raise UserError(problem) from error
    finally:
        sys.path.remove(str(file.parent))


def own_code(error: BaseException) -> str | None:
    """The line of a file of `parts=` in which `error` was raised, or which led to it."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in EXECUTED:
            return f"{frame.filename}, line {frame.lineno}"
    return None
