"""Checks plain data against a schema, key by key, and returns an instance of the schema.

Every configuration is checked here, whether it comes from the command line or from a checkpoint.
Nothing in the data is executed: `parse` resolves no interpolation, imports nothing and calls
nothing.
"""

import dataclasses
import difflib
import json
import math
import reprlib
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from headscope.errors import UserError

Schema = TypeVar("Schema")

Choice = Annotated[str, "one of a few words"]
"""A text that is one of a few words, such as `cuda:1`, if they cannot be listed as a `Literal`. The
values of all other texts may contain any characters, so the command line takes them literally."""

Positive = Annotated[int, 1]
"""A number may have a smallest value."""
Count = Annotated[int, 0]
NonNegative = Annotated[float, 0]

HYDRA_KEYS = ("_target_", "_partial_")
"""Keys whose values only a schema can define. In the data, `_target_` can only select one of the
known schemas."""

TYPE_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    list: "a list, in brackets",
    type(None): "null",
}


def from_hydra(schema: type[Schema], config: DictConfig) -> Schema:
    """Resolves the interpolations in a configuration that Hydra composed, and makes an instance of
    `schema` from the configuration. Raises UserError for the same reasons as `parse`."""
    return parse(schema, OmegaConf.to_container(config, resolve=True, throw_on_missing=True))


def parse(schema: type[Schema], data: Any, key: str = "") -> Schema:
    """Makes an instance of the dataclass `schema` from nested plain data.

    `key` is the path of `data` in the configuration, for error messages. If `schema` has subclasses
    (for example `PositionConfig`), `_target_` in the data selects one of them.

    Raises UserError when a key is missing or unknown, a value has the wrong type, or `_target_` is
    not the target of a schema.
    """
    if not isinstance(data, Mapping):
        raise UserError(
            f"{key or 'the configuration'}={short(data)}: this is a group of keys: set one of its "
            f"keys with {key}.KEY=value"
        )
    schema = _select_schema(schema, data, key)
    partial = getattr(schema, "_partial_", False)
    if data.get("_partial_", partial) is not partial:
        raise UserError(
            f"{_join(key, '_partial_')}={short(data['_partial_'])} cannot be changed: remove it"
        )
    known = keys_of(schema)
    for name in data:
        if name not in known and name not in HYDRA_KEYS:
            inside = {each: _keys_inside(expected) for each, expected in known.items()}
            raise UserError(f"{_join(key, name)}: there is no such key{suggestion(name, inside)}")
    values = {}
    for name, expected in known.items():
        path = _join(key, name)
        values[name] = (
            _checked_value(expected, data[name], path)
            if name in data
            else _default(schema, name, path)  # the key is newer than the data
        )
    return schema(**values)


def keys_of(schema: type) -> dict[str, Any]:
    """The keys of a schema and their types."""
    hints = get_type_hints(schema, include_extras=True)
    return {name: expected for name, expected in hints.items() if name not in HYDRA_KEYS}


def texts_in(schema: type, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yields the full names of the keys whose values are texts, but not a few words. The bool is
    true if the value is a list of texts."""
    for name, expected in keys_of(schema).items():
        for each in _alternatives(expected):
            if each in (str, list[str]):
                yield f"{prefix}{name}", each is not str
            elif isinstance(each, type) and is_dataclass(each):
                for part in (each, *_subclasses(each)):
                    yield from texts_in(part, f"{prefix}{name}.")


def _alternatives(expected: Any) -> tuple[Any, ...]:
    """The types of a union, or the only type."""
    return get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)


def _keys_inside(expected: Any) -> Collection[str]:
    return keys_of(expected) if is_dataclass(expected) and isinstance(expected, type) else ()


def _default(schema: Any, name: str, key: str) -> Any:
    """The default value of the field `name`. Raises UserError if it has none."""
    [default] = [each for each in fields(schema) if each.name == name]
    if callable(default.default_factory):
        return default.default_factory()
    if default.default is dataclasses.MISSING:
        raise UserError(f"{key} is missing: give it a value")
    return default.default


def _select_schema(schema: type[Schema], data: Mapping[str, Any], key: str) -> type[Schema]:
    """`schema`, or the subclass of `schema` that `_target_` in the data selects."""
    targets = {vars(each).get("_target_"): each for each in (schema, *_subclasses(schema))}
    targets = {target: each for target, each in targets.items() if target}
    if not targets:
        return schema
    target = data.get("_target_")
    if not isinstance(target, str) or target not in targets:
        names = sorted(map(str, targets))
        advice = f"choose one of {', '.join(names)}"
        if isinstance(target, str) and not target.startswith("headscope."):
            others = [each for each in names if not each.startswith("headscope.")]
            advice = f"no file of parts= registers it{', but ' if others else ''}"
            advice += ", ".join(others)
        raise UserError(f"{key}._target_={short(target)} is not allowed there: {advice}")
    return targets[target]


def _subclasses(schema: type[Schema]) -> list[type[Schema]]:
    return [each for child in schema.__subclasses__() for each in (child, *_subclasses(child))]


def _checked_value(expected: Any, value: Any, key: str) -> Any:
    """Returns `value` if it has the type `expected`, and raises UserError otherwise. If a float is
    expected, an integer is converted to a float."""
    for each in _alternatives(expected):
        if isinstance(each, type) and is_dataclass(each) and value is not None:
            return parse(each, value, key)
        if get_origin(each) is Literal and isinstance(value, str) and value in get_args(each):
            return value
        if get_origin(each) is list and isinstance(value, list):
            [item] = get_args(each)
            return [_checked_value(item, one, f"{key}[{i}]") for i, one in enumerate(value)]
        kind, *limits = get_args(each) if get_origin(each) is Annotated else [each]
        if type(value) is kind or (type(value), kind) == (int, float):
            return _checked_number(kind, value, limits, key)
    allowed = " or ".join(map(_described, _alternatives(expected)))
    raise UserError(f"{key}={short(value)} must be {allowed}")


def _checked_number(kind: type, value: Any, limits: list[Any], key: str) -> Any:
    """`value`, which may also be something else than a number, as a `kind`. Raises UserError if a
    number is below the limit, not finite, or too large."""
    if kind is int and not -(2**63) <= value < 2**63:
        raise UserError(f"{key}={short(value)} does not fit in 64 bits: give a smaller number")
    if kind in (int, float):
        for limit in limits:
            if value < limit:
                raise UserError(f"{key}={short(value)} must be at least {limit}")
    if kind is not float:
        return value
    try:
        number = float(value)
    except OverflowError:
        raise UserError(f"{key}={short(value)} is too large for a number") from None
    if not math.isfinite(number):
        raise UserError(f"{key}={value} must be a finite number")
    return number


def _described(expected: Any) -> str:
    """The text for a type in an error message."""
    if get_origin(expected) is Literal:
        words = get_args(expected)
        return f"one of {', '.join(words)}" if len(words) > 1 else words[0]
    if isinstance(expected, type) and is_dataclass(expected):
        return "a group of keys"
    kind = get_args(expected)[0] if get_origin(expected) is Annotated else expected
    return TYPE_NAMES[get_origin(kind) or kind]


def short(value: Any) -> str:
    """The text of a value, shortened to one line for a message. The value may be of any size and
    depth."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return value if isinstance(value, str) and len(value) < 80 else reprlib.repr(value)


def _join(key: str, name: Any) -> str:
    return f"{key}.{short(name)}" if key else short(name)


def suggestion(name: Any, known: Mapping[str, Collection[str]]) -> str:
    """The end of a message about an unknown key: what the user may have meant. `known` maps the
    known keys to the keys inside of each."""
    inside = [f"{key}.{name}" for key, keys in known.items() if name in keys]
    close = inside or difflib.get_close_matches(str(name)[:80], known, n=1)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; keys here: {', '.join(known)}" if known else "; this choice has no keys"
