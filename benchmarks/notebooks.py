"""Runs the notebooks in docs/, and stores in them what they show:

    python -m benchmarks.notebooks quickstart       # trains two models, in about four minutes
    python -m benchmarks.notebooks heads_notebook   # analyzes the newest run in outputs/

Install the packages with pip install -e '.[dev]'.
"""

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from benchmarks.docs import ROOT, new_folder


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Runs all cells in `folder`, with this checkout's headscope. Raises CellExecutionError if a
    cell fails."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    # tqdm warns if ipywidgets is missing, and the warning contains a path of this machine.
    env = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore:IProgress not found"}
    where = {"metadata": {"path": str(folder)}}
    options: dict[str, Any] = {"timeout": 1200, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources=where, **options).execute(env=env)


if __name__ == "__main__":
    if not sys.argv[1:] or {*sys.argv[1:]} - {"quickstart", "heads_notebook"}:
        sys.exit(__doc__)
    for name in sys.argv[1:]:
        folder = new_folder(name, "data") if name == "quickstart" else ROOT / "docs"
        file = ROOT / "docs" / f"{name}.ipynb"
        notebook = nbformat.read(file, as_version=4)
        execute(notebook, folder)
        nbformat.write(notebook, file)
