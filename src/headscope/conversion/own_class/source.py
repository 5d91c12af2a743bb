"""Puts the source of the model into files that work without headscope.

The sources of `headscope.nn` become one file, headscope_nn.py. So an exported model has no second
implementation that could differ from ours.
"""

import re
from pathlib import Path

import headscope

SOURCES = Path(headscope.__file__).parents[1]
WRAPPER = "headscope.conversion.own_class.modeling_headscope"

OURS = re.compile(r"^( *)from (headscope[\w.]*) import (?:\([^)]*\)|.*)\n", re.MULTILINE)
"""An import from headscope. It is indented if it is for type checkers only."""

NOTICE = '''"""The model of headscope, from the sources of its package `headscope.nn`.

Copyright (c) 2026 The headscope authors. MIT licence: you may use, copy, modify and distribute this
file if you keep this notice. It comes without warranty of any kind.
"""
'''


def source_files() -> dict[str, str]:
    """The files of the class, {file name: source}."""
    wrapper = source_of(WRAPPER)
    modules: dict[str, str] = {}
    collect(WRAPPER, modules)
    del modules[WRAPPER]  # it keeps its imports, in its own file
    parts = [f"\n\n# --- {name} ---\n\n{source}" for name, source in modules.items() if source]
    wrapper = re.sub(r"^from headscope[\w.]*", "from .headscope_nn", wrapper, flags=re.MULTILINE)
    return {"modeling_headscope.py": wrapper, "headscope_nn.py": NOTICE + "".join(parts)}


def collect(name: str, modules: dict[str, str]) -> None:
    """Adds the source of the module `name`, without imports from headscope, to `modules`, after the
    modules that it imports."""
    source = source_of(name)
    for indent, other in OURS.findall(source):
        if not indent and other not in modules:
            collect(other, modules)
    modules[name] = OURS.sub(lambda found: f"{found[1]}pass\n" if found[1] else "", source)


def source_of(module: str) -> str:
    """The source code of a module of headscope."""
    path = SOURCES.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8")
