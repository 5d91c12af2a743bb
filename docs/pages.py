"""Takes screenshots of pages in a browser, and runs the notebook, for docs/make.py."""

import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from PIL import Image

from headscope.benchmarks.viewer import chromium, tensorboard


def wait_until(seen: Callable[[], Any], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {seconds} s")
        time.sleep(0.5)


def picture_of_page(page: Path, target: Path) -> None:
    """Save a screenshot of attention.html in which a token is selected."""
    with chromium() as opened:
        opened.set_window_size(1440, 1400)
        opened.get(page.resolve().as_uri())
        wait_until(lambda: is_ready(opened), "page")
        opened.find_elements("css selector", ".tokens [data-token]")[25].click()
        wait_until(lambda: is_ready(opened), "page")
        opened.save_screenshot(str(target))


def is_ready(opened: Any) -> bool:
    """Whether the viewer has shown everything."""
    return opened.execute_script("return document.documentElement.dataset.ready") == "1"


def open_tab(opened: Any, address: str, **state: Any) -> None:
    """Open the tab Attention with a state, such as step=100 and head="L0H1"."""
    entries = "".join(f"&p.headscope.{name}={value}" for name, value in state.items())
    frame = 'iframe[src$="name=headscope"]'
    opened.switch_to.default_content()
    opened.get("about:blank")
    opened.get(f"{address}#headscope{entries}")
    wait_until(lambda: opened.find_elements("css selector", frame), "tab")
    opened.switch_to.frame(opened.find_element("css selector", frame))
    wait_until(lambda: is_ready(opened), "data in the tab")
    time.sleep(0.5)


def picture_of_tab(logs: Path, target: Path) -> None:
    """Save a screenshot of the tab Attention as it opens."""
    with tensorboard(logs) as address, chromium() as opened:
        opened.set_window_size(1440, 1400)
        wait_until(lambda: has_data(address), "attention data")
        open_tab(opened, address)
        opened.save_screenshot(str(target))


def has_data(address: str) -> bool:
    """Whether TensorBoard has read attention data."""
    with urlopen(f"{address}data/plugin/headscope/runs") as answer:
        return bool(json.load(answer)["runs"])


def pictures_of_induction(logs: Path, folder: Path, *, step: int) -> None:
    """Save screenshots of a run of experiment=induction: the tab at `step`, two views that answer
    which head looks at the previous token since when, and a GIF of the steps."""
    with tensorboard(logs) as address, chromium() as opened:
        opened.set_window_size(1240, 1400)
        wait_until(lambda: has_data(address), "attention data")
        open_tab(opened, address, figure="induction", step=step)
        opened.save_screenshot(str(folder / "induction.png"))
        open_tab(opened, address, figure="previous")
        opened.save_screenshot(str(folder / "question_1.png"))
        history = opened.execute_async_script(HISTORY)
        first = next(
            (each["step"], head)
            for each in history["steps"]
            for head, name in enumerate(each["names"])
            if name == "previous-token"
        )
        layer, head = divmod(first[1], history["heads"])
        steps = [each["step"] for each in history["steps"]]
        frames = []
        for shown in steps[:: max(1, len(steps) // 20)]:
            open_tab(opened, address, figure="induction", step=shown)
            frames.append(opened.get_screenshot_as_png())
        opened.set_window_size(1240, 2300)
        open_tab(opened, address, figure="previous", step=first[0], head=f"L{layer}H{head}")
        opened.save_screenshot(str(folder / "question_2.png"))
    write_gif(frames, folder / "tab_steps.gif")


HISTORY = """
const done = arguments[0];
const get = (route) => fetch(new URL(`data/plugin/headscope/${route}`, window.parent.location.href))
  .then((answer) => answer.json());
get("runs").then(({ runs }) => get(`history?run=${encodeURIComponent(runs[0].name)}&text=`
  + encodeURIComponent(runs[0].texts[0]))).then(done);
"""


def write_gif(
    frames: list[bytes], file: Path, *, width: int = 860, milliseconds: int = 350
) -> None:
    """Write screenshots as an animated GIF with one palette."""
    images = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
    small = [each.resize((width, each.height * width // each.width)) for each in images]
    palette = small[len(small) * 2 // 3].quantize(200)
    indexed = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in small]
    durations = [milliseconds] * (len(indexed) - 1) + [2500]
    indexed[0].save(
        file, save_all=True, append_images=indexed[1:], duration=durations, loop=0, optimize=True
    )


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
