"""The notebooks in docs/, run as a reader runs them, on small runs."""

import re
from pathlib import Path

import nbformat
import pytest
from running import ROOT, SMALL, Script

from benchmarks.docs import execute

pytestmark = pytest.mark.slow

HEADS, QUICKSTART = (ROOT / "docs" / f"{name}.ipynb" for name in ("heads_notebook", "quickstart"))


def outputs_of(notebook: nbformat.NotebookNode, folder: Path) -> list[nbformat.NotebookNode]:
    execute(notebook, folder)
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_heads_runs_and_shows_its_pictures(script: Script, speeches: Path) -> None:
    script("train", *SMALL, f"data.path={speeches}", "trainer.max_steps=3").succeeded()
    Path("docs").mkdir()
    shown = outputs_of(nbformat.read(HEADS, as_version=4), Path("docs"))
    assert sum("image/png" in output.get("data", {}) for output in shown) == 3
    warned = "".join(output["text"] for output in shown if output.get("name") == "stderr")
    assert all(line.startswith("Reading data.path=") for line in warned.splitlines())
    words = "".join(output.get("text", "") for output in shown)
    assert "2 layers of 4 heads" in words
    assert "with an error of" in words


def test_the_quickstart_trains_twice_and_shows_heads(tmp_path: Path, speeches: Path) -> None:
    notebook = nbformat.read(QUICKSTART, as_version=4)
    [parameters] = [cell for cell in notebook.cells if cell["id"] == "parameters"]
    parameters.source = f"settings = {[*SMALL, f'data.path={speeches}']}\nsteps = 8"
    shown = outputs_of(notebook, tmp_path)
    data = [output["data"] for output in shown if "data" in output]
    live, frame = [each.get("text/html", each["text/plain"])[:7] for each in data[:2]]
    assert (live, frame, len(data)) == ("step 8 ", "<iframe", 4)
    warned = [output["text"] for output in shown if output.get("name") == "stderr"]
    assert all("only the first 32 (block_size)" in text for text in warned)
    assert "nats per token" in "".join(output.get("text", "") for output in shown)


@pytest.mark.parametrize("file", [HEADS, QUICKSTART], ids=lambda file: file.stem)
def test_what_is_shown_in_the_docs_was_run_and_says_nothing_of_a_machine(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not re.search(r"/home/|site-packages|\\u001b", file.read_text("utf-8"))
    assert file.stat().st_size < 750_000
