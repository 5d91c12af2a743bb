"""Texts about values and keys, for error messages."""

import difflib
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from headscope.config.parts import Part
from headscope.errors import short

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
