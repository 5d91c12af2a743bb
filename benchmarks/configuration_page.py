"""Generates the documentation of all keys in conf/, with the command
`python -m benchmarks.configuration_page > docs/configuration.md`.
"""

import html
from functools import cache
from pathlib import Path

from headscope.cli.conf import CONF, choices_of
from headscope.cli.help import heading, in_order, keys_in
from headscope.config.scripts import SCRIPTS

PREFACE = """\
# Configuration

The keys and choices of `conf/`. Set a key with `key=value`, and choose from a group with
`group=choice`. If only some choices set a key, or set it to this default, they are named in
brackets. A choice that is based on another one, such as `gpt2` on `gpt`, sets only what differs.
`--help` shows the keys of your choices: `python scripts/train.py model=modern --help`.

<!-- Generated: python -m benchmarks.configuration_page > docs/configuration.md -->"""

WITHOUT_KEYS = ("experiment", "suite", "compare")
"""Groups whose keys are not listed: they are those of other groups, or --help shows them."""

ROOTS = [*SCRIPTS, "benchmark"]
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
    file = CONF / "head_types.yaml"
    blocks += ["## callbacks.heads.thresholds", heading(file), key_table({"": file})]
    return "\n\n".join(filter(None, blocks))


GROUPS = in_order({file.parent.relative_to(CONF).as_posix() for file in CONF.glob("*/**/*.yaml")})


def key_table(files: dict[str, Path]) -> str:
    """A Markdown table of the keys that `files` set, with their defaults and comments. `files` maps
    each choice of a group to its file in conf/."""
    choices: dict[tuple[str, str], list[str]] = {}
    for choice, file in files.items():
        for key in keys_in(file):
            if key.value != {}:
                meaning = key.comment or comment_elsewhere(key.name)
                choices.setdefault((f"`{key.name}={key.shown}`", meaning), []).append(choice)
    rows = [
        [setting if len(having) == len(files) else f"{setting} ({', '.join(having)})", meaning]
        for (setting, meaning), having in choices.items()
    ]
    return table(["key", "meaning"], rows)


@cache
def comment_elsewhere(name: str) -> str:
    """Finds a comment for a key in the files of all choices. It is used when a choice sets the key
    without a comment."""
    files = [CONF / group / f"{choice}.yaml" for group in GROUPS for choice in choices_of(group)]
    keys = [key for file in files for key in keys_in(file) if key.name == name]
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
