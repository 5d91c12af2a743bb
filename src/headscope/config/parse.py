"""Checks plain data key by key against the arguments of a dataclass, or of a part's constructor.
Every configuration is checked here once, also that of a checkpoint. No part is called."""

import difflib
import inspect
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf

from headscope.config.own_parts import COMPOSED, not_allowed
from headscope.config.parts import GROUPS, Part, arguments_of, is_foreign, keys_of, locate
from headscope.errors import UserError, short

Result = TypeVar("Result")
Arguments = Mapping[str, inspect.Parameter]

Positive = Annotated[int, 1]
"""A number may have a smallest value, and a largest one."""
Count = Annotated[int, 0]
NonNegative = Annotated[float, 0]
Texts = str | list[str] | None
Others = Annotated[dict[str, Any], "others"]
"""The type of an argument that gets all unknown keys, if the person has composed the data."""

NO_KEYS = ("_target_", "_partial_", "_error_")


def parse(
    schema: Callable[..., Result], data: Any, key: str = "", *, composed: bool = True
) -> Result:
    """Calls `schema`, a dataclass or the function of a script, with the keys of nested plain data.
    Interpolations are resolved in a configuration that Hydra composed, and nowhere else.

    `key` is the path of `data` in the configuration, for error messages. Data that the person has
    not `composed`, such as that of a checkpoint, cannot name any part (see `parse_part`).

    Raises UserError when a key is missing or unknown, or a value has the wrong type.
    """
    if isinstance(data, DictConfig):
        data = OmegaConf.to_container(data, resolve=True, throw_on_missing=True)
    return schema(**checked_keys(arguments_of(schema), data, key, "", composed))


def parse_part(data: Any, group: str, key: str = "", *, composed: bool = True) -> Part:
    """Makes a part of `group` from plain data. Its keys and types are those of the constructor.

    Raises UserError as `parse` does. If the data may not name its part, a model and its parts raise
    UserError now, and other parts when they are built.
    """
    key = key or group.replace("/", ".")
    check_group(data, key)
    target = data.get("_target_")
    if not isinstance(target, str):
        raise UserError(f"{key}._target_={short(target)} must be the name of a class or function")
    if not composed and is_foreign(data, group):
        raise UserError(f"{key}._target_={short(target)}: a checkpoint may not name this")
    if not composed and (problem := not_allowed(group, target)):
        if group.partition("/")[0] == "model":
            raise UserError(problem)
        plain = {key: value for key, value in data.items() if not isinstance(value, dict | list)}
        return Part(plain, _error_=problem)
    later = GROUPS[group].later
    if data.get("_partial_", later) is not later:
        raise UserError(f"{key}._partial_={short(data['_partial_'])} cannot be changed: remove it")
    try:
        called = locate(target)
    except UserError as error:
        raise UserError(f"{key}._target_={short(target)}: {error}") from error
    COMPOSED.add((group, target))
    if is_foreign(data, group):
        return Part(data)
    known = keys_of(called, group, f"{key}._target_={target}")
    # Keys of the former choice, which `_target_` replaced, are dropped if they are null.
    given = {
        name: value
        for name, value in data.items()
        if name not in NO_KEYS and (name in known or value is not None)
    }
    return Part(_target_=target, **checked_keys(known, given, key, f"{group}/", composed))


def check_group(data: Any, key: str) -> None:
    if not isinstance(data, Mapping):
        problem = f"{key or 'the configuration'}={short(data)}: this is a group of keys"
        raise UserError(f"{problem}: set one of them with {key}.KEY=value")


def checked_keys(
    known: Arguments, data: Any, key: str, group: str, composed: bool
) -> dict[str, Any]:
    """The values of the `known` arguments in `data`, or else their defaults. `key` is the path of
    `data`, and `group` that of a part, with a slash. Raises UserError as `parse` does."""
    check_group(data, key)
    rest = next((name for name in known if known[name].annotation == Others), None)
    known = {name: known[name] for name in known if name != rest or composed}
    others = {name: data[name] for name in data if name not in known or name == rest}
    if rest in known:
        data = {**data, rest: others}
    elif others:
        inside = {name: parameter.annotation for name, parameter in known.items()}
        inside |= {name: arguments_of(kind) for name, kind in inside.items() if is_dataclass(kind)}
        first, *more = others
        problem = f"{join(key, first)}: there is no such key{suggestion(first, inside)}"
        words = " ".join(f"~{join(key, name)}" for name in [first, *more[:9]])
        if group:
            problem += f"; to remove what this class does not take: {words}"
        raise UserError(problem)
    values: dict[str, Any] = {}
    for name, parameter in known.items():
        path, default = join(key, name), parameter.default
        if name in data and f"{group}{name}" in GROUPS and group:
            values[name] = parse_part(data[name], f"{group}{name}", path, composed=composed)
        elif name in data:
            values[name] = checked(parameter.annotation, data[name], path, name, composed)
        elif default is inspect.Parameter.empty or (group and f"{group}{name}" in GROUPS):
            raise UserError(f"{path} is missing: give it a value")
        elif isinstance(default, bool | int | float | str | None):
            values[name] = default
    return values


def checked(expected: Any, value: Any, key: str, group: str, composed: bool) -> Any:
    """`value`, an integer as a float if only this is `expected`, and likewise the float 1e3 as an
    integer. Raises UserError for another type."""
    if expected in (Any, inspect.Parameter.empty, Others) or isinstance(expected, str):
        return value  # a constructor without types
    plain_kinds = [plain_type(kind) for kind in alternatives(expected)]
    if type(value) is float and value.is_integer() and {int, float} & {*plain_kinds} == {int}:
        value = int(value)
    for kind, plain in zip(alternatives(expected), plain_kinds, strict=True):
        if kind is Part and value is not None:
            return parse_part(value, group, key, composed=composed)
        if isinstance(kind, type) and is_dataclass(kind) and value is not None:
            return parse(kind, value, key, composed=composed)
        if get_origin(kind) is Literal and isinstance(value, str) and value in get_args(kind):
            return value
        if get_origin(kind) is dict and isinstance(value, dict):
            _, of_item = get_args(kind)
            items = value.items()
            return {n: checked(of_item, item, join(key, n), group, composed) for n, item in items}
        if kind is tuple and isinstance(value, list):
            return value
        if get_origin(kind) in (list, tuple) and isinstance(value, list):
            kinds = get_args(kind)
            if get_origin(kind) is list or Ellipsis in kinds:
                kinds = kinds[:1] * len(value)
            if len(kinds) == len(value):
                return [
                    checked(of_item, item, f"{key}[{number}]", group, composed)
                    for number, (of_item, item) in enumerate(zip(kinds, value, strict=True))
                ]
        limits = [*get_args(kind)[1:]] if get_origin(kind) is Annotated else []
        as_float = type(value) is int and int not in plain_kinds
        if type(value) is plain or (plain is float and as_float):
            return checked_number(plain, value, limits, key)
    raise UserError(f"{key}={short(value)} must be {described(expected)}")


def checked_number(kind: type, value: Any, limits: list[Any], key: str) -> Any:
    """`value` as a `kind`. Raises UserError if a number is outside the limits or not finite."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"{key}={short(value)} does not fit in 64 bits: give a smaller number")
    if limits and value < limits[0]:
        raise UserError(f"{key}={short(value)} must be at least {limits[0]}")
    if limits[1:] and value > limits[1]:
        raise UserError(f"{key}={short(value)} must be at most {limits[1]}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{key}={value} must be a finite number")
    return float(value) if kind is float else value


# --- messages ---

TYPE_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    list: "a list, in brackets",
    tuple: "a list, in brackets",
    dict: "a group of keys",
    Part: "a group of keys",
    type(None): "null",
}


def alternatives(expected: Any) -> tuple[Any, ...]:
    """The types of a union, or the only type."""
    return get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)


def plain_type(kind: Any) -> Any:
    """The class of a type: int for `Annotated[int, 1]`, and list for `list[int]`."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_origin(kind) or kind


def described(expected: Any) -> str:
    """The text for a type in an error message."""
    texts = []
    for kind in alternatives(expected):
        if get_origin(kind) is tuple and Ellipsis not in get_args(kind):
            texts.append(f"a list of {len(get_args(kind))} values, in brackets")
        elif get_origin(kind) is Literal:
            words = get_args(kind)
            texts.append(f"one of {', '.join(words)}" if len(words) > 1 else words[0])
        else:
            plain = dict if is_dataclass(kind) else plain_type(kind)
            texts += [TYPE_NAMES[plain]] if plain in TYPE_NAMES else []
    return " or ".join(texts) or "left out: its type cannot be written in a configuration"


def join(key: str, name: Any) -> str:
    return f"{key}.{short(name)}" if key else short(name)


def suggestion(name: Any, known: Mapping[str, Any]) -> str:
    """The end of a message about an unknown key or choice: what the user may have meant.
    `known` maps the known ones to their values, and a group of keys to a mapping."""
    if name == "experiment":
        return "; begin the file of an experiment with the line # @package _global_"
    groups = {key: keys for key, keys in known.items() if isinstance(keys, Mapping)}
    inside = [f"{key}.{name}" for key, keys in groups.items() if name in keys]
    if close := inside or difflib.get_close_matches(str(name)[:80], known, n=1):
        return f"; did you mean {' or '.join(close)}?"
    return f"; choose one of {', '.join(known)}" if known else "; this choice has no keys"
