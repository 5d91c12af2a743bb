"""Parts: classes and functions that a configuration names with `_target_`, such as an attention or
a tokenizer. The keys of a part are the arguments of its constructor.

What a person composes may name any part that Python can import, also from a file of the current
folder. A checkpoint may come from a stranger: it may only name parts that conf/ names in the same
group, and classes of modules that the person names again with `parts=`.
"""

import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from headscope.errors import UserError, first_line

INSTALLED = Path(__file__).parents[1] / "conf"
CONF = INSTALLED if INSTALLED.is_dir() else INSTALLED.parents[2] / "conf"
"""conf/ in the wheel, or in the checkout of an editable installation."""


@dataclass(frozen=True)
class Group:
    """A group of parts in conf/.

    `base` is the class of its parts. `given` are the arguments that headscope supplies, and
    `in_code` those that only code sets: both are no keys. A part need not take those in `optional`.
    A part is called `later`, with the supplied arguments, or at once.
    """

    base: str
    given: tuple[str, ...] = ()
    in_code: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    later: bool = True


SIZES = ("embed_dim", "block_size", "heads", "head_dim")
OF_ATTENTION = (*SIZES, "kv_heads", "dropout", "qkv_bias", "out_bias")
OF_NETWORK = ("embed_dim", "ff_dim", "activation", "bias")

GROUPS = {
    "model": Group("headscope.GPT", ("vocab_size", "end_of_text"), later=False),
    "model/attention": Group("headscope.MultiHeadAttention", OF_ATTENTION, ("causal", "out_dim")),
    "model/position": Group("headscope.Position", SIZES),
    "model/norm": Group(
        "torch.nn.Module", ("embed_dim", "bias"), ("normalized_shape",), ("embed_dim", "bias")
    ),
    "model/activation": Group("torch.nn.Module"),
    "model/feed_forward": Group("torch.nn.Module", OF_NETWORK, (), OF_NETWORK[1:]),
    "tokenizer": Group("headscope.Tokenizer", ("texts",)),
    "data": Group("headscope.Corpus", later=False),
    "optimizer": Group("torch.optim.Optimizer", ("model", "params"), (), ("model", "params")),
    "schedule": Group("headscope.Schedule", ("max_steps",), (), ("max_steps",), later=False),
}
"""The groups of parts, by their folder in conf/."""

COMPOSED: set[tuple[str, str]] = set()
"""Each group and `_target_` that the person has composed in this process."""

MODULES: dict[str, ModuleType] = {}
"""The modules that the person has named with `parts=`."""


class Part(dict[str, Any]):
    """A part as plain data: its `_target_`, and its keys, which are also attributes. Equal data is
    an equal part. `Part(model, layers=2)` is a copy with another value."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    __setattr__ = dict.__setitem__


class UnknownPart(Part):
    """A part of a checkpoint that cannot be built, because the person has not named its module. A
    model and its parts are never one."""


def build_part(part: Part, group: str, **given: Any) -> Any:
    """Calls the constructor of a part of `group` with its keys and with `given`. Parts inside it
    are built first. If the group is called later, the result is a function that takes the rest."""
    if isinstance(part, UnknownPart):
        raise unknown(part.get("_target_"), group)
    target = target_of(part)
    keys = {
        name: build_part(value, f"{group}/{name}") if isinstance(value, Part) else value
        for name, value in part.items()
        if name != "_target_"
    }
    taken = arguments_of(target)
    lacking = [name for name in GROUPS[group].given if name not in taken]
    if GROUPS[group].later and lacking:
        return partial(call_without, target, lacking, **keys)
    if GROUPS[group].later:
        return partial(target, **keys)
    return target(**keys, **{name: value for name, value in given.items() if name in taken})


def unknown(target: Any, group: str) -> UserError:
    """The error for a part of a checkpoint that is not headscope's."""
    module = str(target)[:200].rpartition(".")[0]
    file = module if "." in module else f"{module or 'FILE'}.py"
    return UserError(
        f"{group.replace('/', '.')}._target_={target!s:.200} is not a part of headscope: if you "
        f"trust its code, add parts={file}, which must define it, as a class of "
        f"{GROUPS[group].base}"
    )


def call_without(target: Any, lacking: list[str], /, *args: Any, **given: Any) -> Any:
    """Calls `target` without the arguments `lacking`, which it does not take."""
    return target(*args, **{name: value for name, value in given.items() if name not in lacking})


@contextmanager
def full_keys(part: Part, key: str) -> Iterator[None]:
    """Inside the `with` block, an error of a constructor, which begins with an argument such as
    `scale=0`, gets the path of this key in the part `key`, or in a part inside it."""
    try:
        yield
    except UserError as error:
        name = str(error).partition("=")[0]
        inside = [(f"{key}.{each}", keys) for each, keys in part.items() if isinstance(keys, Part)]
        for path, keys in [(key, part), *inside]:
            if name in keys:
                raise UserError(f"{path}.{error}") from error.__cause__
        raise


# --- targets ---


def target_of(part: Part) -> Any:
    """The class or function that a part names."""
    return locate(part["_target_"])


def locate(target: str) -> Any:
    """The class or function with the full name `target`, such as `my_parts.SlidingWindow`. Raises
    UserError if it cannot be imported."""
    module, _, name = target.rpartition(".")
    if not module:
        raise UserError(f"{target} has no module: write a full name, such as my_parts.{target}")
    found = getattr(imported(module), name, None)
    if not callable(found):
        close = get_close_matches(name, dir(sys.modules[module]), n=1)
        where = getattr(sys.modules[module], "__file__", None) or module
        hint = f"; did you mean {module}.{close[0]}?" if close else ""
        raise UserError(f"there is no class or function {name} in {where}{hint}")
    return found


def imported(module: str) -> ModuleType:
    """The module with this full name. Raises UserError, with the place of an error in it."""
    try:
        return import_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and f"{module}.".startswith(f"{missing}."):
            raise UserError(f"there is no module {missing}, also not in {Path.cwd()}") from error
        frame = traceback.extract_tb(error.__traceback__)[-1]
        syntax = isinstance(error, SyntaxError)
        file, line = (error.filename, error.lineno) if syntax else (frame.filename, frame.lineno)
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{module} cannot be imported: {problem} ({file}, line {line})") from error


def arguments_of(target: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a class or function. If a constructor has `**options`, those of its base
    classes count too."""
    calls = [target]
    if isinstance(target, type):
        calls = [vars(each)["__init__"] for each in target.__mro__ if "__init__" in vars(each)]
    found: dict[str, inspect.Parameter] = {}
    for call in calls:
        try:
            parameters = inspect.signature(call, eval_str=True).parameters
        except (NameError, TypeError, ValueError):  # a type that is imported for type checkers only
            parameters = inspect.signature(call).parameters
        found = dict(parameters) | found
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            break
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = {name: each for name, each in found.items() if each.kind not in several}
    if isinstance(target, type):
        found.pop("self", None)
    return found


def keys_of(target: Any, group: str) -> dict[str, inspect.Parameter]:
    """The arguments of a part that are its keys."""
    no_keys = (*GROUPS[group].given, *GROUPS[group].in_code)
    return {name: each for name, each in arguments_of(target).items() if name not in no_keys}


def check_target(target: Any, group: str, named: str) -> None:
    """Raises UserError if a class or function cannot be a part of the group. `named` is what names
    it in the configuration."""
    base = locate(GROUPS[group].base)
    if isinstance(target, type) and not issubclass(target, base):
        raise UserError(f"{named} must be a class of {GROUPS[group].base}")
    taken, optional = arguments_of(target), GROUPS[group].optional
    if missing := [n for n in GROUPS[group].given if n not in taken and n not in optional]:
        raise UserError(
            f"{named} takes no {', '.join(missing)}: add **options, and pass "
            f"them to {GROUPS[group].base}"
        )


@cache
def defaults_in_conf(group: str) -> dict[str, dict[str, Any]]:
    """The targets that headscope's own conf/ names in a group, and the values of their keys. The
    key `choice` is the name of the file."""
    found = {}
    for file in sorted((CONF / group).glob("*.yaml")):
        keys = yaml.safe_load(file.read_text(encoding="utf-8"))
        keys = keys.get(group.rpartition("/")[2], keys)  # in the package of the group above
        if "_target_" in keys:
            found[keys["_target_"]] = keys | {"choice": file.stem}
    return found


def is_allowed(group: str, target: str) -> bool:
    """Whether a checkpoint may name `target` in a group."""
    module, _, name = target.rpartition(".")
    if target in defaults_in_conf(group) or (group, target) in COMPOSED:
        return True
    found = getattr(MODULES.get(module), name, None)
    if not isinstance(found, type) or not f"{found.__module__}.".startswith(f"{module}."):
        return False
    return issubclass(found, locate(GROUPS[group].base))


# --- the person's own modules ---


def find_modules_in(folder: Path) -> None:
    """Lets Python find the modules in `folder`, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def load_parts(names: str | Iterable[str] | None) -> None:
    """Imports the Python files or modules `names`, such as my_parts.py, so that checkpoints may use
    their classes. Raises UserError if one cannot be imported, or has the name of another module."""
    for name in [names] if isinstance(names, str) else names or ():
        file, module = Path(name).resolve(), name
        if file.suffix == ".py":
            if not file.is_file():
                raise UserError(f"parts={name} does not exist: name a Python file or a module")
            find_modules_in(file.parent)
            module = file.stem
        try:
            MODULES[module] = imported(module)
        except UserError as error:
            raise UserError(f"parts={name}: {error}") from error
        found = getattr(MODULES[module], "__file__", None)
        if not found or (file.suffix == ".py" and Path(found).resolve() != file):
            del MODULES[module]
            same = f"{found} has the same module name: rename the file"
            raise UserError(f"parts={name}: {same if found else 'this is no Python file'}")


def parts_words(settings: Mapping[str, Any]) -> list[str]:
    """The word `parts=...` with which the person names the modules of own parts again, if the plain
    data of a configuration has any."""
    names: dict[str, None] = {}
    waiting = [settings]
    for each in waiting:  # grows
        waiting += [value for value in each.values() if isinstance(value, dict)]
        module = str(each.get("_target_", "headscope.")).rpartition(".")[0]
        if isinstance(each, Part) and module != "headscope":
            file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
            is_script = file.suffix == ".py" and "." not in module
            here = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            names[str(here) if is_script else module] = None
    word = ",".join(names)
    return [f"parts=[{word}]" if len(names) > 1 else f"parts={word}"] if names else []


def own_code(error: BaseException) -> str | None:
    """The line of the person's own parts in which `error` was raised, or which led to it."""
    names = {*MODULES, *(target.rpartition(".")[0] for _, target in COMPOSED)} - {"headscope"}
    files = {getattr(sys.modules.get(name), "__file__", None) for name in names}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return f"{frame.filename}, line {frame.lineno}"
    return None
