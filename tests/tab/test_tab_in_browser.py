"""The tab Attention in the real TensorBoard, with both of its loaders, in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tab_runs import (
    TEXT,
    Board,
    board,
    made_up_parts,
    made_up_scores,
    until,
    write_run,
)
from torch.utils.tensorboard import SummaryWriter

from headscope.training.callbacks.tensorboard_log import add_scalars, add_snapshot

pytestmark = pytest.mark.slow

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the dev extra")
Keys = webdriver.Keys

STEPS = list(range(0, 120, 2))
OPENED = (1, 1)
"""Layer and head that the tab opens: the largest ratio of `made_up_parts`."""
HOSTILE = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "${1}", "&lt;", "中", "😀"]
MARKUP_RUN = "third <b>"


@pytest.fixture(scope="module", params=[True, False], ids=["fast", "slow"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Board, Path]]:
    """TensorBoard and its folder of runs."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "first", STEPS)
    write_run(folder / "second", STEPS[:-5], seed=1)
    write_run(folder / MARKUP_RUN, [0, 1], labels=HOSTILE)
    write_run(folder / "growing", [0, 1, 2])
    with board(folder, load_fast=request.param) as started:
        until(lambda: len(started.runs()) == 4, "all runs")
        until(lambda: started.steps("first") == STEPS, "all steps")
        yield started, folder


@pytest.fixture
def tab(browser: Any, served: tuple[Board, Path]) -> Iterator["Tab"]:
    """The tab, opened. Afterwards, the console of the browser must not contain an error."""
    browser.set_window_size(1400, 1100)
    opened = Tab(browser, served[0].address)
    opened.open("&p.headscope.run=first")
    yield opened
    browser.switch_to.default_content()
    browser.get("about:blank")
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


class Tab:
    """The page of the tab, inside TensorBoard's page."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser = browser
        self.address = address

    def open(self, state: str = "", query: str = "") -> None:
        self.browser.get("about:blank")
        self.browser.get(f"{self.address}{query}#headscope{state}")
        self.enter()

    def enter(self) -> None:
        """Continues in the frame of the tab."""
        self.browser.switch_to.default_content()
        frames = until(lambda: self.all('iframe[src$="name=headscope"]'), "the frame of the tab")
        self.browser.switch_to.frame(frames[0])
        self.wait()

    def wait(self) -> None:
        """Waits until everything is drawn."""
        script = "return document.documentElement.dataset.ready"
        until(lambda: self.browser.execute_script(script) == "1", "the end of drawing")

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        [element] = self.all(selector)
        return element.text

    @property
    def step(self) -> int:
        """The step at the cursor."""
        found = re.match(r"step ([\d,]+) · train/loss ", self.text(".timeline-card .now"))
        assert found is not None
        return int(found[1].replace(",", ""))

    @property
    def score(self) -> float:
        """The score of the opened head, in the heading."""
        return float(self.text("h2").split()[-1])

    @property
    def url(self) -> str:
        """TensorBoard's address."""
        return self.browser.execute_script("return window.parent.location.href")

    @property
    def tokens(self) -> list[Any]:
        return self.all(".tokens [data-token]")

    def actions(self) -> Any:
        return webdriver.ActionChains(self.browser)

    def press(self, key: str) -> None:
        self.actions().send_keys(key).perform()
        self.wait()

    def leave(self) -> None:
        """Takes the focus and the pointer away from tokens and controls."""
        self.all("h1")[0].click()

    def point(self, element: Any) -> None:
        self.actions().move_to_element(element).perform()

    def said(self, wanted: str) -> str:
        """What the tab says about the token at the pointer, as soon as it contains `wanted`."""
        until(lambda: wanted in self.text(".says"), wanted)
        return self.text(".says")

    def choose(self, label: str, value: str) -> None:
        [option] = self.all(f'select[aria-label="{label}"] option[value="{value}"]')
        option.click()
        self.wait()


def scored(step: int, seed: int = 0) -> Any:
    """The score of the opened head, as the tab shows it."""
    return pytest.approx(made_up_scores(step, seed=seed)[OPENED], abs=0.0051)


def test_the_tab_appears_among_tensorboards_tabs(tab: Tab) -> None:
    tab.browser.switch_to.default_content()
    tab.browser.get("about:blank")
    tab.browser.get(tab.address)

    def named() -> list[Any]:
        return [each for each in tab.all("[role=tab]") if each.text.lower() == "attention"]

    until(named, "the tab")[0].click()
    tab.enter()
    assert tab.text("h1") == "Attention"
    assert f"{len(STEPS)} steps" in tab.text("header")


def test_the_keyboard_moves_the_cursor_through_all_steps(tab: Tab) -> None:
    tab.leave()
    seen = [tab.step]
    for _ in STEPS[1:]:
        tab.press(Keys.ARROW_LEFT)
        seen.append(tab.step)
        assert tab.score == scored(tab.step)
    assert seen == STEPS[::-1]
    tab.press(Keys.ARROW_RIGHT)
    assert tab.step == STEPS[1]


def test_another_run_can_be_opened(tab: Tab) -> None:
    tab.choose("run", "second")
    assert tab.step == STEPS[-6]
    assert tab.score == scored(tab.step, seed=1)
    until(lambda: "p.headscope.run=second" in tab.url, "the run in the URL")


def test_a_reload_keeps_what_is_shown(tab: Tab) -> None:
    tab.all(".grid button")[2].click()
    tab.leave()
    tab.press(Keys.ARROW_LEFT)
    tab.tokens[2].click()
    wanted = ("step=116", "head=L1H0", "token=2")
    until(lambda: all(f"p.headscope.{each}" in tab.url for each in wanted), "the URL")
    tab.browser.switch_to.default_content()
    tab.browser.refresh()
    tab.enter()
    assert tab.step == STEPS[-2]
    assert tab.text("h2").startswith("L1H0 mixed")
    assert tab.tokens[2].get_attribute("aria-pressed") == "true"


def test_hostile_labels_and_names_stay_text(tab: Tab) -> None:
    tab.choose("run", MARKUP_RUN)
    assert [token.text for token in tab.tokens] == HOSTILE
    tab.point(tab.tokens[1])
    assert HOSTILE[1] in tab.said("looked at most by")
    assert len(tab.all("script")) == 1  # TensorBoard's own
    assert tab.all("img, b") == []


def test_dark_mode_of_tensorboard_is_followed(tab: Tab) -> None:
    tab.open(query="?darkMode=true")
    assert tab.all('html[data-theme="dark"]')


def test_new_steps_of_a_run_appear(tab: Tab, served: tuple[Board, Path]) -> None:
    tab.choose("run", "growing")
    started, folder = served
    new = tab.step + 1
    with SummaryWriter(str(folder / "growing")) as writer:
        add_scalars(writer, {"train/loss": 1.0}, new)
        add_snapshot(writer, TEXT, made_up_parts(new), new)
    until(lambda: started.steps("growing")[-1] == new, "the step in TensorBoard")
    tab.browser.switch_to.default_content()
    tab.all('button[aria-label="Reload"], button.reload-button')[0].click()
    tab.enter()
    # The cursor stays at the last step. Without TensorBoard's message, the tab looks after 30 s.
    until(lambda: tab.step == new, "the step in the tab", seconds=15)
    assert tab.score == scored(new)
