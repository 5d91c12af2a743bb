"""Opens pages in Chromium, and the tab Attention of a TensorBoard, for suite=viewer and for the
pictures in the docs."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from headscope.errors import UserError

PAINTED = """
const done = arguments[arguments.length - 1];
const started = performance.now();
ACTION;
// While explore waits for an answer, it is busy. A loop of frames would take time from the server.
const { dataset } = document.documentElement;
const isReady = () => dataset.ready === "1" && !dataset.busy;
const wait = () => setTimeout(() => (isReady() ? painted() : wait()), 5);
// When the second frame begins, the first one has been painted.
const painted = () =>
  requestAnimationFrame(() => requestAnimationFrame(() => done([started, performance.now()])));
requestAnimationFrame(wait);
"""
"""Performs ACTION. Returns when it started and when the page had painted everything, in
milliseconds since the page was opened."""


@contextmanager
def chromium(width: int = 1440, height: int = 1400) -> Iterator[Any]:
    """A browser without a window. Raises UserError if Chromium or selenium is not installed."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (program and driver and importlib.util.find_spec("selenium")):
        raise UserError("install Chromium (chromium, chromium-driver) and the package selenium")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)) as browser:
        browser.set_window_size(width, height)
        browser.set_script_timeout(60)
        browser.implicitly_wait(60)
        yield browser


@contextmanager
def server(*words: str) -> Iterator[str]:
    """A module that is run as a command and prints the address of its page. Yields the address."""
    options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([sys.executable, "-m", *words], **options) as process:
        try:
            addresses = (re.search(r"http://\S+/", line) for line in process.stdout or ())
            yield next(found[0] for found in addresses if found)
        finally:
            process.terminate()


@contextmanager
def tensorboard(logs: Path) -> Iterator[str]:
    """A TensorBoard that shows `logs`, where a run has snapshots. Yields its address."""
    with server("tensorboard.main", "--logdir", str(logs), "--port", "0") as address:
        while not json.load(urlopen(f"{address}data/plugin/headscope/runs"))["runs"]:
            time.sleep(0.5)  # it has not yet read the event file
        yield address


def explore(checkpoint: Path | str) -> AbstractContextManager[str]:
    """The command explore, with a checkpoint (see `server`)."""
    words = ("open_browser=false", "port=0", f"checkpoint={checkpoint}")
    return server("headscope", "explore", *words)


def open_tab(browser: Any, address: str, **state: Any) -> float:
    """Open the tab Attention with a state, such as step=100 and head="L0H1". Returns the
    milliseconds until it is painted."""
    entries = "".join(f"&p.headscope.{name}={value}" for name, value in state.items())
    browser.get("about:blank")
    browser.get(f"{address}#headscope{entries}")
    frame = browser.find_element("css selector", 'iframe[src$="name=headscope"]')
    browser.switch_to.frame(frame)
    return painted(browser)[1]


def painted(browser: Any, action: str = "", *arguments: Any) -> list[float]:
    return browser.execute_async_script(PAINTED.replace("ACTION", action), *arguments)
