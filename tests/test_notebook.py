"""The example notebook, run as a reader runs it, on a run of their own."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from running import ROOT, SMALL, Script

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "docs" / "heads_notebook.ipynb"


def test_it_runs_from_top_to_bottom_and_shows_its_pictures(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = script("train", *SMALL, f"data.path={speeches}", "trainer.max_steps=3")
    assert said.code == 0, said.err
    Path("docs").mkdir()
    shutil.copy(NOTEBOOK, "docs")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src")]))
    notebook = nbformat.read("docs/heads_notebook.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": "docs"}}).execute()

    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 3
    warned = "".join(output["text"] for output in shown if output.get("name") == "stderr")
    assert all(line.startswith("Reading data.path=") for line in warned.splitlines())
    words = "".join(output.get("text", "") for output in shown)
    assert "2 layers of 4 heads" in words
    assert "with an error of" in words


def test_what_is_shown_in_the_docs_was_run_and_says_nothing_of_a_machine() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "/home/" not in NOTEBOOK.read_text()
    assert NOTEBOOK.stat().st_size < 700_000
