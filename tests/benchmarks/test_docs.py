"""The laws of the docs: every figure has its commands, exactly the marked figures are replaced by
what the commands give, and generated files are up to date."""

import re
import subprocess
from pathlib import Path

import pytest
from choices import slow_unless
from running import ROOT

from benchmarks import docs, pictures
from benchmarks.pages import GENERATED


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The README.md of a checkout."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("a page")
    return tmp_path / "README.md"


def text_of(commands: str, figures: str = "old", options: str = "") -> str:
    """A page with two blocks, `printed` and `other`. The commands of the second fail."""
    begin, end = "<!-- figures: {} -->\n\n```\n{}\n```\n\n", "\n\n<!-- end -->\n\nmore text\n\n"
    first = begin.format(f"printed {options}", commands) + figures + end
    return f"text\n\n{first}{begin.format('other', 'false')}kept{end}"


def made(page: Path, commands: str, options: str = "") -> str:
    """The page, after its first block was made with these commands."""
    page.write_text(text_of(commands, options=options))
    docs.make(docs.blocks_in(page.parent)["printed"], page.parent)
    return page.read_text()


def test_every_figure_and_picture_in_the_docs_is_made_by_one_block():
    blocks = docs.blocks_in(ROOT)
    text = "".join(page.read_text() for page in docs.pages_in(ROOT))
    assert {*re.findall(r"<!-- figures: (\w+)", text)} == {*blocks}
    assert "-dirty" not in text  # figures are those of a commit
    starts, ends = text.count("<!-- figures:"), text.count("<!-- end -->")
    assert starts == ends == len(docs.BLOCK.findall(text))
    options = [docs.options_of(block) for block in blocks.values()]
    copied = [key for each in options for key in each if key.endswith((".png", ".html"))]
    files = [file for kind in ("png", "gif", "html") for file in (ROOT / "docs").glob(f"*.{kind}")]
    screenshots = re.findall(r'"(\w+\.(?:png|gif))"', Path(pictures.__file__).read_text())
    assert sorted([*copied, *screenshots]) == sorted(file.name for file in files)
    for file in files:
        assert f"{file.name})" in text
    for each in options:
        assert {"pivot", "row", "columns", "from", *copied} >= {*each}
        assert ("from" in each) == ("columns" in each)


def test_tables_are_made_of_what_is_printed_and_of_files(page):
    commands = '# one\necho \'{"a_b": 1.5, "c": 2}\'\n# two\necho \'{"a_b": true}\''
    printed = made(page, commands, "from=- columns=a_b,c")
    lines = ["|     | a b |   c |", "| --- | --: | --: |", "| one | 1.5 |   2 |"]
    assert "\n".join([*lines, "| two | yes |   - |"]) in printed
    table = "n,k,v\\n1,x,0.123456\\n0,x,\\n1,y,3\\n0,y,word\\n"
    write = f"mkdir -p out; printf '{table}' > out/rows.csv"
    rows = made(page, write, "from=o*/rows.csv row={k}{n} columns=v")
    found = dict(re.findall(r"^\| (\w+) +\| +(\S+) \|$", rows, re.M))
    assert found == {"x1": "0.1235", "x0": "-", "y1": "3", "y0": "word"}
    wide = made(page, write, "from=o*/rows.csv row={k} pivot=n columns=v")
    found = re.findall(r"^\| (\w*) +\| +(\S.*?) \| +(\S.*?) \|$", wide, re.M)
    assert found == [("", "n 1", "n 0"), ("x", "0.1235", "-"), ("y", "3", "word")]


def test_figures_come_from_the_code_of_a_commit(page, monkeypatch):
    def git(*words):
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *name, *words], cwd=page.parent, check=True, capture_output=True)

    code = page.parent / "code.py"
    code.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    assert re.search(r"\nnew\n.*\nCommit [0-9a-f]{7,}, ", made(page, "echo new"), re.S)
    commit = "git -c user.name=a -c user.email=a@b.c commit -am a"
    assert "newer\n" in made(page, f"{commit} 1>&2; echo newer")  # pages may change
    code.write_text("2")
    with pytest.raises(ValueError, match=r"code\.py .*: commit the code first"):
        made(page, "echo newest")
    monkeypatch.setattr(docs, "ROOT", page.parent)
    with pytest.raises(SystemExit, match="failed: printed"):
        docs.main(["printed"])
    code.write_text("1")
    with pytest.raises(ValueError, match=r"code\.py"):  # the commands change the code
        made(page, "echo 2 > ../../../code.py")
    assert "new" not in page.read_text()


@pytest.mark.parametrize("name", slow_unless({*GENERATED} - {"docs/ecosystem.md"}, GENERATED))
def test_a_generated_file_is_up_to_date(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert GENERATED[name](text) == text, f"python -m benchmarks.pages {name}"


def test_readers_see_no_text_for_maintainers():
    for page in [*docs.pages_in(ROOT), *(ROOT / "docs").glob("*.ipynb")]:
        seen = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.S)
        found = re.search(
            r"(?i)generated (from|by|:)|page is generated|edit that|updates the", seen
        )
        assert found is None, (page.name, found)


def test_a_block_that_fails_changes_nothing_and_the_others_are_made(page, monkeypatch, capsys):
    page.write_text(text_of(r"echo '\1 |'"))
    monkeypatch.setattr(docs, "ROOT", page.parent)
    with pytest.raises(SystemExit, match="failed: other"):
        docs.main(["other", "printed"])
    assert "other failed: CalledProcessError" in capsys.readouterr().err
    new = f"```\n\\1 |\n```\n\n{docs.provenance(page.parent)}"
    assert page.read_text() == text_of(r"echo '\1 |'", new)
    with pytest.raises(SystemExit, match="names: printed, other"):
        docs.main(["unknown"])
