"""Checks plain data against a schema, key by key, and returns an instance of the schema.

Every configuration is checked here, whether it comes from the command line or from a checkpoint.
Nothing in the data is executed: `parse` resolves no interpolation, imports nothing and calls
nothing.
"""

import dataclasses
import difflib
import math
import reprlib
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import MISSING, DictConfig, OmegaConf

from headscope.errors import UserError

Schema = TypeVar("Schema")

HYDRA_KEYS = ("_target_", "_partial_")
"""Keys whose values only a schema can define. In the data, `_target_` can only select one of the
known schemas."""

TYPE_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


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
        raise UserError(f"{key or 'the configuration'}={short(data)} must be keys with values")
    schema = _select_schema(schema, data, key)
    types_of_keys = get_type_hints(schema)
    known = [name for name in types_of_keys if name not in HYDRA_KEYS]
    for name in data:
        if name not in known and name not in HYDRA_KEYS:
            raise UserError(f"{_join(key, name)}: there is no such key{_suggestion(name, known)}")
    if data.get("_partial_", False) is not getattr(schema, "_partial_", False):
        raise UserError(
            f"{_join(key, '_partial_')}={short(data.get('_partial_'))} cannot be changed: remove it"
        )
    values = {}
    for name in known:
        if name not in data:
            values[name] = _default(
                schema, name, _join(key, name)
            )  # the key is newer than the data
            continue
        values[name] = _checked_value(types_of_keys[name], data[name], _join(key, name))
    return schema(**values)


def _default(schema: Any, name: str, key: str) -> Any:
    """The default value of the field `name`. Raises UserError if it has none."""
    [default] = [each for each in fields(schema) if each.name == name]
    if callable(default.default_factory):
        return default.default_factory()
    if default.default in (MISSING, dataclasses.MISSING):
        raise UserError(f"{key} is missing")
    return default.default


def _select_schema(schema: type[Schema], data: Mapping[str, Any], key: str) -> type[Schema]:
    """`schema`, or the subclass of `schema` that `_target_` in the data selects."""
    targets = {vars(each).get("_target_"): each for each in (schema, *_subclasses(schema))}
    targets = {target: each for target, each in targets.items() if target not in (None, MISSING)}
    if not targets:
        return schema
    target = data.get("_target_")
    if not isinstance(target, str) or target not in targets:
        raise UserError(
            f"{key}._target_={short(target)} is not allowed there: choose one of "
            f"{', '.join(sorted(map(str, targets)))}"
        )
    return targets[target]


def _subclasses(schema: type[Schema]) -> list[type[Schema]]:
    return [each for child in schema.__subclasses__() for each in (child, *_subclasses(child))]


def _checked_value(expected: Any, value: Any, key: str) -> Any:
    """Returns `value` if it has the type `expected`, and raises UserError otherwise. If a float is
    expected, an integer is converted to a float."""
    if get_origin(expected) in (Union, types.UnionType):
        if value is None:
            return None
        [expected] = [each for each in get_args(expected) if each is not type(None)]
    if expected is Any:
        return value
    if isinstance(expected, type) and is_dataclass(expected):
        return parse(expected, value, key)
    if get_origin(expected) is list:
        if not isinstance(value, list):
            raise UserError(f"{key}={short(value)} must be a list, in brackets: {key}=[...]")
        [item] = get_args(expected)
        return [_checked_value(item, each, f"{key}[{i}]") for i, each in enumerate(value)]
    if expected is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{key}={short(value)} is too large for a number") from None
    if type(value) is not expected:
        raise UserError(f"{key}={short(value)} must be {TYPE_NAMES[expected]}")
    if expected is float and not math.isfinite(value):
        raise UserError(f"{key}={value} must be a finite number")
    if expected is int and not -(2**63) <= value < 2**63:
        raise UserError(f"{key}={short(value)} does not fit in 64 bits: give a smaller number")
    return value


def short(value: Any) -> str:
    """The text of a value, shortened to one line for a message. The value may be of any size and
    depth."""
    return value if isinstance(value, str) and len(value) < 80 else reprlib.repr(value)


def _join(key: str, name: Any) -> str:
    return f"{key}.{short(name)}" if key else short(name)


def _suggestion(name: Any, known: list[str]) -> str:
    close = difflib.get_close_matches(str(name)[:80], known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; keys here: {', '.join(known)}" if known else "; this choice has no keys"
