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


@dataclass(frozen=True)
class Section:
    """A section of the help text: a configuration group with its current choice and its keys. The
    script's own keys have the group ""."""

    group: str
    choice: str | None
    keys: list[Key]


def help_text(root: str, words: Sequence[str]) -> str:
    """The text that the command `root` prints for --help. The command line also has the overrides
    `words`."""
    usage, sections = sections_of(root, words)
    usage = re.sub(r"python scripts/(\w+)\.py( .*?)?(?=  |$)", as_started, usage, flags=re.M)
    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    lines = [line for section in sections for line in section_lines(section, width)]
    return "\n".join([usage, INTRODUCTION, *lines])


def as_started(example: re.Match[str]) -> str:
    """An example of a command as the user started this process, with at least the same width."""
    return f"{command(example[1])}{example[2] or ''}".ljust(len(example[0]))


def sections_of(root: str, words: Sequence[str]) -> tuple[str, list[Section]]:
    """The usage of a script, and sections with all of its keys. The overrides `words` change the
    values of the keys."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose(root, list(words), return_hydra_config=True)
        loader = GlobalHydra.instance().config_loader()
        files = loader.compute_defaults_list(root, list(words), RunMode.RUN).defaults
    HydraConfig.instance().set_config(composed)  # needed for interpolations in conf/
    chosen = composed.hydra.runtime.choices
    # The script's own groups come before the groups that it includes from train.yaml.
    own = {str(file.config_path).split("/")[0] for file in files if file.parent == root}
    named = {group for group in {*chosen, *map(str, composed)} if not group.startswith("hydra/")}
    groups = in_order(group for group in named if is_group(group))
    groups.sort(key=lambda group: group.split("/")[0] not in own)
    # Comments in the script's own file take precedence over comments in other files.
    comments: dict[str, str] = {}
    for file in sorted(files, key=lambda file: file.config_path != root):
        path = next(iter(conf_files(str(file.config_path))), Path())
        prefix = ""
        if file.config_path == SHARED:
            comments[str(file.package)] = heading(path)
            prefix = f"{file.package}."
        for key in keys_in(path):
            if key.comment:
                comments.setdefault(prefix + key.name, key.comment)
    values = {key: composed[key] for key in composed if key != "hydra"}
    plain: Any = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    sections = {group: Section(group, chosen.get(group), []) for group in ["", *groups]}
    for name, value in nested(plain):
        if name not in groups and (value != {} or name in comments):
            keys = sections[group_of(name, groups)].keys
            keys.append(Key(name, value, comments.get(name, "")))
    return composed.hydra.help.template, list(sections.values())


INTRODUCTION = """\
Keys (set with key=value) and groups (choose with group=choice), as composed from this command line:
"""


def section_lines(section: Section, width: int) -> Iterator[str]:
    """Yields the lines of a section. A line has up to `width` characters."""
    group, choice, keys = section.group, section.choice, section.keys
    if group:
        others = [name for name in choices_of(group) if name != choice]
        others += ["~logger for none"] if group == "logger" else []
        line = f"{group}={choice or 'null'}" + (f", or {', '.join(others)}" if others else "")
        yield from textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False)
        if choice:
            yield from textwrap.wrap(heading(conf_files(f"{group}/{choice}")[0]), width)
    settings = [f"{key.name}.*" if key.value == {} else f"{key.name}={key.shown}" for key in keys]
    fitting = [len(setting) for setting in settings if len(setting) <= MAX_SETTING_WIDTH]
    column = max(fitting, default=MAX_SETTING_WIDTH) + 4
    for setting, key in zip(settings, keys, strict=True):
        yield from setting_lines(setting, key.comment, column, width)
    yield ""


def setting_lines(setting: str, comment: str, column: int, width: int) -> list[str]:
    """The lines for one key. `setting` is `key=value`, and `comment` starts at `column`. A line has
    up to `width` characters."""
    right = [" " * column + line for line in textwrap.wrap(comment, max(width - column, 20))]
    if right and len(setting) <= MAX_SETTING_WIDTH:
        return [f"  {setting}".ljust(column) + right[0].strip(), *right[1:]]
    left = textwrap.wrap(
        setting, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )
    return [*left, *right]


def nested(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the full names and the values of all keys, also of nested keys. A key that contains
    other keys has the value {}."""
    for name, value in values.items():
        if not name.startswith("_"):
            is_mapping = isinstance(value, dict)
            yield prefix + name, {} if is_mapping else value
            if is_mapping:
                yield from nested(value, f"{prefix}{name}.")


def group_of(name: str, groups: Sequence[str]) -> str:
    """The configuration group of a key, such as model/attention, or "" if the key is one of the
    script's own keys."""
    matching = [group for group in groups if name.startswith(group.replace("/", ".") + ".")]
    return max(matching, key=len, default="")


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
