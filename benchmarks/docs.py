"""Runs the commands in the docs, and replaces the figures below them by what the commands give now:

    python -m benchmarks.docs [name ...]
    python -m benchmarks.docs quickstart        # a notebook: trains two models, in four minutes
    python -m benchmarks.docs heads_notebook    # another one: analyzes the newest run in outputs/

In README.md and docs/*.md, figures stand between two comments, below their commands:

    <!-- figures: NAME [from=FILE row=TEXT columns=KEY,KEY] [COPY=FILE] -->
    (a code block with the commands)
    (the figures)
    <!-- end -->

The commands run in bash, in a new folder outputs/docs/NAME/, where `scripts` and `data` are those
of the checkout. The figures are what the commands print, or a table of `columns` if `from` is
given: the rows of a CSV or JSON file, or with `from=-` the JSON objects that are printed. `row`
gives the name of a row, such as `L{layer}H{head}`; without it, the names are the comments in the
commands. `pivot=KEY` makes one row of all rows with the same name, with a column for each value of
KEY. COPY=FILE copies a picture or a page to docs/COPY. Below the figures stand the commit, the date
and the machine. So the code must be that of a commit: only README.md and docs/ may have changes.

Without a name, the figures of all pages are made, in about three hours on two cores. If commands
fail, the others continue. Install the packages with pip install -e '.[dev]', which includes
transformers. The comparison with nanoGPT needs a clone of it in data/. Without a network, first
train with experiment=nanogpt_cpu and data.path=, a local copy of tiny-shakespeare: its tokens stay
in data/.
"""

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
from pathlib import Path
from typing import Any

import nbformat
import torch
from nbclient import NotebookClient

from benchmarks.table import table

ROOT = Path(__file__).resolve().parents[1]

NOTEBOOKS = ("quickstart", "heads_notebook")

BLOCK = re.compile(
    r"(?P<head><!-- figures: (?P<name>\w+)(?P<options>.*?) -->\n\n```\n(?P<commands>.*?)\n```\n\n)"
    r".*?(?P<end>\n\n<!-- end -->)",
    re.S,
)

Block = re.Match[str]
"""A place for figures in a page. A name that two pages use has the same commands there."""


def pages_in(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def blocks_in(root: Path) -> dict[str, Block]:
    """The blocks of all pages by name."""
    texts = [page.read_text(encoding="utf-8") for page in pages_in(root)]
    return {block["name"]: block for text in texts for block in BLOCK.finditer(text)}


def options_of(block: Block) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(block["options"]))


def make(block: Block, root: Path) -> None:
    """Run the commands of a block, and replace its figures and pictures.

    Raises CalledProcessError when a command fails, and ValueError when it did not make a file, or
    when the code is not that of a commit.
    """
    print(block["commands"], flush=True)
    check_code(root)
    commit, made_by = git(root, "rev-parse", "HEAD").strip(), provenance(root)
    folder = new_folder(block["name"], "scripts", "data", root=root)
    paths = {"PATH": Path(sys.executable).parent, "PYTHONPATH": root}
    added = {name: f"{path}{os.pathsep}{os.environ.get(name, '')}" for name, path in paths.items()}
    env = {**os.environ, **added}
    # The console output of a training is no figure: it goes to standard error.
    training = re.compile(r"^(python scripts/(train|compare)\.py.*)$", re.M)
    command = ["bash", "-ec", training.sub(r"\1 1>&2", block["commands"])]
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, check=True)
    check_code(root, commit)
    figures = f"{figures_of(block, folder, done.stdout.decode())}\n\n{made_by}"
    for name, source in options_of(block).items():
        if name.endswith((".png", ".html")):
            [file] = folder.glob(source)
            shutil.copy(file, root / "docs" / name)

    def updated(found: Block) -> str:
        here = found["name"] == block["name"]
        return f"{found['head']}{figures}{found['end']}" if here else found[0]

    for page in pages_in(root):
        page.write_text(BLOCK.sub(updated, page.read_text(encoding="utf-8")), encoding="utf-8")


def new_folder(name: str, *links: str, root: Path = ROOT) -> Path:
    """An empty folder outputs/docs/NAME/, with links to these folders of the checkout."""
    folder = root / "outputs" / "docs" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for link in links:
        (folder / link).symlink_to(root / link)
    return folder


def figures_of(block: Block, folder: Path, printed: str) -> str:
    """The figures as Markdown: a table, the tables of a benchmark, or what was printed."""
    options = options_of(block)
    if "from" not in options:
        if printed.startswith("```"):  # a benchmark: first its command
            return printed.split("```\n\n", 1)[1].strip()
        lines = (textwrap.fill(line, 100) for line in printed.strip().splitlines())
        return "```\n" + "\n".join(lines) + "\n```"
    rows = rows_of(options["from"], folder, printed)
    names = re.findall(r"^# (.*)$", block["commands"], re.M)
    if "row" in options:
        names = [options["row"].format_map(row) for row in rows]
    for name, row in zip(names, rows, strict=True):
        row["side"] = name
        # Further digits of a validation loss depend on the processor.
        row.update({key: round(row[key], 3) for key in row if key.startswith("val_")})
    columns = options["columns"].split(",")
    if pivot := options.get("pivot"):
        wide: dict[str, dict[str, Any]] = {name: {"side": name} for name in names}
        for row in rows:
            wide[row["side"]][f"{pivot} {row[pivot]}"] = row[columns[0]]
        rows, columns = [*wide.values()], []
    return table(rows, columns)


def rows_of(source: str, folder: Path, printed: str) -> list[dict[str, Any]]:
    """The JSON objects that were printed, if `source` is `-`, or those in the file `source`, or its
    rows if it is a CSV file."""
    if source != "-":
        [file] = folder.glob(source)
        printed = file.read_text(encoding="utf-8")
        if file.suffix == ".csv":
            reader = csv.DictReader(printed.splitlines())
            return [{key: parsed(value) for key, value in row.items()} for row in reader]
    rows, decoder = [], json.JSONDecoder()
    while printed := printed.strip():
        row, end = decoder.raw_decode(printed)
        rows.append(row)
        printed = printed[end:]
    return rows


def parsed(text: str) -> Any:
    """A cell of a CSV file: a number, rounded to what a table needs, the text, or None."""
    try:
        return round(json.loads(text), 4)
    except ValueError:
        return text or None


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Runs all cells in `folder`, with this checkout's headscope. Raises CellExecutionError if a
    cell fails."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    # tqdm warns if ipywidgets is missing, and the warning contains a path of this machine.
    env = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore:IProgress not found"}
    where = {"metadata": {"path": str(folder)}}
    options: dict[str, Any] = {"timeout": 1200, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources=where, **options).execute(env=env)


def update_notebook(name: str) -> None:
    """Runs a notebook in docs/, and stores in it what it shows."""
    file = ROOT / "docs" / f"{name}.ipynb"
    notebook = nbformat.read(file, as_version=4)
    execute(notebook, new_folder(name, "data") if name == "quickstart" else file.parent)
    nbformat.write(notebook, file)


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True).stdout


def check_code(root: Path, commit: str = "HEAD") -> None:
    """Raises ValueError if a tracked file outside of the pages is not as in the commit."""
    pages = (":!README.md", ":!docs")
    if changed := git(root, "diff", "--name-only", commit, "--", ".", *pages).splitlines():
        raise ValueError(f"{changed[0]} is not as in the commit {commit}: commit the code first")


def provenance(root: Path) -> str:
    """One line about the commit, the date and the machine."""
    commit = git(root, "describe", "--always").strip()
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    cpu = found[1] if found else platform.machine()
    where = f"{os.cpu_count()} cores, {cpu}, PyTorch {torch.__version__}"
    return f"Commit {commit}, {time.strftime('%Y-%m-%d')}, {where}."


def main(names: list[str]) -> None:
    blocks = blocks_in(ROOT)
    if unknown := {*names} - {*blocks, *NOTEBOOKS}:
        sys.exit(f"{__doc__}\nnames: {', '.join([*blocks, *NOTEBOOKS])}, not {', '.join(unknown)}")
    failed = []
    for name in names or blocks:
        print(f"{name}:", flush=True)
        try:
            make(blocks[name], ROOT) if name in blocks else update_notebook(name)
        except Exception as error:  # the others continue
            failed.append(name)
            print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
