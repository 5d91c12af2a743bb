"""The tab Attention in the real TensorBoard, in a real browser. With both of its loaders, see
test_plugin.py."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tab_runs import Board, board, made_up_scores, until, write_run
from viewer_data import learned, measured, snapshot, weights_at
from viewer_page import Keys, Page

from headscope.analysis.headers import TAB

STEPS = list(range(0, 120, 2))
TAUGHT = [0, 10, 100, 1000]
LABELS = [f" word{number}" for number in range(64)]
LEARNED = learned(4, 4, len(LABELS))
CHANGES = [number / 10 for number in range(16)]
"""What the ablation of a report measured."""


def snapshots(steps: list[int], weights: Any, labels: list[str], **changes: Any) -> list[Any]:
    found = []
    for step in steps:
        now = weights_at(step, TAUGHT[-1], weights)
        metrics = measured(now)["metrics"] | changes
        found.append(snapshot(now, labels, step, metrics=metrics).blobs())
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Board, Path]]:
    """TensorBoard and its folder: runs that learn on one text, a report on it, a run of another
    text, and runs with other data."""
    folder = tmp_path_factory.mktemp("runs")
    for name, steps, weights, labels, changes in [
        ("taught", TAUGHT, LEARNED, LABELS, {}),
        ("again", TAUGHT, LEARNED[::-1], LABELS, {}),
        ("other", TAUGHT, LEARNED, LABELS[::-1], {}),
        ("report", TAUGHT[-1:], LEARNED, LABELS, {"loss_change": CHANGES}),
    ]:
        write_run(folder / name, steps, snapshots=snapshots(steps, weights, labels, **changes))
        time.sleep(0.01)  # TensorBoard orders runs by the time of their first event
    write_run(folder / "first", STEPS)
    write_run(folder / "second", STEPS[:-5], seed=1)
    write_run(folder / "growing", [0, 1, 2])
    with board(folder, load_fast=True) as started:
        until(lambda: len(started.runs()) == 7, "all runs")
        until(lambda: started.steps("first") == STEPS, "all steps")
        yield started, folder


class Tab(Page):
    """The page of the tab, inside TensorBoard's page."""

    def open(self, address: str) -> None:
        self.browser.switch_to.default_content()
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
        shown = self.heading.partition(" rests")[0].split()[-1]
        assert float(shown) == pytest.approx(score, abs=0.0051)

    def wait_for_url(self, *words: str) -> None:
        """TensorBoard's address has these words."""
        href = "return window.parent.location.href"
        until(lambda: all(f"p.headscope.{each}" in self.script(href) for each in words), "the URL")

    def assert_answered(self, heading: str, moment: str) -> None:
        """The headline says this, and everything is in sight."""
        assert self.heading == heading
        assert self.moment.startswith(moment)
        scrolled = "return [window.scrollY, document.querySelector('.overview').scrollTop]"
        assert self.script(scrolled) == [0, 0]
        height = self.script("return window.innerHeight")
        for selector in (".headline", ".map canvas", ".timeline-card", ".grid-card"):
            box = self.one(selector).rect
            assert 0 <= box["y"] < box["y"] + box["height"] <= height


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """Afterwards, the console of the browser must not contain an error."""
    opened = Tab(browser)
    opened.resize(1400)
    yield opened
    browser.switch_to.default_content()
    browser.get("about:blank")
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


def test_the_tab_shows_all_steps_of_every_run(tab: Tab, served: tuple[Board, Path]) -> None:
    tab.browser.get(f"{served[0].address}?darkMode=true")

    def named() -> list[Any]:
        return [each for each in tab.all("[role=tab]") if each.text.lower() == "attention"]

    until(named, "the tab")[0].click()
    tab.enter()
    assert tab.chosen("run") == "growing"  # the newest
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


def test_a_reload_keeps_what_is_shown(tab: Tab, served: tuple[Board, Path]) -> None:
    tab.open(TAB.replace("http://localhost:6006/", served[0].address))  # the printed address
    tab.select("run", "first")
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
    started, folder = served
    tab.open(f"{started.address}#headscope&p.headscope.run=growing")
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


def headline(number: int, step: int, weights: Any = LEARNED) -> str:
    found = measured(weights_at(step, TAUGHT[-1], weights))
    shown = f"L{number // 4}H{number % 4} {found['names'][number]} {found['scores'][number]:.2f}"
    rests = round(100 * found["metrics"]["first"][number])
    is_named = found["names"][number] != "first-token"
    return f"{shown} rests {rests} %" if rests >= 40 and is_named else shown


def test_questions_take_two_clicks_and_no_scrolling(tab: Tab, served: tuple[Board, Path]) -> None:
    """Those of docs/analysis.md."""

    def ask(run: str) -> None:
        tab.open(f"{served[0].address}#headscope&p.headscope.run={run}&p.headscope.head=L3H3")

    ask("taught")  # What does L1H2 do at step 100?
    tab.open_head(6)
    tab.click(tab.one(".controls input"))
    tab.press(*"100", Keys.ENTER)
    tab.assert_answered(headline(6, 100), "step 100 ")
    ask("taught")  # In what do L0H0 and L0H1 differ?
    tab.open_head(0)
    tab.compare_head(1)
    tab.assert_answered(f"{headline(0, 1000)} minus {headline(1, 1000)}", "step 1,000 ")
    assert tab.text(".map-card .scale").endswith("difference: L0H0 minus L0H1")
    ask("report")  # What happens when a head is removed?
    scores = [each.find_elements("css selector", ".score") for each in tab.all(".grid button")]
    assert [float(both[1].text.replace("±", "")) for both in scores] == CHANGES  # without a click
    tab.open_head(7)
    assert tab.moment.endswith("loss +0.700 without this head")
    ask("taught")  # And in another run?
    tab.select("run", "again")
    tab.assert_answered(headline(15, 1000, LEARNED[::-1]), "step 1,000 ")
    ask("taught")
    choices = tab.all("select[aria-label='compare with'] option")
    values = [each.get_attribute("value") for each in choices]
    assert values[:3] == ["", "run:report", "run:again"]  # those that can be compared are first
    tab.select("compare with", "run:again")
    tab.assert_answered(headline(15, 1000), "step 1,000 ")
    assert tab.moment.endswith(" minus again at step 1,000")
