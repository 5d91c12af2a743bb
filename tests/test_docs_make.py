"""The laws of docs/make.py: every table and picture in the docs has a part that makes it, a table
replaces the text between its comments, and a part that fails does not stop the others."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from running import ROOT


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """docs/make.py, on a copy of the docs."""
    spec = importlib.util.spec_from_file_location("docs_make", ROOT / "docs" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "docs_make", module)  # dataclasses look it up
    monkeypatch.syspath_prepend(ROOT / "docs")
    spec.loader.exec_module(module)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return module


def test_every_table_and_picture_is_made_by_one_part(make: ModuleType) -> None:
    made = [name for part in make.PARTS.values() for name in part.makes]
    assert len(made) == len(set(made))
    text = "".join(page.read_text() for page in make.pages_in(ROOT / "docs"))
    tables = {*re.findall(r"<!-- figures: (\w+) -->\n.*?<!-- end -->", text, re.S)}
    assert len(re.findall("<!-- figures:", text)) == text.count("<!-- end -->")
    pictures = [*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.gif")]
    assert {*made} == (tables | {file.stem for file in pictures}) - {"record"}
    for file in pictures:
        assert f"{file.name})" in text


def test_a_table_replaces_the_text_between_its_comments(make: ModuleType) -> None:
    page = "a\n<!-- figures: x -->\nold\n<!-- end -->\nb\n<!-- figures: y -->\nold\n<!-- end -->\n"
    new = make.replace_figures(page, "x", r"| \1 |")
    assert new == page.replace("old", "\n| \\1 |\n", 1)
    assert make.replace_figures(new, "x", r"| \1 |") == new
    assert make.replace_figures(page, "z", "other") == page


def test_a_part_that_fails_does_not_stop_the_others(
    make: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def writes(work) -> None:
        work.table("ladder", "python x", [{"side": "one", "n": 12345}], {"n": "number"})

    def fails(work) -> None:
        raise RuntimeError("no memory")

    parts = {
        "default": make.Part(1, ["default"], fails),  # a row of another table has this name
        "speed": make.Part(1, ["step"], fails),
        "race": make.Part(1, ["race"], lambda work: None),  # makes nothing
        "ladder": make.Part(1, ["ladder"], writes),
    }
    monkeypatch.setattr(make, "PARTS", parts)
    monkeypatch.setattr(sys, "argv", ["make.py"])
    page = Path("docs/performance.md")
    page.write_text(make.replace_figures(page.read_text(), "record", "none"))
    before = Path("docs/variants.md").read_text()
    with pytest.raises(SystemExit, match="failed: default, speed, race"):
        make.main()
    assert "speed failed: RuntimeError: no memory" in capsys.readouterr().err
    assert "| one |" in page.read_text()
    assert "12,345" in page.read_text()
    assert Path("docs/variants.md").read_text() == before
    assert len(re.findall(r"^\| ladder \|", page.read_text(), re.M)) == 1

    monkeypatch.setattr(sys, "argv", ["make.py", "race"])
    parts["race"] = make.Part(1, ["race"], lambda work: work.write("race", "the new race"))
    make.main()
    assert "the new race" in page.read_text()
    record = page.read_text().partition("<!-- figures: record -->")[2].partition("<!-- end -->")[0]
    # The record keeps other parts, but takes no rows from other tables.
    assert re.findall(r"^\| (\w+) \|", record, re.M) == ["part", "race", "ladder"]


def test_a_command_in_the_docs_has_no_path_of_this_machine(make: ModuleType) -> None:
    without_paths = importlib.import_module("parts").without_paths
    quoted = (
        """race 'suite.nanogpt='"'"'/home/me/nanoGPT'"'"'' 'data.path='"'"'/x/y.txt'"'"'' a=1"""
    )
    assert without_paths(quoted) == "race suite.nanogpt=path/to/nanoGPT a=1"
    assert without_paths("race data.path=/x/y.txt\n```") == "race\n```"


def test_an_empty_cell_of_a_csv_file_becomes_a_dash(make: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("choice,loss,text\na,1.23456,\nb,,x\n")
    rows = importlib.import_module("parts").read_rows(tmp_path / "rows.csv", "choice")
    assert rows == [
        {"choice": "a", "loss": 1.2346, "side": "a"},
        {"choice": "b", "text": "x", "side": "b"},
    ]
    (tmp_path / "figures").mkdir()
    make.Work(tmp_path / "figures", quick=False).table("t", "python x", rows, {"loss": "loss"})
    assert "| b   |      - |" in (tmp_path / "figures" / "t.md").read_text()


def test_an_unknown_part_is_refused(make: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make.py", "speeed"])
    with pytest.raises(SystemExit) as ended:
        make.main()
    assert ended.value.code == 2
