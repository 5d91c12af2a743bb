"""Parts: classes and functions that a configuration names with `_target_`, such as an attention or
a tokenizer. The keys of a part are the arguments of its constructor."""

import inspect
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from headscope.errors import UserError, first_line, ran_out_of_memory

INSTALLED = Path(__file__).parents[1] / "conf"
CONF = INSTALLED if INSTALLED.is_dir() else INSTALLED.parents[2] / "conf"
"""conf/ in the wheel, or in the checkout of an editable installation."""


class Group(NamedTuple):
    """A group of parts in conf/, whose classes are subclasses of `base`. Without a `base`, they are
    functions. No keys are the arguments in `first` and in `given`, which headscope supplies, and
    those in `in_code`, which only code sets. A part need not take those in `optional`. Those in
    `first` may have other names: then they are its first arguments. It is called `later`, when the
    supplied arguments are known, or at once. If it is not headscope's, Hydra builds a part of a
    group `by_hydra`, without our checks of its keys."""

    base: str
    given: tuple[str, ...] = ()
    in_code: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    later: bool = True
    by_hydra: bool = False

    @property
    def kind(self) -> str:
        """What its parts are, for messages."""
        return f"a class of {self.base}" if self.base else "a function of weights and tokens"

    def first_of(self, taken: Mapping[str, Any]) -> list[str]:
        """The names of `first` in a part that takes these arguments."""
        known = {*self.first} <= taken.keys()
        return [*self.first] if known else [*taken][: len(self.first)]

    def fits(self, part: Any) -> bool:
        """Whether a class or function can be a part that a checkpoint names."""
        if isinstance(part, type):
            return bool(self.base) and issubclass(part, locate(self.base))
        return not self.base and [*arguments_of(part)][:2] == ["weights", "tokens"]


SIZES = ("embed_dim", "block_size", "heads", "head_dim")
OF_ATTENTION = (*SIZES, "kv_heads", "dropout", "qkv_bias", "out_bias")
OF_NETWORK = ("embed_dim", "ff_dim", "activation", "bias")
OF_BLOCK = ("attention", "feed_forward", "norm", "dropout")
OF_OPTIMIZER = ("model", "params")

GROUPS = {
    "model": Group("headscope.GPT", ("vocab_size", "end_of_text"), later=False),
    "model/attention": Group(
        "headscope.MultiHeadAttention", OF_ATTENTION, ("causal", "out_dim", "layer_window")
    ),
    "model/position": Group("headscope.Position", SIZES),
    "model/norm": Group("torch.nn.Module", ("bias",), (), ("bias",), first=("embed_dim",)),
    "model/activation": Group("torch.nn.Module"),
    "model/block": Group("headscope.Block", OF_BLOCK),
    "model/feed_forward": Group("torch.nn.Module", OF_NETWORK, (), OF_NETWORK[1:]),
    "tokenizer": Group("headscope.Tokenizer", first=("texts",)),
    "data": Group("headscope.Corpus", later=False),
    "optimizer": Group("torch.optim.Optimizer", OF_OPTIMIZER, (), OF_OPTIMIZER),
    "thresholds": Group("headscope.Thresholds", later=False),
    "callbacks": Group(
        "lightning.pytorch.Callback", ("console",), (), ("console",), later=False, by_hydra=True
    ),
    "callbacks/thresholds": Group("headscope.Thresholds", later=False),
    "metrics": Group("", first=("weights", "tokens")),
    "logger": Group("lightning.pytorch.loggers.Logger", later=False, by_hydra=True),
    "schedule": Group("headscope.Schedule", ("max_steps",), (), ("max_steps",), later=False),
}
"""The groups of parts, by their folder in conf/."""

OWN_FOLDERS: list[str] = []
"""Folders with modules of the person, found only if the person has named a module there."""


class Part(dict[str, Any]):
    """A part as plain data: its `_target_` and its keys, which are also attributes. Equal data is
    an equal part. `Part(model, layers=2)` is a copy with another value."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Maker(partial[Any]):
    """Makes the part of `group` that the configuration names `target` at the path `key`: the
    constructor, with the keys of the part. It is called with what headscope supplies, passes on
    what the constructor takes, and takes `first` by position.

    A UserError that begins with a key of the part, such as `scale=0`, gets the path of the key. An
    error in the code of a class that is not headscope's becomes a UserError."""

    group: str
    key: str
    target: str

    def __call__(self, *first: Any, **given: Any) -> Any:
        group, taken = GROUPS[self.group], arguments_of(self.func)
        named = dict(zip(group.first_of(taken), first, strict=True))
        unnamed = [name for name in named if taken[name].kind is inspect.Parameter.POSITIONAL_ONLY]
        args = [named.pop(name) for name in unnamed]
        named |= {name: given[name] for name in given if name in taken or name not in group.given}
        try:
            return self.func(*args, **self.keywords, **named)
        except UserError as error:
            if str(error).partition("=")[0] not in self.keywords:
                raise
            raise UserError(f"{self.key}.{error}") from error.__cause__
        except Exception as error:
            package = str(self.func.__module__).partition(".")[0]
            if not group.base or ran_out_of_memory(error) or is_ours(error, package):
                raise
            problem = f"{self.key}._target_={self.target} cannot be made"
            raise UserError(f"{problem}: {error_line(error)}") from error


def is_ours(error: Exception, package: str) -> bool:
    """Whether an error that `Maker` caught comes from headscope's code, and not from the `package`
    of the part or from what it calls. A tokenizer, for example, reads texts that we generate."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][1:]  # after `Maker`
    called = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    either = [each for each in (package, *called) if each in (package, "headscope")]
    return either[-1] == "headscope"


def build_part(part: Part | None, group: str, key: str = "", **given: Any) -> Any:
    """Calls the constructor of a part of `group` with its keys and with `given`. Parts inside it
    are built first. If the group is called later, the result is a `Maker`. `key` is the path of the
    part in the configuration, for error messages."""
    key = key or group.replace("/", ".")
    if part is None:
        raise UserError(f"{group}=null: choose one")
    if "_error_" in part:  # see `parse_part`
        raise UserError(part["_error_"])
    if is_foreign(part, group):
        return made_by_hydra(part, group, key, **given)
    target = locate(part["_target_"])
    keys = {name: value for name, value in part.items() if name != "_target_"}
    for name, value in keys.items():
        if isinstance(value, Part):
            keys[name] = build_part(value, f"{group}/{name}", f"{key}.{name}")
    make = Maker(target, **keys)
    make.group, make.key, make.target = group, key, part["_target_"]
    return make if GROUPS[group].later else make(**given)


def is_foreign(part: Mapping[str, Any], group: str) -> bool:
    """Whether Hydra builds this part: a callback or a logger that is not headscope's."""
    return GROUPS[group].by_hydra and not str(part.get("_target_")).startswith("headscope.")


def made_by_hydra(part: Part, group: str, key: str, **given: Any) -> Any:
    """A callback or logger that is not headscope's. Raises UserError if it cannot be made."""
    from hydra.errors import InstantiationException

    named, base = f"{key}._target_={part['_target_']}", GROUPS[group].base
    own = {name: given[name] for name in given if name not in GROUPS[group].given}
    try:
        made = built_by_hydra(part, **own)
    except InstantiationException as error:
        cause: Any = error.__cause__ or error
        missing = isinstance(cause, ModuleNotFoundError)
        package = cause.name or key.rpartition(".")[2] if missing else ""
        advice = f"; install it: pip install {package}" if missing else ""
        raise UserError(f"{named}: {first_line(cause)}{advice}") from error
    if not isinstance(made, locate(base)):
        raise UserError(f"{named} must make a {base}")
    return made


def built_by_hydra(plain: Mapping[str, Any], **given: Any) -> Any:
    """What Hydra makes of plain data that the person composed: each `_target_` in it is called."""
    from hydra.utils import instantiate  # slow

    return instantiate(dict(plain), _convert_="all", **given)


def locate(target: str) -> Any:
    """The class or function with the full name `target`, such as `my_parts.SlidingWindow`. Raises
    UserError if it cannot be imported."""
    module, _, name = target.rpartition(".")
    if not module:
        raise UserError(f"{target} has no module: write a full name, such as my_parts.MyClass")
    loaded = imported(module)
    part = getattr(loaded, name, None)
    if not callable(part):
        close = get_close_matches(name, dir(loaded), n=1)
        hint = f"; did you mean {module}.{close[0]}?" if close else ""
        raise UserError(f"there is no class or function {name} in {module}{hint}")
    return part


def imported(module: str) -> ModuleType:
    """The module with this full name, also from the person's folders, which come last in sys.path
    from then on. Raises UserError, with the place of an error in it."""
    try:
        return import_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and f"{module}.".startswith(f"{missing}."):
            if new := [folder for folder in OWN_FOLDERS if folder not in sys.path]:
                sys.path += new
                return imported(module)
            raise UserError(f"there is no module {missing}, also not in {Path.cwd()}") from error
        raise UserError(f"{module} cannot be imported: {error_line(error)}") from error


def error_line(error: BaseException) -> str:
    """An error in the code of others, in one line, with its place unless a call of ours failed, or
    code of an installed package."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    file, line = frame.filename, frame.lineno
    if isinstance(error, SyntaxError):
        file, line = error.filename or file, error.lineno
    elsewhere = file == __file__ or file.startswith(sysconfig.get_path("purelib"))
    place = "" if elsewhere else f" ({file}, line {line})"
    return f"{type(error).__name__}: {first_line(error)}{place}"


def arguments_of(target: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a class or function, and with `**options` those of its base classes too."""
    calls = [target]
    if isinstance(target, type):
        calls = [vars(base)["__init__"] for base in target.__mro__ if "__init__" in vars(base)]
    taken: dict[str, inspect.Parameter] = {}
    for call in calls:
        try:
            parameters = [*inspect.signature(call, eval_str=True).parameters.values()]
        except (NameError, TypeError):  # a type that is imported for type checkers only
            parameters = [*inspect.signature(call).parameters.values()]
        parameters = parameters[isinstance(target, type) :]  # without the instance
        own = {parameter.name: parameter for parameter in parameters}
        taken |= {name: own[name] for name in own if name not in taken}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: parameter for name, parameter in taken.items() if parameter.kind not in several}


def keys_of(target: Any, group: str, named: str = "") -> dict[str, inspect.Parameter]:
    """The arguments of a part that are its keys. Raises UserError if the class or function, which
    the configuration names as `named`, cannot be a part of the group."""
    base, given, in_code, optional, first, *_ = GROUPS[group]
    taken = arguments_of(target)
    no_keys = (*given, *in_code, *GROUPS[group].first_of(taken))
    if (isinstance(target, type) or not base) and not GROUPS[group].fits(target):
        raise UserError(f"{named} must be {GROUPS[group].kind}")
    if group == "model/activation" and not isinstance(target, type):
        raise UserError(f"{named} must be a class of {base}, not a function")
    if len(taken) < len(first):
        needed = f"must begin with {len(first)} argument(s), which headscope supplies"
        raise UserError(f"{named} {needed}")
    if missing := [name for name in given if name not in taken and name not in optional]:
        takes = f"{named} takes no {', '.join(missing)}"
        raise UserError(f"{takes}: add **options, and pass them to {base}")
    return {name: parameter for name, parameter in taken.items() if name not in no_keys}


@cache
def defaults_in_conf(group: str) -> dict[str, dict[str, Any]]:
    """The targets in a group of our conf/, and the values of their keys; `choice` is the file."""
    defaults = {}
    folder = group if (CONF / group).is_dir() else group.rpartition("/")[2]  # thresholds
    for file in sorted((CONF / folder).glob("*.yaml")):
        keys = yaml.safe_load(file.read_text(encoding="utf-8"))
        keys = keys.get(group.rpartition("/")[2], keys)  # in the package of the group above
        if GROUPS[group].by_hydra:  # a callback or logger is below its name
            keys = keys.get(file.stem, {})
        if "_target_" in keys:
            defaults[keys["_target_"]] = keys | {"choice": file.stem}
    return defaults
