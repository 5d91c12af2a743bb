"""The laws of the wheel: it holds the whole package, and works where there is no checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkpoint_files import content, save
from running import ROOT

import headscope

pytestmark = pytest.mark.slow

PACKAGE = Path(headscope.__file__).parent

USE = """
import importlib, pkgutil
from pathlib import Path

import headscope
from headscope.analysis.head_types import Thresholds
from headscope.analysis.metrics import head_metrics
from headscope.analysis.pictures import attention_maps
from headscope.analysis.report.inputs import ReportInput
from headscope.analysis.report.write import write_report

for module in pkgutil.walk_packages(headscope.__path__, "headscope."):
    if module.name != "headscope.conversion.transformer_lens":  # needs transformer_lens
        importlib.import_module(module.name)

loaded = headscope.load("model.safetensors")
reading = loaded.attention("To be, or")
assert head_metrics(reading.weights)["entropy"].shape == (2, 4)
attention_maps(reading.weights[0], reading.labels, title="Layer 0").savefig("layer_0.png")
write_report(
    ReportInput.of_text(loaded, "To be, or"), Path("report"), thresholds=Thresholds(), track=iter
)
print(Path(headscope.__file__).parents[1])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="needs hatchling, of the dev extra")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [file] = folder.iterdir()
    return file


def test_it_holds_every_file_of_the_package(wheel):
    ours = {
        file.relative_to(PACKAGE.parent).as_posix()
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == ours


def test_a_checkpoint_is_opened_and_analyzed_without_the_checkout(wheel, tmp_path, monkeypatch):
    site, folder = tmp_path / "site", tmp_path / "elsewhere"
    folder.mkdir()
    zipfile.ZipFile(wheel).extractall(site)  # all that an installer does with it
    save(content()[0], folder / "model.safetensors")
    monkeypatch.setenv("PYTHONPATH", str(site))
    command = [sys.executable, "-c", USE]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == str(site)
    made = {file.name for file in folder.iterdir()}
    assert made == {"layer_0.png", "model.safetensors", "report"}
    assert (folder / "report" / "attention.html").is_file()
    assert len(list((folder / "report").glob("*.png"))) > 3
