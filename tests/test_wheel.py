"""The laws of the wheel: it holds the whole package, and works where there is no checkout."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from many_processes import end, start
from running import ROOT, SMALL, summary
from tab_runs import board

import headscope
from headscope.cli.main import COMMANDS

pytestmark = pytest.mark.slow

PACKAGE = Path(headscope.__file__).parent

USE = """
import importlib, pkgutil

import headscope

for module in pkgutil.walk_packages(headscope.__path__, "headscope."):
    if module.name != "headscope.conversion.transformer_lens":  # needs transformer_lens
        importlib.import_module(module.name)
print(headscope.__file__)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source distribution."""
    pytest.importorskip("hatchling", reason="needs hatchling, of the dev extra")
    folder = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def site(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed the wheel."""
    folder = tmp_path_factory.mktemp("site")
    [wheel] = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(folder), str(wheel)], check=True, capture_output=True)
    return folder


def files_in(folder: Path) -> set[str]:
    return {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_they_hold_the_package_conf_and_the_glossary_and_nothing_else(built: Path) -> None:
    package, others = files_in(PACKAGE), {f"conf/{name}" for name in files_in(ROOT / "conf")}
    others.add("docs/glossary.md")
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    about = f"headscope-{headscope.__version__}.dist-info"
    names = {*zipfile.ZipFile(wheel).namelist()}
    inside = {f"headscope/{name}" for name in package | others}
    assert {name for name in names if not name.startswith(about)} == inside
    assert {f"{about}/licenses/LICENSE", f"{about}/entry_points.txt"} <= names
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {f"src/headscope/{name}" for name in package} | others
    assert {name.partition("/")[0] for name in names} == {
        *("src", "conf", "docs", "scripts", "pyproject.toml", "README.md", "LICENSE"),
        *("CHANGELOG.md", "CITATION.cff", "PKG-INFO", ".gitignore"),
    }
    for file in (wheel, source):
        assert file.stat().st_size < 10**6


def test_all_that_a_user_does_works_with_the_wheel(site, speeches, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(site))

    def run(*words: str, program: tuple[str, ...] = (f"{site}/bin/headscope",)) -> str:
        return end(start([sys.executable, *program, *words])).succeeded().out

    assert run(program=("-c", USE)).splitlines()[-1] == str(site / "headscope/__init__.py")
    assert run("--version") == f"headscope {headscope.__version__}\n"
    for command in COMMANDS:
        assert f"  headscope {command}" in run(command, "--help")
    text = f"data.path={speeches}"
    said = run("train", *SMALL, text, "trainer.max_steps=2", "hydra.run.dir=outputs/run")
    assert "headscope sample checkpoint=outputs/run/" in said
    assert run("sample", "prompt=The", "max_new_tokens=5").startswith("The")
    run("analyze")
    written = {file.suffix for file in Path("outputs/run/analysis").iterdir()}
    assert written >= {".html", ".csv", ".png", ".svg"}
    with board(tmp_path / "outputs", load_fast=False) as served:
        assert "run/tensorboard" in served.runs()

    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    run("train", "resume=../outputs/run", "trainer.max_steps=3")
    assert summary("../outputs/run")["steps"] == 3
