"""The site that mkdocs.yml builds from docs/, and its demo of the viewer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT

import headscope.nn
from benchmarks.pages import DEMO, data_of
from headscope.analysis.headers import PER_STEP


def test_the_demo_has_the_current_format_and_is_small() -> None:
    """If the format of its data has changed: python -m benchmarks.docs demo"""
    page = DEMO.read_text("utf-8")
    steps = data_of(page)["runs"][0]["history"]["steps"]
    assert len(steps) >= 10
    assert all(step.keys() >= {*PER_STEP} for step in steps)
    assert len(page) < 1.5 * 2**20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs mkdocs, of the dev extra")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_reached_and_loads_nothing_from_another_host(site: Path) -> None:
    links = set(re.findall(r'href="(\w+\.html)"', (site / "analysis.html").read_text("utf-8")))
    pages = [page for page in (ROOT / "docs").iterdir() if page.suffix in (".md", ".ipynb")]
    assert links >= {DEMO.name} | {f"{page.stem}.html" for page in pages}
    assert (site / DEMO.name).read_bytes() == DEMO.read_bytes()
    host = r"[\"']?(?:https?:)?//"
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = file.read_text("utf-8")
        found = re.findall(rf"<(?:script|link|img|iframe|source)\b[^>]*={host}[^>]*>", text)
        found += re.findall(rf"(?:url\(|@import)\s*{host}.*", text)
        assert [each for each in found if 'rel="canonical"' not in each] == []
        assert 'data-md-component="source"' not in text  # would ask GitHub for the number of stars


@pytest.mark.slow
def test_every_page_says_that_nothing_is_released(site: Path) -> None:
    """When the first version is released: remove this test and docs/theme/main.html."""
    for name in ("index.html", "analysis.html", "quickstart.html"):
        _, _, after = (site / name).read_text("utf-8").partition('data-md-component="announce"')
        assert "not released yet" in after.partition("<header")[0]


@pytest.mark.slow
def test_the_reference_has_every_part_with_its_signature(site: Path) -> None:
    page = (site / "api.html").read_text("utf-8")
    public = [*("load", "train", "Tokenizer", "Corpus", "adamw", "TrainedModel.read")]
    public += [f"nn.{name}" for name in headscope.nn.__all__]
    assert [name for name in public if f'id="headscope.{name}"' not in page] == []
    assert {"qk_norm", "tied_head", "max_new_tokens"} <= {*re.findall(r'"n">(\w+)</span>', page)}
