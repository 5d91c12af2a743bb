"""Whose code runs: what a person composes may name any part that Python can import, also from a
file of the current folder. A checkpoint may come from a stranger. It may only name parts that conf/
names in the same group, and classes of modules that the person names again with `parts=`. What
Hydra's `instantiate` builds, only a person composes, never a checkpoint."""

import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from headscope.config.parts import GROUPS, OWN_FOLDERS, Part, defaults_in_conf, imported
from headscope.errors import UserError
from headscope.terminal import printable

COMPOSED: set[tuple[str, str]] = set()
"""Each group and `_target_` that the person has composed in this process."""

MODULES: dict[str, ModuleType] = {}
"""The modules that the person has named with `parts=`."""


def not_allowed(group: str, target: str) -> str | None:
    """Why a checkpoint may not name `target` in a group. None if it may."""
    module, _, name = printable(target[:200]).rpartition(".")
    if target == f"{module}.{name}":
        if target in defaults_in_conf(group) or (group, target) in COMPOSED:
            return None
        part: Any = getattr(MODULES.get(module), name, None)
        own = callable(part) and f"{part.__module__}.".startswith(f"{module}.")
        if own and GROUPS[group].fits(part):
            return None
    file = module if "." in module else f"{module or 'FILE'}.py"
    return (
        f"{group.replace('/', '.')}._target_={module}.{name} is not a part of headscope: if you "
        f"trust its code, add parts={file}, which must define it, as {GROUPS[group].kind}"
    )


def load_parts(names: str | Iterable[str] | None) -> None:
    """Imports the Python files or modules `names`, such as my_parts.py, so that checkpoints may use
    their classes. Own modules are found in the current folder. Raises UserError if a module cannot
    be imported, or has the name of another one."""
    OWN_FOLDERS.append(str(Path.cwd()))
    for name in [names] if isinstance(names, str) else names or ():
        file, module = Path(name).expanduser().resolve(), name
        if file.suffix == ".py":
            if not file.is_file():
                raise UserError(f"parts={name} does not exist: name a Python file or a module")
            OWN_FOLDERS.append(str(file.parent))
            module = file.stem
        try:
            loaded = imported(module)
        except UserError as error:
            raise UserError(f"parts={name}: {error}") from error
        source = getattr(loaded, "__file__", None)  # None: a folder
        if not source or (file.suffix == ".py" and Path(source).resolve() != file):
            raise UserError(f"parts={name} is {source or 'a folder'}: name another file")
        MODULES[module] = loaded


def parts_words(settings: Mapping[str, Any]) -> list[str]:
    """The word `parts=...` that names the modules of own parts in a configuration, if any."""
    names: dict[str, None] = {}
    waiting = [settings]
    for part in waiting:  # grows
        waiting += [value for value in part.values() if isinstance(value, dict)]
        module = str(part.get("_target_", "headscope.")).rpartition(".")[0]
        if isinstance(part, Part) and module != "headscope" and "_error_" not in part:
            file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
            here = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            names[str(here) if file.suffix == ".py" and "." not in module else module] = None
    word = ",".join(names)
    return [f"parts=[{word}]" if len(names) > 1 else f"parts={word}"] if names else []


def own_code(error: BaseException) -> str | None:
    """The line of the person's own parts in which `error` was raised, or which led to it."""
    names = {*MODULES, *(target.rpartition(".")[0] for _, target in COMPOSED)}
    names = {name for name in names if name.split(".")[0] not in ("headscope", "lightning")}
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if any(f"{frame.f_globals.get('__name__')}.".startswith(f"{name}.") for name in names):
            return f"{frame.f_code.co_filename}, line {line}"
    return None
