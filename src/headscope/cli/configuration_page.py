"""Generates the documentation of all keys in conf/, with the command
`python -m headscope.cli.configuration_page > docs/configuration.md`.
"""

import html
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headscope.cli.conf_files import heading, in_order, keys_in
from headscope.cli.words import CONF, choices_of
from headscope.config import SCHEMAS

PREFACE = """\
# Configuration

All keys and choices of `conf/`. Set a key with `key=value`; choose from a group with
`group=choice`. `--help` shows the keys of the choices that you give, for example
`python scripts/train.py model=modern --help`.

This page is generated: `python -m headscope.cli.configuration_page > docs/configuration.md`"""

EXPERIMENTS = "experiment"
ROOTS = [*SCHEMAS["script"], "benchmark"]
"""The scripts with keys. The schema of benchmark.py is in benchmarks/, outside the package."""


def page() -> str:
    """The text of docs/configuration.md."""
    blocks = [PREFACE, "## Groups", table(["group", "choices"], group_rows())]
    for root in ROOTS:
        file = CONF / f"{root}.yaml"
        blocks += [f"## {root}.py", heading(file), key_table({root: file})]
    for group in GROUPS:
        files = {choice: CONF / group / f"{choice}.yaml" for choice in choices_of(group)}
        rows = [[f"`{choice}`", heading(file)] for choice, file in files.items()]
        blocks += [f"## {group}", table(["choice", "meaning"], rows)]
        if group != EXPERIMENTS:
            blocks.append(key_table(files))
    file = CONF / "head_types.yaml"
    blocks += ["## callbacks.heads.thresholds", heading(file), key_table({"": file})]
    return "\n\n".join(filter(None, blocks))


GROUPS = in_order({file.parent.relative_to(CONF).as_posix() for file in CONF.glob("*/**/*.yaml")})


def group_rows() -> Iterator[list[str]]:
    for group in GROUPS:
        yield [
            f"[`{group}`](#{group.replace('/', '')})",
            ", ".join(f"`{c}`" for c in choices_of(group)),
        ]


def key_table(files: dict[str, Path]) -> str:
    """A Markdown table of the keys that `files` set, with their defaults and comments. `files` maps
    each choice of a group to its file in conf/."""
    choices: dict[tuple[str, str, str], list[str]] = {}
    for choice, file in files.items():
        for key in keys_in(file):
            if key.value != {}:
                comment = key.comment or comment_elsewhere(key.name)
                choices.setdefault((key.name, key.shown, comment), []).append(choice)
    several = len(files) > 1
    rows = [
        [f"`{name}`", f"`{value}`", *([", ".join(of)] if several else []), comment]
        for (name, value, comment), of in choices.items()
    ]
    return table(["key", "default", *(["choices"] if several else []), "meaning"], rows)


@cache
def comment_elsewhere(name: str) -> str:
    """Finds a comment for a key in the files of all choices. It is used when a choice sets the key
    without a comment."""
    files = [CONF / group / f"{choice}.yaml" for group in GROUPS for choice in choices_of(group)]
    keys = [key for file in files for key in keys_in(file) if key.name == name]
    return next((key.comment for key in keys if key.comment), "")


def table(head: list[str], rows: "Iterator[list[str]] | list[list[str]]") -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [
        [html.escape(cell, quote=False).replace("|", r"\|") for cell in line] for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) if len(lines) > 2 else ""


if __name__ == "__main__":
    print(page())
