"""The tab Attention in the real TensorBoard, with both of its loaders, in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tab_runs import Board, board, made_up_scores, until, write_run
from viewer_page import Keys, Page

STEPS = list(range(0, 120, 2))


@pytest.fixture(scope="module", params=[True, False], ids=["fast", "slow"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Board, Path]]:
    """TensorBoard and its folder of runs."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "first", STEPS)
    write_run(folder / "second", STEPS[:-5], seed=1)
    write_run(folder / "growing", [0, 1, 2])
    with board(folder, load_fast=request.param) as started:
        until(lambda: len(started.runs()) == 3, "all runs")
        until(lambda: started.steps("first") == STEPS, "all steps")
        yield started, folder


class Tab(Page):
    """The page of the tab, inside TensorBoard's page."""

    def open(self, address: str) -> None:
        self.browser.get("about:blank")
        self.browser.get(address)
        self.enter()

    def enter(self) -> None:
        """Continues in the frame of the tab."""
        self.browser.switch_to.default_content()
        frames = until(lambda: self.all('iframe[src$="name=headscope"]'), "the frame of the tab")
        self.browser.switch_to.frame(frames[0])
        ready = "return document.documentElement.dataset.ready === '1'"
        until(lambda: self.script(ready), "the end of drawing")

    def assert_at(self, step: int, seed: int = 0) -> None:
        """The cursor is at this step, and the opened head, L1H1, has its score."""
        assert self.moment.startswith(f"step {step:,} · train/loss ")
        score = made_up_scores(step, seed)[1, 1]
        assert float(self.heading.split()[-1]) == pytest.approx(score, abs=0.0051)

    def wait_for_url(self, *words: str) -> None:
        """TensorBoard's address has these words."""
        href = "return window.parent.location.href"
        until(lambda: all(f"p.headscope.{each}" in self.script(href) for each in words), "the URL")


@pytest.fixture
def tab(browser: Any, served: tuple[Board, Path]) -> Iterator[Tab]:
    """The tab, opened. Afterwards, the console of the browser must not contain an error."""
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.set_window_size(1400, 1100)
    opened = Tab(browser)
    opened.open(f"{served[0].address}#headscope&p.headscope.run=first")
    yield opened
    browser.switch_to.default_content()
    browser.get("about:blank")
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


def test_the_tab_shows_all_steps_of_every_run(tab: Tab, served: tuple[Board, Path]) -> None:
    tab.browser.switch_to.default_content()
    tab.browser.get("about:blank")
    tab.browser.get(f"{served[0].address}?darkMode=true")

    def named() -> list[Any]:
        return [each for each in tab.all("[role=tab]") if each.text.lower() == "attention"]

    until(named, "the tab")[0].click()
    tab.enter()
    assert tab.one("select[aria-label='run']").get_attribute("value") == "growing"  # the newest
    tab.select("run", "first")
    assert tab.text("h1") == "Attention"
    assert f"{len(STEPS)} steps" in tab.text("header")
    assert tab.all('html[data-theme="dark"]')
    tab.leave()
    for step in STEPS[::-1]:
        tab.assert_at(step)
        tab.press(Keys.ARROW_LEFT)
    tab.select("run", "second")
    tab.assert_at(STEPS[0], seed=1)
    tab.wait_for_url("run=second")


def test_a_reload_keeps_what_is_shown(tab: Tab) -> None:
    tab.open_head(2)
    tab.leave()
    tab.press(Keys.ARROW_LEFT)
    tab.click(tab.tokens[2])
    tab.wait_for_url("step=116", "head=L1H0", "token=2")
    tab.browser.switch_to.default_content()
    tab.browser.refresh()
    tab.enter()
    assert tab.moment.startswith("step 116 ")
    assert tab.heading.startswith("L1H0 mixed")
    assert tab.tokens[2].get_attribute("aria-pressed") == "true"


def test_new_steps_of_a_run_appear(tab: Tab, served: tuple[Board, Path]) -> None:
    tab.select("run", "growing")
    started, folder = served
    new = started.steps("growing")[-1] + 1
    tab.assert_at(new - 1)
    write_run(folder / "growing", [new])
    until(lambda: started.steps("growing")[-1] == new, "the step in TensorBoard")
    tab.browser.switch_to.default_content()
    tab.all('button[aria-label="Reload"], button.reload-button')[0].click()
    tab.enter()
    # The cursor stays at the last step. Without TensorBoard's message, the tab looks after 30 s.
    until(lambda: tab.moment.startswith(f"step {new} "), "the step in the tab", seconds=15)
    tab.assert_at(new)
