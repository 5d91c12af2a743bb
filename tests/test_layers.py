"""The laws of who imports whom: the layout in CONTRIBUTING.md, read off the source."""

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import headscope

PACKAGE = Path(headscope.__file__).parent
CONTRIBUTING = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SCRIPTS = sorted(file.stem for file in (PACKAGE.parents[1] / "scripts").glob("*.py"))


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imported(tree: ast.AST, *, at_the_top: bool = False, types: bool = False) -> set[str]:
    """All that is imported below `tree`, or only at its top. With `types`, also for types."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in FILES else str(node.module))
        elif not at_the_top and (types or not is_type_checking(node)):
            found |= imported(node, types=types)
    return found


@cache
def imports(module: str, **options: bool) -> frozenset[str]:
    return frozenset(imported(ast.parse(FILES[module].read_text(encoding="utf-8")), **options))


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def modules(*parts: str) -> list[str]:
    """All modules of these parts of headscope, which must exist."""
    packages = [f"headscope.{part}" for part in parts]
    assert all(package in FILES for package in packages)
    return [module for module in FILES if within(module, *packages)]


def reached(module: str) -> set[str]:
    """Everything that an import of `module` may bring, through all of headscope."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for name in imports(waiting.pop()) - seen:
            seen.add(name)
            if name in FILES:
                waiting.append(name)
    return seen


def test_nn_imports_torch_and_the_error_type_alone():
    allowed = ("torch", "headscope.nn", "headscope.errors", *sys.stdlib_module_names)
    for module in modules("nn"):
        for name in imports(module):
            assert within(name, *allowed), (module, name)


MODEL = ["nn", "analysis", "data", "config", "trained", "show.viewer"]
LOGGING = ["lightning", "pytorch_lightning", "tensorboard", "torch.utils.tensorboard"]
HEAVY = ["torch", "lightning", "hydra", "omegaconf", "matplotlib"]
ADAPTER = "headscope.conversion.transformer_lens"


def test_libraries_are_imported_only_where_they_are_needed():
    others = {"headscope.data.module", "headscope.trained.history"}
    to_use_a_model = {*modules(*MODEL, "conversion")} - others
    start_of_tensorboard = modules("show.viewer", "show.tensorboard")
    for parts, unwanted in [(to_use_a_model, LOGGING), (start_of_tensorboard, HEAVY)]:
        for module in parts:
            for name in reached(module):
                assert not within(name, *unwanted), (module, name)
    for allowed, library in [
        (modules("config", "cli"), ["hydra"]),
        (modules("conversion.transformer_lens"), ["transformer_lens", ADAPTER]),
        ([], ["scripts", *SCRIPTS]),
    ]:
        for module in FILES.keys() - {*allowed}:
            for name in imports(module):
                assert not within(name, *library), (module, name)
    # They are slow to import, and transformers is an extra: only functions that need them do.
    for module in ["headscope", "headscope.conversion.convert"]:
        for name in FILES.keys() & (reached(module) | {module}):
            for each in imports(name, at_the_top=True):
                assert not within(each, "transformers", "gguf"), (name, each)


SAID = CONTRIBUTING.partition("The layers, the highest first")[2].partition("(these may")[0]
LAYERS = [parts.split(", ") for parts in re.findall(r"`([a-z., ]+)`", SAID)]
"""A module imports only from layers below its own, and from its own part: highest first."""


def layer_of(module: str) -> tuple[int, str]:
    layers = [(number, part) for number, parts in enumerate(LAYERS) for part in parts]
    [found] = [layer for layer in layers if within(module, f"headscope.{layer[1]}")]
    return found


UPWARDS = {
    "headscope.analysis.reading": "headscope.show.reading_page",  # the page of a notebook
    "headscope.trained.model": "headscope.conversion.export",  # save_pretrained
}
"""Imports inside functions, of what a higher layer does with an object."""


def test_a_layer_imports_only_layers_below_it_also_for_types_and_without_circles():
    graph = {}
    for module in set(FILES) - {"headscope", "headscope.__main__", "headscope.show"}:
        number, part = layer_of(module)
        names = {name for name in imports(module, types=True) if within(name, "headscope")}
        graph[module] = names - {UPWARDS.get(module), "headscope"}
        assert "headscope" not in names or part == "cli", module
        for name in graph[module]:
            other, its_part = layer_of(name)
            allowed = other > number or its_part == part or number == len(LAYERS) - 1
            assert allowed, (module, name)
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_names_of_files_are_few_at_the_root_and_hide_no_module_of_the_standard_library():
    assert len([file for file in PACKAGE.glob("*.py") if file.stem[0] != "_"]) <= 6
    assert not set(SCRIPTS) & set(sys.stdlib_module_names)
