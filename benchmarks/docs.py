"""Runs the commands in the docs, and replaces the figures below them by what the commands give now:

    python -m benchmarks.docs [name ...]

In README.md and docs/*.md, figures stand between two comments, below their commands:

    <!-- figures: NAME [from=FILE row=TEXT columns=KEY,KEY] [PICTURE=FILE] -->
    (a code block with the commands)
    (the figures)
    <!-- end -->

The commands run in bash, in a new folder outputs/docs/NAME/, where `scripts` and `data` are those
of the checkout. The figures are what the commands print, or a table of `columns` if `from` is
given: the rows of a CSV or JSON file, or with `from=-` the JSON objects that are printed. `row`
gives the name of a row, such as `L{layer}H{head}`; without it, the names are the comments in the
commands. `sort=KEY` sorts the rows. `pivot=KEY` makes one row of all rows with the same name, with
a column for each value of KEY. PICTURE=FILE copies a picture to docs/. Below the figures stand the
commit, the date and the machine.

Without a name, the figures of all pages are made, in about three hours on two cores. If commands
fail, the others continue. The environment variable SHAKESPEARE=input.txt names a local copy of
tiny-shakespeare. NANOGPT=folder names a nanoGPT checkout, which one of the commands needs. Install
the packages with pip install -e '.[dev]', which includes transformers.
"""

import argparse
import csv
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.table import table

ROOT = Path(__file__).resolve().parents[1]
PICTURE_WIDTH = 1200
"""The largest width of a copied picture, in pixels."""

BLOCK = re.compile(
    r"<!-- figures: (\w+)(.*?) -->\n\n```\n(.*?)\n```\n\n(.*?)\n\n<!-- end -->", re.S
)


@dataclass(frozen=True)
class Block:
    """A place for figures in a page: what its first comment says, and its commands."""

    name: str
    options: dict[str, str]
    commands: str


def pages_in(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def blocks_in(root: Path) -> dict[str, Block]:
    """The blocks of all pages by name. A name that two pages use has the same commands there."""
    found = {}
    for page in pages_in(root):
        for name, options, commands, _ in BLOCK.findall(page.read_text(encoding="utf-8")):
            pairs = dict(word.split("=", 1) for word in shlex.split(options))
            found[name] = Block(name, pairs, commands)
    return found


def make(block: Block, root: Path) -> None:
    """Run the commands of a block, and replace its figures and pictures.

    Raises CalledProcessError when a command fails, and OSError when it did not make a file.
    """
    folder = root / "outputs" / "docs" / block.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("scripts", "data"):
        (folder / name).symlink_to(root / name)
    paths = {"PATH": Path(sys.executable).parent, "PYTHONPATH": root}
    added = {name: f"{path}{os.pathsep}{os.environ.get(name, '')}" for name, path in paths.items()}
    done = subprocess.run(
        ["bash", "-ec", with_local_paths(block.commands)],
        cwd=folder,
        env={**os.environ, **added},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures = f"{figures_of(block, folder, done.stdout)}\n\n{provenance(root)}"
    for name, source in block.options.items():
        if name.endswith(".png"):
            picture = Image.open(newest(folder, source)).convert("RGB")
            picture.thumbnail((PICTURE_WIDTH, 10 * PICTURE_WIDTH))
            picture.save(root / "docs" / name, optimize=True)
    for page in pages_in(root):
        text = page.read_text(encoding="utf-8")
        page.write_text(with_figures(text, block.name, figures), encoding="utf-8")


def with_figures(text: str, name: str, figures: str) -> str:
    """A copy of the page `text` with other figures in the block `name`."""

    def replaced(found: re.Match[str]) -> str:
        if found[1] != name:
            return found[0]
        first = f"<!-- figures: {name}{found[2]} -->\n\n```\n{found[3]}\n```"
        return f"{first}\n\n{figures}\n\n<!-- end -->"

    return BLOCK.sub(replaced, text)


def with_local_paths(commands: str) -> str:
    """The commands with the paths of this machine. The console output of a training is no figure:
    it goes to standard error."""
    shakespeare, nanogpt = os.environ.get("SHAKESPEARE"), os.environ.get("NANOGPT")
    if shakespeare:
        quoted = shlex.quote(f"data.path={Path(shakespeare).resolve()}")
        recipes = re.compile(r"^(.*experiment=(?!heads|best_sotu|induction).*)$", re.M)
        commands = recipes.sub(lambda found: f"{found[1]} {quoted}", commands)
    if nanogpt:
        commands = commands.replace("path/to/nanoGPT", shlex.quote(str(Path(nanogpt).resolve())))
    return re.sub(r"^(python scripts/(train|compare)\.py.*)$", r"\1 1>&2", commands, flags=re.M)


def figures_of(block: Block, folder: Path, printed: str) -> str:
    """The figures as Markdown: a table, the tables of a benchmark, or what was printed."""
    source = block.options.get("from")
    if source is None:
        if printed.startswith("|"):  # a table
            return printed.strip()
        command = re.match(r"```\npython scripts/benchmark.py.*?\n```\n+", printed)
        if command:
            return printed[command.end() :].strip()
        lines = (textwrap.fill(line, 100) for line in printed.strip().splitlines())
        return "```\n" + "\n".join(lines) + "\n```"
    rows = printed_rows(printed) if source == "-" else file_rows(newest(folder, source))
    if "row" in block.options:
        names = [block.options["row"].format_map(row) for row in rows]
    else:
        names = re.findall(r"^# (.*)$", block.commands, re.M)
    rows = [{**row, "side": name} for name, row in zip(names, rows, strict=True)]
    if "sort" in block.options:
        rows.sort(key=lambda row: row[block.options["sort"]])
    columns = block.options["columns"].split(",")
    if pivot := block.options.get("pivot"):
        [value], wide = columns, {name: {"side": name} for name in names}
        for row in rows:
            wide[row["side"]][f"{pivot} {row[pivot]}"] = row[value]
        rows = [*wide.values()]
        columns = [key for key in rows[0] if key != "side"]
    return table(rows, {key: key.replace("_", " ") for key in columns})


def printed_rows(text: str) -> list[dict[str, Any]]:
    """The JSON objects in a text that has nothing else."""
    rows, decoder = [], json.JSONDecoder()
    while text := text.strip():
        row, end = decoder.raw_decode(text)
        rows.append(row)
        text = text[end:]
    return rows


def file_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file, with numbers as numbers, or the object in a JSON file."""
    if file.suffix == ".json":
        return printed_rows(file.read_text(encoding="utf-8"))
    with file.open(newline="", encoding="utf-8") as stream:
        rows = [*csv.DictReader(stream)]
    return [{key: parsed(value) for key, value in row.items()} for row in rows]


def parsed(text: str) -> Any:
    """A cell of a CSV file: an int, a float rounded to what a table needs, the text, or None."""
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else round(float(text), 4)
    except ValueError:
        return text or None


def newest(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime)
    if not files:
        raise FileNotFoundError(f"{pattern} was not made")
    return files[-1]


def provenance(root: Path) -> str:
    """One line about the commit, the date and the machine."""
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=root, capture_output=True, text=True).stdout.strip()
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    cpu = found[1] if found else platform.machine()
    where = f"{os.cpu_count()} cores, {cpu}, PyTorch {torch.__version__}"
    return f"Commit {commit}, {time.strftime('%Y-%m-%d')}, {where}."


def main() -> None:
    blocks = blocks_in(ROOT)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.docs",
        description=__doc__,
        epilog="names: " + ", ".join(blocks),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help="figures to make; default: all")
    names = parser.parse_args().names
    for name in names:
        if name not in blocks:
            parser.error(f"{name} is not one of: {', '.join(blocks)}")
    failed = []
    for name in names or blocks:
        print(f"{name}:\n{blocks[name].commands}", flush=True)
        try:
            make(blocks[name], ROOT)
        except Exception as error:  # the others continue
            failed.append(name)
            print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
