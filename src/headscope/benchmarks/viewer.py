"""Measures how fast TensorBoard's tab Attention opens and answers, in Chromium.

Shapes: L layers, H heads per layer, T tokens.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headscope.benchmarks import runner
from headscope.benchmarks.runner import Figures, Request, Result
from headscope.benchmarks.show import Bars
from headscope.errors import UserError
from headscope.stop import temporary_folder
from headscope.viewer.snapshot import snapshot_parts

ACTIONS = {
    "headscope: next step": "press('ArrowLeft')",
    "headscope: distant step": "choose('.chart', number)",
    "headscope: open a head": "all('.grid button')[number * 7 % heads].click()",
    "headscope: point at a token": "point(all('.tokens [data-token]')[number * 31 % tokens])",
    "headscope: keep a token": "all('.tokens [data-token]')[number * 31 % tokens].click()",
    "headscope: without the first token": "all('.views input')[number % 2].click()",
    "headscope: compare with a step": "select('compare with', number % 2 ? 'step' : '')",
    "headscope: another figure": "selectOption('figure', number)",
}
"""The JavaScript of each action. `number` counts the rounds from 1, so that every round does
something new."""

SCRIPT = """
const [heads, tokens, number, done] = arguments;
const all = (selector) => [...document.querySelectorAll(selector)];
const press = (key) =>
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
const point = (token) => token.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
const select = (label, value) => {
  const element = document.querySelector(`select[aria-label="${label}"]`);
  element.value = value;
  element.dispatchEvent(new Event("change"));
};
const selectOption = (text, index) => {
  const element = document.querySelector(".chooser select");
  element.value = element.options[index % element.options.length].value;
  element.dispatchEvent(new Event("change"));
};
const choose = (selector, index) => {
  const element = document.querySelector(selector);
  const box = element.getBoundingClientRect();
  const part = 0.02 + 0.95 * (index * 37 % 60) / 60;
  const at = {clientX: box.left + box.width * part, clientY: box.top + 40};
  const options = {...at, bubbles: true, pointerId: 1, button: 0, buttons: 1};
  element.dispatchEvent(new PointerEvent("pointerdown", options));
  element.dispatchEvent(new PointerEvent("pointerup", {...options, buttons: 0}));
};
const started = performance.now();
ACTION;
// The page is ready when the second frame begins: the first frame has then been painted.
const wait = () => requestAnimationFrame(() => document.documentElement.dataset.ready === "1"
  ? requestAnimationFrame(() => done(performance.now() - started)) : wait());
wait();
"""

OPENED = """
const [done] = arguments;
const wait = () => requestAnimationFrame(() => document.documentElement.dataset.ready === "1"
  ? requestAnimationFrame(() => done(performance.now())) : wait());
wait();
"""
"""The milliseconds from the start of the tab's page until it is painted."""


def measure(request: Request) -> Result:
    """Time each action on a run of `suite.steps` snapshots with random weights, for each shape."""
    plan = request.suite
    for word in request.words:
        if not word.startswith(("suite", "output=")):
            raise UserError(f"{word}: suite=viewer takes only suite.*; remove this key")
    for shape in plan.shapes or [[]]:
        if len(shape) != 3 or min(shape) < 1:
            raise UserError(
                f"suite.shapes={plan.shapes} must hold at least one [layers, heads, tokens], each "
                f"number at least 1; {shape} is not one"
            )
    groups: dict[str, Any] = {}
    for shape in plan.shapes:
        with temporary_folder() as folder:
            size = write_run(folder / "run", shape, plan.steps)
            title = "{:,} layers x {:,} heads, {:,} tokens".format(*shape)
            title += f", {plan.steps} steps of {size / 1e6:.2f} MB"
            with tensorboard(folder) as address, chromium() as browser:
                groups[title] = time_actions(browser, address, shape, plan.rounds)
    return Result(
        groups,
        {"milliseconds": "milliseconds"},
        f"Milliseconds from the action until the page is painted: median of {plan.rounds} rounds. "
        "Open the tab: from the start of the tab's page. Ratio: to the next step.",
        "Response time of the tab Attention",
        [Bars(title, "milliseconds", rows, "milliseconds") for title, rows in groups.items()],
    )


def time_actions(browser: Any, address: str, shape: list[int], rounds: int) -> list[dict[str, Any]]:
    """One row for opening the tab, and one for each action."""
    layers, heads, tokens = shape
    sides: dict[str, Callable[[], Figures]] = {}
    counts = dict.fromkeys(ACTIONS, 0)

    def act(name: str) -> Figures:
        counts[name] += 1
        script = SCRIPT.replace("ACTION", ACTIONS[name])
        found = browser.execute_async_script(script, layers * heads, tokens, counts[name])
        return {"milliseconds": found}

    open_tab(browser, address)  # the first time, TensorBoard still reads the event file
    opened = [{"milliseconds": open_tab(browser, address)} for _ in range(rounds)]
    sides = {name: partial(act, name) for name in ACTIONS}
    measured = {"headscope: open the tab": opened, **runner.alternate(sides, rounds)}
    return runner.summarize(measured, reference="headscope: next step")


def open_tab(browser: Any, address: str) -> float:
    """Open the tab. Returns the milliseconds until it is painted."""
    browser.switch_to.default_content()
    browser.get("about:blank")
    browser.get(f"{address}#headscope")
    browser.implicitly_wait(60)
    frame = browser.find_element("css selector", 'iframe[src$="name=headscope"]')
    browser.switch_to.frame(frame)
    milliseconds = browser.execute_async_script(OPENED)
    if not browser.find_elements("css selector", ".grid button"):
        raise RuntimeError(browser.find_element("css selector", "body").text)
    return milliseconds


def write_run(folder: Path, shape: list[int], steps: int) -> int:
    """Write an event file with `steps` snapshots of random weights. Returns the size of a snapshot
    in bytes."""
    from torch.utils.tensorboard import SummaryWriter

    from headscope.training.callbacks.tensorboard_log import add_scalars, add_snapshot

    layers, heads, tokens = shape
    random = np.random.default_rng(0)
    names = ["self", "previous", "first", "distance", "entropy", "induction"]
    size = 0
    with SummaryWriter(str(folder)) as writer:
        for step in range(steps):
            weights = np.tril(random.random((layers, heads, tokens, tokens), dtype=np.float32) ** 8)
            weights += np.eye(tokens, dtype=np.float32) * 1e-3
            weights /= weights.sum(axis=-1, keepdims=True)
            scores = random.random(layers * heads).tolist()
            parts = snapshot_parts(
                weights,
                step=10 * step,
                labels=[f"·word{number}" for number in range(tokens)],
                text_tokens=tokens,
                names=["previous-token" if score > 0.5 else "mixed" for score in scores],
                scores=scores,
                ratios=scores,
                figures=dict.fromkeys(names, scores),
                uniform=dict.fromkeys(names, 0.1),
                ends=dict.fromkeys(names, (0.0, 1.0)),
            )
            size = sum(map(len, parts))
            add_snapshot(writer, "attention", parts, 10 * step)
            add_scalars(writer, {"train/loss": 8 / (1 + step)}, 10 * step)
    return size


@contextmanager
def tensorboard(logs: Path) -> Iterator[str]:
    """A TensorBoard process that shows `logs`. Yields its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"http://\S+/", line):
                    yield found[0]
                    break
            else:
                raise RuntimeError("TensorBoard did not start")
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window. Raises UserError if Chromium or selenium is not installed."""
    try:
        from selenium import webdriver
    except ImportError as error:
        raise UserError("suite=viewer needs the package selenium: pip install selenium") from error
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        raise UserError("suite=viewer needs Chromium: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_window_size(1440, 1200)
    browser.set_script_timeout(60)
    try:
        yield browser
    finally:
        browser.quit()
