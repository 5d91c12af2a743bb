"""Makes the text of --help: the usage of a script, and all keys with their comments in conf/."""

import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from headscope.cli.conf import CONF, choices_of, conf_files, is_group
from headscope.terminal import command

MAX_WIDTH, MAX_SETTING_WIDTH = 100, 42
"""The maximum width of a line, and of a `key=value` beside its comment, in characters."""

INTRODUCTION = """\
Keys (set with key=value) and groups (choose with group=choice), as composed from this command line:
"""


class Key(NamedTuple):
    """A key, its value, which is {} if it contains other keys, and its comment in conf/."""

    name: str
    value: Any
    comment: str

    @property
    def shown(self) -> str:
        """The value as a user types it on the command line."""
        plain = isinstance(self.value, str) and self.value.isprintable() and self.value
        return self.value if plain else json.dumps(self.value)


def help_text(root: str, words: Sequence[str]) -> str:
    """The text that the command `root` prints for --help together with the overrides `words`."""
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
        files = conf_files(f"{group}/{choice}")  # none in hydra.searchpath=
        lines += textwrap.wrap(heading(files[0]), width) if files else []
        lines += [*key_lines(keys, width), ""]
    return "\n".join(lines)


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
    comments: dict[str, str] = {}
    # Comments in the script's own file take precedence over comments in other files.
    for file in sorted(files, key=lambda file: file.config_path != root):
        for path in conf_files(str(file.config_path))[:1]:
            package = str(file.package or "")
            for key in [*keys_in(path, package), Key(package, {}, heading(path))]:
                if key.comment:
                    comments.setdefault(key.name, key.comment)
    # Hydra lists the chosen groups backwards. A group that is composed of several has no choice.
    names = [*dict.fromkeys([*map(str, composed), *reversed([*chosen])])]
    groups = [each for each in names if is_group(each) and not each.startswith("hydra")]
    groups.sort(key=lambda group: names.index(group.partition("/")[0]))
    sections: dict[tuple[str, str | None], list[Key]] = {
        (group, chosen.get(group)): [] for group in ["", *groups]
    }
    dotted = {group.replace("/", "."): group for group in groups}
    values = OmegaConf.create({key: composed[key] for key in composed if key != "hydra"})
    for name, value in nested(OmegaConf.to_container(values, resolve=True)):
        if name not in dotted and (value != {} or name in comments):
            group = max((each for each in dotted if name.startswith(f"{each}.")), default="")
            place = dotted.get(group, "")
            sections[place, chosen.get(place)].append(Key(name, value, comments.get(name, "")))
    return composed.hydra.help.template, sections


def key_lines(keys: Sequence[Key], width: int) -> Iterator[str]:
    """Yields lines of up to `width` characters: `key=value`, and the comments in a column."""
    settings = [f"{key.name}.*" if key.value == {} else f"{key.name}={key.shown}" for key in keys]
    fitting = [len(setting) for setting in settings if len(setting) <= MAX_SETTING_WIDTH]
    column = max(fitting, default=MAX_SETTING_WIDTH) + 4
    for setting, key in zip(settings, keys, strict=True):
        comment = textwrap.wrap(key.comment, max(width - column, 20))
        if comment and len(setting) <= MAX_SETTING_WIDTH:
            yield f"  {setting}".ljust(column) + comment.pop(0)
        else:
            yield from textwrap.wrap(
                setting, width - 4, initial_indent="  ", subsequent_indent="    "
            )
        yield from (" " * column + line for line in comment)


def nested(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the full name and the value of each key, which is {} if it contains other keys."""
    for name, value in values.items():
        if not name.startswith("_"):
            yield prefix + name, {} if isinstance(value, dict) else value
            if isinstance(value, dict):
                yield from nested(value, f"{prefix}{name}.")


def heading(file: Path) -> str:
    """The comment at the beginning of a file in conf/."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.lstrip("# ") for line in comment if not line.startswith("# @package"))


def keys_in(file: Path, package: str) -> Iterator[Key]:
    """Yields the keys that a file in conf/ sets in a package, with their full names."""
    text = file.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    yield from keys_below(root, f"{package}." if package else "", text.splitlines())


def keys_below(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[Key]:
    for name, value in node.value:
        if name.value.startswith("_") or name.value in ("defaults", "hydra"):
            continue
        is_mapping = isinstance(value, yaml.MappingNode)
        below = value.start_mark.line > name.start_mark.line
        end = name.end_mark if below else value.end_mark
        [first, *more] = [*lines[end.line :], ""]
        comment = first[end.column :].lstrip(": ")
        more = [*takewhile(lambda line: line.strip().startswith("#"), more)] if comment else []
        comment = " ".join(line.strip("# ") for line in [comment, *more] if line[:1] in "# ")
        plain = {} if is_mapping else yaml.SafeLoader("").construct_document(value)
        yield Key(f"{prefix}{name.value}", plain, comment)
        if is_mapping:
            yield from keys_below(value, f"{prefix}{name.value}.", lines)
