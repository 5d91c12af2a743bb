"""Puts the source of the model into files that work without headscope.

The sources of `headscope.nn` become one file, headscope_nn.py. So an exported model has no second
implementation that could differ from ours.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import headscope
from headscope import nn

PACKAGE = Path(headscope.__file__).parent
WRAPPER = "headscope.conversion.huggingface.own_class.modeling_headscope"

NOTICE = '''"""The model of headscope, from the sources of its package `headscope.nn`.

Copyright (c) 2026 The headscope authors. MIT licence: you may use, copy, modify and distribute this
file if you keep this notice. It comes without warranty of any kind.
"""
'''


@cache
def source_files() -> dict[str, str]:
    """The files of the class, {file name: source}."""
    text = source_of(WRAPPER)
    needed = [name for name in imported(ast.parse(text)) if is_ours(name)]
    wrapper = re.sub(r"^from headscope[\w.]* import", "from .headscope_nn import", text, flags=re.M)
    return {"modeling_headscope.py": wrapper, "headscope_nn.py": one_file(needed)}


def one_file(needed: list[str]) -> str:
    """One source with the modules `needed` and all modules of headscope that they import. A module
    comes after the modules that it imports."""
    modules: dict[str, ast.Module] = {}
    for name in needed:
        collect(name, modules)
    parts = [NOTICE, external_imports(modules.values())]
    defined: set[str] = set()
    for name, tree in modules.items():
        names = top_level_names(tree)
        assert not names & defined, f"{names & defined} of {name} has another meaning before"
        defined |= names
        if body := own_source(name, tree):
            parts.append(f"\n\n# --- {name} ---\n\n{body}")
    exported = "".join(f'    "{name}": {name},\n' for name in nn.__all__ if name in defined)
    return "\n".join([*parts, f"\n\nPARTS = {{\n{exported}}}\n"])


def collect(name: str, modules: dict[str, ast.Module]) -> None:
    """Adds the module `name` to `modules`, after the modules of headscope that it imports."""
    if name in modules:
        return
    tree = ast.parse(source_of(name))
    for other in imported(tree):
        if is_ours(other):
            collect(other, modules)
    modules[name] = tree


def source_of(module: str) -> str:
    """The source code of a module of headscope."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8")


def imported(tree: ast.Module) -> list[str]:
    """The modules from which a module imports at its top level."""
    return [str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)]


def is_ours(module: str | None) -> bool:
    """Whether this module is a part of headscope."""
    return str(module).partition(".")[0] == "headscope"


def external_imports(trees: Iterable[ast.Module]) -> str:
    """The imports of all modules from other packages: first the standard library, then torch."""
    plain: set[str] = set()
    names_from: dict[str, set[str]] = {}
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Import):
                plain |= {ast.unparse(node)}
            elif isinstance(node, ast.ImportFrom) and not is_ours(node.module):
                names = {alias.name for alias in node.names} - {"TYPE_CHECKING"}
                names_from.setdefault(str(node.module), set()).update(names)
    lines = [
        *sorted(plain),
        *(
            f"from {module} import {', '.join(sorted(names_from[module]))}"
            for module in sorted(names_from)
        ),
    ]
    of_torch = [line for line in lines if line.split()[1].startswith("torch")]
    standard = [line for line in lines if line not in of_torch]
    return "\n".join([*standard, "", *of_torch])


def top_level_names(tree: ast.Module) -> set[str]:
    """The functions, classes and constants that a module defines."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            targets = (name for target in node.targets for name in ast.walk(target))
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names - {"__all__", "PARTS"}


def own_source(name: str, tree: ast.Module) -> str:
    """The source of a module without its imports. Its docstring becomes a comment. Empty if the
    module only collects names of other modules."""
    lines, text, end = source_of(name).splitlines(), "", 0
    nodes = tree.body
    if all(is_import(node) or isinstance(node, ast.Assign | ast.Expr) for node in nodes):
        return ""
    for node in nodes:
        above, end = end, int(node.end_lineno or 0)
        if node is nodes[0] and isinstance(node, ast.Expr):
            docstring = str(ast.literal_eval(node.value)).strip()
            text += "".join(f"# {line}".rstrip() + "\n" for line in docstring.splitlines())
        elif not is_import(node):  # also the comments above it
            text += "\n".join(lines[above:end]) + "\n"
    return text.rstrip()


def is_import(node: ast.stmt) -> bool:
    """Whether this statement is an import, or imports for type checkers."""
    type_checking = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return type_checking or isinstance(node, ast.Import | ast.ImportFrom)
