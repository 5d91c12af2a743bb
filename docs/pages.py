"""Takes screenshots of pages in a browser, and runs the notebook, for docs/make.py."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FIND = """
const found = [];
const walk = (root) => {
  for (const element of root.querySelectorAll('*')) {
    if (element.matches(arguments[0])) found.push(element);
    if (element.shadowRoot) walk(element.shadowRoot);
  }
};
walk(document);
"""
"""JavaScript that finds all elements that match a selector, also inside the shadow roots of
TensorBoard."""


@contextmanager
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    opened = webdriver.Chrome(options=options, service=service)
    try:
        yield opened
    finally:
        opened.quit()


def wait_until(seen: Callable[[], Any], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {seconds} s")
        time.sleep(0.5)


def picture_of_page(page: Path, target: Path) -> None:
    """Save a screenshot of attention.html in which a head of layer 1 and a token are selected."""
    with browser() as opened:
        opened.set_window_size(1440, 1200)
        opened.get(page.resolve().as_uri())
        opened.find_elements("css selector", "#thumbnails button")[4].click()
        opened.find_elements("css selector", "#text [data-token]")[25].click()
        opened.save_screenshot(str(target))


def pictures_of_tensorboard(logs: Path, folder: Path) -> None:
    """Save screenshots of TensorBoard: the attention maps, heatmaps and charts of a run's heads."""
    from tensorboard.program import TensorBoard

    served = TensorBoard()
    served.configure(argv=["tensorboard", "--logdir", str(logs), "--port", "0"])
    address = served.launch()
    with browser() as opened:

        def shown(selector: str, text: str = "") -> list[Any]:
            script = FIND + "return found.filter((e) => e.textContent.includes(arguments[1]))"
            return opened.execute_script(script, selector, text)

        for tag, name in {"attention/layer_1": "attention", "heads/figures": "heatmaps"}.items():
            opened.set_window_size(1800, 1500)
            opened.get("about:blank")
            opened.get(f"{address}#images&tagFilter={tag.replace('/', '%2F')}")
            drawn = FIND + "return found.some((image) => image.naturalWidth > 0)"
            wait_until(lambda script=drawn: opened.execute_script(script, "img"), tag)
            for box in shown("paper-checkbox", "Show actual image size"):
                opened.execute_script("arguments[0].click()", box)
            time.sleep(2)
            opened.save_screenshot(str(folder / f"{name}.png"))
        opened.set_window_size(1240, 860)
        opened.get("about:blank")
        opened.get(f"{address}#custom_scalars")
        wait_until(lambda: shown("path.line, svg g path[d]"), "charts")
        time.sleep(3)
        opened.save_screenshot(str(folder / "scalars.png"))


def run_notebook(source: Path, target: Path) -> None:
    """Run the notebook `source` in its own folder, and write it with its outputs to `target`. The
    notebook analyses the newest run."""
    import nbformat
    from nbclient import NotebookClient

    os.environ["PYTHONPATH"] = str(source.parents[1] / "src")
    notebook = nbformat.read(source, as_version=4)
    resources = {"metadata": {"path": str(source.parent)}}
    NotebookClient(notebook, timeout=600, record_timing=False, resources=resources).execute()
    nbformat.write(notebook, target)
