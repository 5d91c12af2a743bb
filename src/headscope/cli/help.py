"""Makes the text of --help: the usage of a script, and all keys with their comments in conf/."""

import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from headscope.cli.conf import CONF, choices_of, conf_files, conf_folders, is_group
from headscope.terminal import command

ORDER = (
    *("model", "model/attention", "model/position", "model/norm", "model/activation"),
    *("model/feed_forward", "tokenizer", "data", "optimizer", "schedule", "trainer", "logger"),
    "callbacks",
)
"""The order of the groups."""

MAX_WIDTH = 100
"""The maximum width of a line, in characters."""

MAX_SETTING_WIDTH = 42
"""If `key=value` has more characters than this, its comment starts on the next line."""

SHARED = "head_types"
"""The name of a file in conf/ that two scripts include under different keys: train.py under
callbacks.heads.thresholds, and analyze.py under thresholds."""


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


def help_text(root: str, words: Sequence[str]) -> str:
    """The text that the command `root` prints for --help. The command line also has the overrides
    `words`."""
    usage, sections = sections_of(root, words)
    usage = re.sub(r"python scripts/(\w+)\.py( .*?)?(?=  |$)", as_started, usage, flags=re.M)
    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    lines = [usage, INTRODUCTION]
    for (group, choice), keys in sections.items():
        if group:
            others = [name for name in choices_of(group) if name != choice]
            others += ["~logger for none"] if group == "logger" else []
            line = f"{group}={choice or 'null'}" + (f", or {', '.join(others)}" if others else "")
            lines += textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False)
        if group and choice:
            lines += textwrap.wrap(heading(conf_files(f"{group}/{choice}")[0]), width)
        lines += [*key_lines(keys, width), ""]
    return "\n".join(lines)


INTRODUCTION = """\
Keys (set with key=value) and groups (choose with group=choice), as composed from this command line:
"""


def as_started(example: re.Match[str]) -> str:
    """An example of a command as the user started this process, with at least the same width."""
    return f"{command(example[1])}{example[2] or ''}".ljust(len(example[0]))


def sections_of(
    root: str, words: Sequence[str]
) -> tuple[str, dict[tuple[str, str | None], list[Key]]]:
    """The usage of a script, and all of its keys by their group and its choice. The script's own
    keys have the group "". The overrides `words` change the values of the keys."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose(root, list(words), return_hydra_config=True)
        loader = GlobalHydra.instance().config_loader()
        files = loader.compute_defaults_list(root, list(words), RunMode.RUN).defaults
    HydraConfig.instance().set_config(composed)  # needed for interpolations in conf/
    chosen = composed.hydra.runtime.choices
    # The script's own groups come before the groups that it includes from train.yaml.
    own = {str(file.config_path).split("/")[0] for file in files if file.parent == root}
    named = {group for group in {*chosen, *map(str, composed)} if not group.startswith("hydra")}
    groups = in_order(group for group in named if is_group(group))
    groups.sort(key=lambda group: group.split("/")[0] not in own)
    # Comments in the script's own file take precedence over comments in other files.
    comments: dict[str, str] = {}
    for file in sorted(files, key=lambda file: file.config_path != root):
        path = next(iter(conf_files(str(file.config_path))), Path())
        shared = file.config_path == SHARED
        if shared:
            comments[str(file.package)] = heading(path)
        for key in keys_in(path):
            if key.comment:
                name = f"{file.package}.{key.name}" if shared else key.name
                comments.setdefault(name, key.comment)
    values = {key: composed[key] for key in composed if key != "hydra"}
    plain: Any = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    sections: dict[tuple[str, str | None], list[Key]] = {
        (group, chosen.get(group)): [] for group in ["", *groups]
    }
    for name, value in nested(plain):
        if name not in groups and (value != {} or name in comments):
            inside = [group for group in groups if name.startswith(group.replace("/", ".") + ".")]
            group = max(inside, key=len, default="")
            sections[group, chosen.get(group)].append(Key(name, value, comments.get(name, "")))
    return composed.hydra.help.template, sections


def key_lines(keys: Sequence[Key], width: int) -> Iterator[str]:
    """Yields the lines for keys: `key=value`, and their comments in a column. A line has up to
    `width` characters."""
    settings = [f"{key.name}.*" if key.value == {} else f"{key.name}={key.shown}" for key in keys]
    fitting = [len(setting) for setting in settings if len(setting) <= MAX_SETTING_WIDTH]
    column = max(fitting, default=MAX_SETTING_WIDTH) + 4
    for setting, key in zip(settings, keys, strict=True):
        comment = textwrap.wrap(key.comment, max(width - column, 20))
        if comment and len(setting) <= MAX_SETTING_WIDTH:
            yield f"  {setting}".ljust(column) + comment.pop(0)
        else:
            lines = textwrap.wrap(f"  {setting}", width - 4, break_on_hyphens=False)
            yield from [*lines[:1], *(f"    {line}" for line in lines[1:])]
        yield from (" " * column + line for line in comment)


def nested(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the full names and the values of all keys, also of nested keys. A key that contains
    other keys has the value {}."""
    for name, value in values.items():
        if not name.startswith("_"):
            is_mapping = isinstance(value, dict)
            yield prefix + name, {} if is_mapping else value
            if is_mapping:
                yield from nested(value, f"{prefix}{name}.")


# --- the files in conf/ ---


def in_order(groups: Iterable[str]) -> list[str]:
    """Sorts configuration groups, such as model/attention, in their `ORDER`."""
    return sorted(sorted(groups), key=lambda name: ORDER.index(name) if name in ORDER else 99)


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
    folder = next(folder for folder in conf_folders() if file.is_relative_to(folder))
    group = file.parent.relative_to(folder).as_posix().replace("/", ".")
    name = package[1] if package else group
    prefix = "" if name in (".", "_global_") else f"{name}."
    yield from _below(root, prefix, text.splitlines())


def _below(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[Key]:
    for name, value in node.value:
        if name.value.startswith("_"):
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
