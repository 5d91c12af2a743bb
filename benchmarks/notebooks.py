"""Runs the notebooks in docs/, and stores in them what they show:

    python -m benchmarks.notebooks quickstart       # trains two models, in about four minutes
    python -m benchmarks.notebooks heads_notebook   # analyzes the newest run in outputs/

Install the packages with pip install -e '.[dev]'.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Runs all cells in `folder`, with this checkout's headscope. Raises CellExecutionError if a
    cell fails."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    # tqdm warns if ipywidgets is missing, and the warning contains a path of this machine.
    env = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore:IProgress not found"}
    where = {"metadata": {"path": str(folder)}}
    options: dict[str, Any] = {"timeout": 1200, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources=where, **options).execute(env=env)


def main(names: list[str]) -> None:
    if not names or {*names} - {"quickstart", "heads_notebook"}:
        sys.exit(__doc__)
    for name in names:
        folder = DOCS
        if name == "quickstart":
            folder = ROOT / "outputs" / "docs" / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "data").symlink_to(ROOT / "data")
        notebook = nbformat.read(DOCS / f"{name}.ipynb", as_version=4)
        execute(notebook, folder)
        nbformat.write(notebook, DOCS / f"{name}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
