"""The laws of the wheel: it holds the whole package, and works where there is no checkout."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import test_own_parts as own_parts
from checkpoint_files import content, save
from running import ROOT, SMALL, summary
from tab_runs import board

import headscope
from headscope.cli.main import COMMANDS

pytestmark = pytest.mark.slow

PACKAGE = Path(headscope.__file__).parent
README = (ROOT / "README.md").read_text("utf-8")

USE = """
import importlib, pkgutil
from pathlib import Path

import headscope
from headscope.analysis.head_types import Thresholds
from headscope.analysis.metrics import head_metrics
from headscope.analysis.pictures import attention_maps
from headscope.show.report.inputs import ReportInput
from headscope.show.report.write import write_report

for module in pkgutil.walk_packages(headscope.__path__, "headscope."):
    if module.name != "headscope.conversion.transformer_lens":  # needs transformer_lens
        importlib.import_module(module.name)

loaded = headscope.load("model.safetensors")
reading = loaded.read("To be, or")
assert head_metrics(reading.attention)["entropy"].shape == (2, 4)
attention_maps(reading.attention[0], reading.labels, title="Layer 0").savefig("layer_0.png")
write_report(
    ReportInput.of_text(loaded, "To be, or"), Path("report"), thresholds=Thresholds(), track=iter
)
print(Path(headscope.__file__).parents[1])
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


def test_they_hold_the_package_and_conf_and_nothing_else(built: Path) -> None:
    package, conf = files_in(PACKAGE), files_in(ROOT / "conf")
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    inside = {f"headscope/{name}" for name in package | {f"conf/{file}" for file in conf}}
    assert {name for name in names if ".dist-info/" not in name} == inside
    about = f"headscope-{headscope.__version__}.dist-info"
    assert {f"{about}/licenses/LICENSE", f"{about}/entry_points.txt"} <= set(names)
    metadata = zipfile.ZipFile(wheel).read(f"{about}/METADATA").decode()
    assert f"\nVersion: {headscope.__version__}\n" in metadata

    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    expected = {f"src/headscope/{name}" for name in package} | {f"conf/{name}" for name in conf}
    assert expected <= set(names)
    top = {name.partition("/")[0] for name in names}
    assert top == {*("src", "conf", "scripts", "pyproject.toml", "README.md", "LICENSE")} | {
        *("CHANGELOG.md", "CITATION.cff", "PKG-INFO", ".gitignore")
    }
    for file in (wheel, source):
        assert file.stat().st_size < 10**6


def test_a_checkpoint_is_opened_and_analyzed_without_the_checkout(site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(content()[0], tmp_path / "model.safetensors")
    monkeypatch.setenv("PYTHONPATH", str(site))
    command = [sys.executable, "-c", USE]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == str(site)
    made = {file.name for file in tmp_path.iterdir()}
    assert made == {"layer_0.png", "model.safetensors", "report"}
    assert (tmp_path / "report" / "attention.html").is_file()
    assert len(list((tmp_path / "report").glob("*.png"))) > 3


def test_all_that_a_user_does_works_with_the_wheel_in_an_empty_folder(
    site: Path, speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(site))

    def run(*words: str) -> str:
        command = [sys.executable, str(site / "bin" / "headscope"), *words]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
        return said.stdout

    assert run("--version") == f"headscope {headscope.__version__}\n"
    for command in COMMANDS:
        assert f"  headscope {command}" in run(command, "--help")
    text = f"data.path={speeches}"
    said = run("train", *SMALL, text, "trainer.max_steps=2", "hydra.run.dir=outputs/run")
    assert "headscope sample checkpoint=outputs/run/" in said
    assert run("sample", "prompt=The", "max_new_tokens=5").startswith("The")
    run("analyze")
    assert (tmp_path / "outputs" / "run" / "analysis" / "attention.html").is_file()
    with board(tmp_path / "outputs", load_fast=False) as served:
        assert "run/tensorboard" in served.runs()

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run("train", "resume=../outputs/run", "trainer.max_steps=3")
    assert summary(tmp_path / "outputs" / "run")["steps"] == 3

    own_parts.write_files()
    files = [f"{file}.py" for file in own_parts.FILES]
    parts = f"parts=[{','.join([*files, 'torch.nn'])}]"
    ways = {"file": own_parts.FROM_A_FILE, "typed": own_parts.ON_THE_COMMAND_LINE}
    small = [word for word in SMALL if not word.startswith("tokenizer")]
    for name, way in ways.items():
        words = [word for each in way.values() for word in each.split()]
        folder = f"outputs/{name}"
        said = run("train", *small, *words, "trainer.max_steps=1", f"hydra.run.dir={folder}")
        assert {"my_attention.py", "my_tokenizer.py"} <= {*re.split(r"[\[\],=\s']+", said)}
        config = Path(folder, ".hydra", "config.yaml").read_text()
        for target in ("my_attention.SlidingWindow", "my_training.SignSGD", "my_text.Sums"):
            assert f"_target_: {target}\n" in config
    chosen = "checkpoint=outputs/typed"
    assert run("sample", parts, chosen, "prompt=The", "max_new_tokens=5").startswith("The")
    run("train", "resume=outputs/file", "trainer.max_steps=2", parts)
    assert summary("outputs/file")["steps"] == 2


def test_uv_accepts_the_line_of_the_readme() -> None:
    if not shutil.which("uv"):
        pytest.skip("needs uv")
    [line] = re.findall(r"^uv pip install .*--torch-backend=cpu", README, re.MULTILINE)
    command = [*line.split(), "--offline", "--dry-run"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "unexpected argument" not in said.stderr
    assert "invalid value" not in said.stderr
