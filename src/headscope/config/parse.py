"""Plain data as an instance of a schema, checked key by key.

Every configuration passes through here, of a command line and of a checkpoint alike. What comes out
is plain data: nothing in it is interpolated, looked up or called.
"""

import difflib
import math
import reprlib
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import MISSING, DictConfig, OmegaConf

from headscope.errors import UserError

Schema = TypeVar("Schema")

HYDRA_KEYS = ("_target_", "_partial_")
"""Keys that a schema itself sets: data can choose among schemas by `_target_`, and no more."""

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def from_hydra(schema: type[Schema], config: DictConfig) -> Schema:
    """What Hydra composed, as an instance of `schema`. Its interpolations are resolved once.

    Raises UserError as `parse` does.
    """
    return parse(schema, OmegaConf.to_container(config, resolve=True, throw_on_missing=True))


def parse(schema: type[Schema], data: Any, key: str = "") -> Schema:
    """Nested plain data as an instance of the dataclass `schema`; `key` is where it stands.

    Where `schema` is the base of several, such as `PositionConfig`, `_target_` says which is meant.

    Raises UserError when a key is missing or unknown, a value is of another type, or `_target_`
    names no part of headscope.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"{key or 'the configuration'}={short(data)} must be keys with values")
    schema = _chosen(schema, data, key)
    kinds = get_type_hints(schema)
    known = [name for name in kinds if name not in HYDRA_KEYS]
    for name in data:
        if name not in known and name not in HYDRA_KEYS:
            raise UserError(f"{_join(key, name)}: there is no such key{_suggestion(name, known)}")
    if data.get("_partial_", False) is not getattr(schema, "_partial_", False):
        raise UserError(
            f"{_join(key, '_partial_')}={short(data.get('_partial_'))} does not fit there"
        )
    values = {}
    for name in known:
        if name not in data:
            raise UserError(f"{_join(key, name)} is missing")
        values[name] = _value(kinds[name], data[name], _join(key, name))
    return schema(**values)


def _chosen(schema: type[Schema], data: Mapping[str, Any], key: str) -> type[Schema]:
    """`schema`, or the one derived from it that `_target_` names."""
    targets = {vars(each).get("_target_"): each for each in (schema, *_derived(schema))}
    targets = {target: each for target, each in targets.items() if target not in (None, MISSING)}
    if not targets:
        return schema
    target = data.get("_target_")
    if not isinstance(target, str) or target not in targets:
        raise UserError(f"{key}._target_={short(target)} is no part of headscope that fits there")
    return targets[target]


def _derived(schema: type[Schema]) -> list[type[Schema]]:
    return [each for child in schema.__subclasses__() for each in (child, *_derived(child))]


def _value(kind: Any, value: Any, key: str) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        [kind] = [each for each in get_args(kind) if each is not type(None)]
    if kind is Any:
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        return parse(kind, value, key)
    if get_origin(kind) is list:
        if not isinstance(value, list):
            raise UserError(f"{key}={short(value)} must be a list, in brackets: {key}=[...]")
        [kind] = get_args(kind)
        return [_value(kind, each, f"{key}[{place}]") for place, each in enumerate(value)]
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{key}={short(value)} is too large for a number") from None
    if type(value) is not kind:
        raise UserError(f"{key}={short(value)} must be {WORDS[kind]}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{key}={value} must be a finite number")
    if kind is int and not -(2**63) <= value < 2**63:
        raise UserError(f"{key}={short(value)} is beyond 64 bits: give a smaller number")
    return value


def short(value: Any) -> str:
    """A value of any size and depth, as a few words of one line."""
    return value if isinstance(value, str) and len(value) < 80 else reprlib.repr(value)


def _join(key: str, name: Any) -> str:
    return f"{key}.{short(name)}" if key else short(name)


def _suggestion(name: Any, known: list[str]) -> str:
    close = difflib.get_close_matches(str(name)[:80], known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; keys here: {', '.join(known)}" if known else "; this choice has no keys"
