"""Checks plain data key by key: against a dataclass, or for a part against its constructor.

Every configuration is checked here once, whether it comes from the command line or from a
checkpoint. No interpolation is resolved, and nothing is called. A part of a checkpoint is imported
only if it is allowed (see `parts.py`).
"""

import dataclasses
import difflib
import inspect
import json
import math
import reprlib
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from headscope.config.parts import (
    COMPOSED,
    GROUPS,
    Part,
    UnknownPart,
    check_target,
    is_allowed,
    keys_of,
    locate,
    unknown,
)
from headscope.errors import UserError

Schema = TypeVar("Schema")

Positive = Annotated[int, 1]
"""A number may have a smallest value."""
Count = Annotated[int, 0]
NonNegative = Annotated[float, 0]

TYPE_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    list: "a list, in brackets",
    dict: "a group of keys",
    type(None): "null",
}


def from_hydra(schema: type[Schema], config: DictConfig) -> Schema:
    """Resolves the interpolations in a configuration that Hydra composed, and makes an instance of
    `schema` from the configuration. Raises UserError for the same reasons as `parse`."""
    return parse(schema, OmegaConf.to_container(config, resolve=True, throw_on_missing=True))


def parse(schema: type[Schema], data: Any, key: str = "", *, composed: bool = True) -> Schema:
    """Makes an instance of the dataclass `schema` from nested plain data.

    `key` is the path of `data` in the configuration, for error messages. Data that the person has
    not `composed`, such as that of a checkpoint, cannot name any part: what it may not name becomes
    an `UnknownPart`.

    Raises UserError when a key is missing or unknown, or a value has the wrong type.
    """
    check_group(data, key)
    hints = get_type_hints(schema, include_extras=True)
    check_names(data, hints, key)
    values = {}
    for field in fields(schema):  # type: ignore[arg-type]
        name, path = field.name, join(key, field.name)
        if name in data:
            values[name] = checked(hints[name], data[name], path, name, composed)
        elif callable(field.default_factory):
            values[name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            values[name] = field.default
        else:
            raise UserError(f"{path} is missing: give it a value")
    return schema(**values)


def parse_part(data: Any, group: str, key: str = "", *, composed: bool = True) -> Part:
    """Makes a part of `group` from plain data. Its keys and types are those of the constructor."""
    key = key or group.replace("/", ".")
    check_group(data, key)
    target = data.get("_target_")
    if not composed and not (isinstance(target, str) and is_allowed(group, target)):
        if group.partition("/")[0] == "model":
            raise unknown(target, group)
        return UnknownPart(data)
    if not isinstance(target, str):
        raise UserError(f"{key}._target_={short(target)} must be the name of a class or function")
    later = GROUPS[group].later
    if data.get("_partial_", later) is not later:
        raise UserError(f"{key}._partial_={short(data['_partial_'])} cannot be changed: remove it")
    try:
        called = locate(target)
    except UserError as error:
        raise UserError(f"{key}._target_={short(target)}: {error}") from error
    check_target(called, group, f"{key}._target_={target}")
    COMPOSED.add((group, target))
    known = keys_of(called, group)
    # Keys of the former choice that `_target_` replaced.
    left = {name: each for name, each in data.items() if name in known or each is not None}
    left = {name: each for name, each in left.items() if name not in ("_target_", "_partial_")}
    check_names(left, known, key, others=" ".join(f"~{key}.{n}" for n in left if n not in known))
    values: dict[str, Any] = {"_target_": target}
    for name, parameter in known.items():
        path = join(key, name)
        if name in left or (name in data and parameter.default is not None):
            if f"{group}/{name}" in GROUPS:
                values[name] = parse_part(data[name], f"{group}/{name}", path, composed=composed)
            else:
                values[name] = checked(parameter.annotation, data[name], path, name, composed)
        elif parameter.default is inspect.Parameter.empty or f"{group}/{name}" in GROUPS:
            raise UserError(f"{path} is missing: give it a value")
        elif isinstance(parameter.default, bool | int | float | str | None):
            values[name] = parameter.default
    return Part(values)


def check_group(data: Any, key: str) -> None:
    if not isinstance(data, Mapping):
        raise UserError(
            f"{key or 'the configuration'}={short(data)}: this is a group of keys: set one of its "
            f"keys with {key}.KEY=value"
        )


def check_names(
    data: Iterable[Any], known: Mapping[str, Any], key: str, *, others: str = ""
) -> None:
    """Raises UserError if a key of `data` is not one of the `known` keys, which have types."""
    for name in data:
        if name not in known:
            inside = {each: keys_inside(expected) for each, expected in known.items()}
            remove = f"; to remove what this class does not take: {others}" if others else ""
            problem = f"{join(key, name)}: there is no such key{suggestion(name, inside)}{remove}"
            raise UserError(problem)


def keys_inside(expected: Any) -> Collection[str]:
    known = is_dataclass(expected) and isinstance(expected, type)
    return [field.name for field in fields(expected)] if known else ()


def checked(expected: Any, value: Any, key: str, group: str, composed: bool) -> Any:
    """Returns `value` if it has the type `expected`, and raises UserError otherwise. If a float is
    expected, an integer is converted to a float."""
    if expected in (Any, inspect.Parameter.empty) or isinstance(expected, str):
        return value  # a constructor without types
    for each in alternatives(expected):
        if each is Part and value is not None:
            return parse_part(value, group, key, composed=composed)
        if isinstance(each, type) and is_dataclass(each) and value is not None:
            return parse(each, value, key, composed=composed)
        if get_origin(each) is Literal and isinstance(value, str) and value in get_args(each):
            return value
        if get_origin(each) in (list, tuple) and isinstance(value, list):
            kinds = get_args(each)[:1] if get_origin(each) is list else get_args(each)
            kinds = kinds * len(value) if len(kinds) == 1 else kinds
            if len(kinds) == len(value):
                paths = [f"{key}[{number}]" for number in range(len(value))]
                items = zip(kinds, value, paths, strict=True)
                return [checked(kind, item, path, group, composed) for kind, item, path in items]
        kind, *limits = get_args(each) if get_origin(each) is Annotated else [each]
        kind = get_origin(kind) or kind
        if type(value) is kind or (type(value), kind) == (int, float):
            return checked_number(kind, value, limits, key)
    raise UserError(f"{key}={short(value)} must be {described(expected)}")


def alternatives(expected: Any) -> tuple[Any, ...]:
    """The types of a union, or the only type."""
    return get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)


def checked_number(kind: type, value: Any, limits: list[Any], key: str) -> Any:
    """`value`, which may also be something else than a number, as a `kind`. Raises UserError if a
    number is below the limit, not finite, or too large."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"{key}={short(value)} does not fit in 64 bits: give a smaller number")
    if kind in (int, float):
        for limit in limits:
            if value < limit:
                raise UserError(f"{key}={short(value)} must be at least {limit}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{key}={value} must be a finite number")
    return float(value) if kind is float else value


def described(expected: Any) -> str:
    """The text for a type in an error message."""
    texts = []
    for each in alternatives(expected):
        kind = get_args(each)[0] if get_origin(each) is Annotated else each
        if get_origin(each) is Literal:
            words = get_args(each)
            texts.append(f"one of {', '.join(words)}" if len(words) > 1 else words[0])
        elif kind is Part or is_dataclass(kind):
            texts.append("a group of keys")
        elif name := TYPE_NAMES.get({tuple: list}.get(kind := get_origin(kind) or kind, kind)):
            texts.append(name)
    return " or ".join(texts) or "left out: its type cannot be written in a configuration"


def short(value: Any) -> str:
    """The text of a value, shortened to one line for a message. The value may be of any size and
    depth."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return value if isinstance(value, str) and len(value) < 80 else reprlib.repr(value)


def join(key: str, name: Any) -> str:
    return f"{key}.{short(name)}" if key else short(name)


def suggestion(name: Any, known: Mapping[str, Collection[str]]) -> str:
    """The end of a message about an unknown key: what the user may have meant. `known` maps the
    known keys to the keys inside of each."""
    inside = [f"{key}.{name}" for key, keys in known.items() if name in keys]
    close = inside or difflib.get_close_matches(str(name)[:80], known, n=1)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; keys here: {', '.join(known)}" if known else "; this choice has no keys"
