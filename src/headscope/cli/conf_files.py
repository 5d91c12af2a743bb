"""Reads the keys and comments in conf/, for --help and docs/configuration.md."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from headscope.cli.words import CONF
from headscope.config import SCHEMAS
from headscope.config.parse import HYDRA_KEYS


@dataclass(frozen=True)
class Key:
    """A key in a file of conf/, with its default value and its comment. A key that contains other
    keys has the value {}."""

    name: str
    value: Any
    comment: str

    @property
    def shown(self) -> str:
        """The value as a user types it on the command line."""
        plain = isinstance(self.value, str) and self.value.isprintable() and self.value
        return self.value if plain else json.dumps(self.value)


def in_order(groups: Iterable[str]) -> list[str]:
    """Sorts configuration groups, such as model/attention, in the order of `SCHEMAS`."""
    order = list(SCHEMAS)
    names = {group: group.split("/")[-1] for group in sorted(groups)}
    return sorted(
        names, key=lambda group: order.index(names[group]) if names[group] in order else 99
    )


def heading(file: Path) -> str:
    """The comment at the beginning of a file in conf/."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.lstrip("# ") for line in comment if not line.startswith("# @package"))


def keys_in(file: Path) -> Iterator[Key]:
    """Yields the keys that a file in conf/ sets, with their full names. Yields nothing if the file
    does not exist: schemas and Hydra's own settings have no file in conf/."""
    if not file.is_file():
        return
    text = file.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    root.value = [pair for pair in root.value if pair[0].value not in ("defaults", "hydra")]
    package = re.match(r"# @package (\S+)", text)
    group = file.parent.relative_to(CONF).as_posix().replace("/", ".")
    name = package[1] if package else group
    prefix = "" if name in (".", "_global_") else f"{name}."
    yield from _below(root, prefix, text.splitlines())


def _below(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[Key]:
    for name, value in node.value:
        if name.value in HYDRA_KEYS:
            continue
        is_mapping = isinstance(value, yaml.MappingNode)
        end = name.end_mark if is_mapping else value.end_mark
        first = re.match(r":?\s*#\s*(.*)", lines[end.line][end.column :])
        comment = [first[1]] if first else []
        for line in lines[end.line + 1 :] if first else []:
            if not line.strip().startswith("#"):
                break
            comment.append(line.strip("# "))
        plain = {} if is_mapping else yaml.SafeLoader("").construct_document(value)
        yield Key(f"{prefix}{name.value}", plain, " ".join(comment))
        if is_mapping:
            yield from _below(value, f"{prefix}{name.value}.", lines)
