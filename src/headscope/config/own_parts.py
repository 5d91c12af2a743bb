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

    Raises UserError if there is no such group.
    """
    if group not in GROUPS:
        raise UserError(f"register({group!r}, ...): choose one of {', '.join(GROUPS)}")
    base, registry = GROUPS[group]
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
    if not file.is_file() or file.suffix != ".py" or not name.isidentifier():
        raise UserError(f"parts={path} is not the path of a Python module, such as my_parts.py")
    changed = file.stat().st_mtime_ns
    if EXECUTED.get(str(file)) == changed:
        return
    found = find_spec(name)
    spec = spec_from_file_location(name, file)
    if found and found.origin != str(file):
        raise UserError(f"parts={path}: there is already a module named {name}: rename the file")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(file)
        ]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
        raise UserError(
            f"parts={path}, line {line}: {type(error).__name__}: {first_line(error)}"
        ) from error
    EXECUTED[str(file)] = changed


def own_code(error: BaseException) -> str | None:
    """The line of a file of `parts=` in which `error` was raised, or which led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [
        f"{each.filename}, line {each.lineno}" for each in frames if each.filename in EXECUTED
    ]
    return places[-1] if places else None
