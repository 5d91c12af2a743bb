"""Generates the documentation of all keys in conf/, with the command
`python -m benchmarks.configuration_page > docs/configuration.md`.
"""

import html
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headscope.cli.conf import CONF, choices_of
from headscope.cli.help import Key, heading, keys_in
from headscope.cli.main import COMMANDS

PREFACE = """\
# Configuration

The keys and choices of `conf/`. Set a key with `key=value`, and choose from a group with
`group=choice`. If only some choices set a key, or set it to this default, they are named in
brackets. A choice that is based on another one, such as `gpt2` on `gpt`, sets only what differs.
`--help` shows the keys of your choices: `python scripts/train.py model=modern --help`.

<!-- Generated: python -m benchmarks.configuration_page > docs/configuration.md -->"""

WITHOUT_KEYS = ("experiment", "debug", "suite", "compare")
"""Groups whose keys are not listed: they are those of other groups, or --help shows them."""

ORDER = (
    *("model", "model/attention", "model/position", "model/norm", "model/activation"),
    *("model/feed_forward", "tokenizer", "data", "optimizer", "schedule", "trainer", "logger"),
    *("callbacks", "thresholds", "compare", "experiment", "debug", "hydra/launcher"),
    *("hydra/sweeper", "suite"),
)
"""The groups, in the order of the page."""

FOUND = {file.parent.relative_to(CONF).as_posix() for file in CONF.glob("*/**/*.yaml")}
GROUPS = sorted(FOUND, key=lambda group: ORDER.index(group) if group in ORDER else len(ORDER))

ROOTS = [*COMMANDS, "benchmark"]
"""The scripts with keys. The schema of benchmark.py is in benchmarks/, outside the package."""


def page() -> str:
    """The text of docs/configuration.md."""
    blocks = [PREFACE]
    for root in ROOTS:
        file = CONF / f"{root}.yaml"
        blocks += [f"## {root}.py", heading(file), key_table({root: file})]
    for group in GROUPS:
        files = {choice: CONF / group / f"{choice}.yaml" for choice in choices_of(group)}
        rows = [[f"`{choice}`", heading(file)] for choice, file in files.items()]
        blocks += [f"## {group}", table(["choice", "meaning"], rows)]
        if group not in WITHOUT_KEYS:
            blocks.append(key_table(files))
    return "\n\n".join(filter(None, blocks))


def key_table(files: dict[str, Path]) -> str:
    """A Markdown table of the keys that `files` set, with their defaults and comments. `files` maps
    each choice of a group to its file in conf/."""
    choices: dict[tuple[str, str], list[str]] = {}
    for choice, file in files.items():
        for key in keys_of(file):
            if key.value != {}:
                meaning = key.comment or comment_elsewhere(key.name)
                choices.setdefault((f"`{key.name}={key.shown}`", meaning), []).append(choice)
    rows = [
        [setting if len(having) == len(files) else f"{setting} ({', '.join(having)})", meaning]
        for (setting, meaning), having in choices.items()
    ]
    return table(["key", "meaning"], rows)


def keys_of(file: Path) -> Iterator[Key]:
    """The keys of a file in conf/, with their full names."""
    package = re.match(r"# @package (\S+)", file.read_text(encoding="utf-8"))
    group = file.parent.relative_to(CONF).as_posix().replace("/", ".")
    name = package[1] if package else group
    return keys_in(file, "" if name in (".", "_global_") else name)


@cache
def comment_elsewhere(name: str) -> str:
    """Finds a comment for a key in the files of all choices. It is used when a choice sets the key
    without a comment."""
    files = [CONF / group / f"{choice}.yaml" for group in GROUPS for choice in choices_of(group)]
    keys = [key for file in files for key in keys_of(file) if key.name == name]
    return next((key.comment for key in keys if key.comment), "")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[escaped(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) if len(lines) > 2 else ""


def escaped(cell: str) -> str:
    """The text of a cell in Markdown. In `<name>_<date>`, `_` would begin italics."""
    return html.escape(cell, quote=False).replace("|", r"\|").replace("_&lt;", r"\_&lt;")


if __name__ == "__main__":
    print(page())
