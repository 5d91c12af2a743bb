"""What attention.html answers: cursor, clicks, pointer, URL, keys and comparisons, in a browser."""

import re

import numpy as np
import pytest
from viewer_data import weights_at
from viewer_page import HEADS, LABELS, SHOWN, WEIGHTS, Keys, Page, small_run, webdriver

LOOKS = "“·of” looks at “·state” 0.90"
"""What L0H0 does at token 2."""


def test_everything_follows_the_cursor(page):
    page.leave()
    history = small_run()["history"]
    for index in (2, 1, 0, 0):
        page.press(Keys.ARROW_LEFT)
        step = history["steps"][index]
        layer, head = (int(digit) for digit in page.heading[1:4:2])
        number = layer * HEADS + head
        assert page.moment.startswith(f"step {step['step']} · train/loss ")
        name, score = step["names"][number], f"{step['scores'][number]:.2f}"
        assert page.heading[5:] == ("without a name" if name == "-" else f"{name} {score}")
        names = [name.replace("-", "") and name for name in step["names"]]  # "-" is not shown
        assert [each.text for each in page.all(".grid .name")] == names
        assert page.one(".controls input").get_attribute("value") == f"{step['step']:,}"
        page.assert_cells(weights_at(step["step"], 1000, WEIGHTS)[layer, head])
    page.one("[role=slider]").click()
    page.press(Keys.END)
    assert page.moment.startswith("step 1,000")
    page.press(Keys.HOME, Keys.ARROW_RIGHT)
    assert page.moment.startswith("step 10 ")


def test_pointing_at_a_token_the_map_or_the_lines_says_what_is_there(page):
    hint, drawn = page.says(), "return document.querySelector('.lines canvas').toDataURL()"
    before = page.script(drawn)
    said = page.hover(page.tokens[2])
    assert said == f"{LOOKS}, “·of” 0.10; looked at most by “⏎” 0.90, “·of” 0.10"
    assert page.script(drawn) != before
    assert page.leave() == hint

    canvas = page.one(".map canvas")
    cell, middle = canvas.size["width"] / len(LABELS), (len(LABELS) - 1) / 2
    for query, key, said in [
        (2, 1, "“·of” looks at “·state”: 0.900"),
        (2, 5, f"“·of” cannot see “{SHOWN[5]}”, which comes later"),
    ]:
        at = round((key - middle) * cell), round((query - middle) * cell)
        assert page.hover(canvas, *at) == said
        labels = [page.one(f".{axis} .here") for axis in ("down", "across")]
        found = [each.get_attribute("textContent") for each in labels]
        assert found == [SHOWN[query], SHOWN[key]]


RECORD = """window.written = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  window.written.push(text);
  fill.call(this, text, ...place);
};"""


def test_the_timeline_gives_the_values_at_the_cursor(page):
    history = small_run()["history"]
    page.select("metric of the timeline", "entropy")
    page.script(RECORD)
    page.leave()
    page.press(Keys.ARROW_LEFT)
    written = page.script("return window.written")
    for head, value in enumerate(history["steps"][2]["metrics"]["entropy"]):
        assert f"L{head // HEADS}H{head % HEADS} {value:.2f}" in written


def test_a_click_or_enter_keeps_a_token_while_heads_and_steps_change_until_escape(page):
    page.script("document.querySelector('.tokens [data-token]').focus()")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert page.says().startswith(LOOKS)
    for keep in (lambda: page.press(Keys.ENTER), lambda: page.click(page.tokens[2])):
        keep()
        assert page.tokens[2].get_attribute("aria-pressed") == "true"
        assert page.moment.startswith("step 1,000")  # the arrow keys did not move the cursor
        page.open_head(0)
        assert page.leave().startswith(LOOKS)
        page.open_head(2)  # looks at its own token
        assert page.leave().startswith(f"“·of” looks at “·of” {WEIGHTS[0, 2, 2, 2]:.2f}")
        page.press(Keys.ESCAPE)
        assert page.says().startswith("Point at")


def test_the_url_carries_the_state(opened):
    page = opened(small_run(), small_run("run & b=c#?%"))
    page.select("run", "run & b=c#?%")
    page.open_head(4)
    page.leave()
    page.press(Keys.ARROW_LEFT)
    page.click(page.tokens[6])
    page.select("compare with", "step:0")
    page.select("metric of the timeline", "entropy")
    before = {name: page.text(name) for name in ("h2", ".moment", ".metrics-card")}
    page.browser.execute_async_script("setTimeout(arguments[0], 500)")
    address = page.browser.current_url
    page.browser.get("about:blank")
    page.browser.get(address)
    page.ready()
    assert {name: page.text(name) for name in before} == before
    assert page.leave().startswith(f"“{SHOWN[6]}” compared with step 0")
    for label, value in (("run", "run & b=c#?%"), ("metric of the timeline", "entropy")):
        assert page.chosen(label) == value


def test_a_url_that_makes_no_sense_is_harmless(opened):
    for state in (
        "step=999999999999999&head=L9H9&token=99&metric=x&run=x&text=y&compare=step:x&view=z",
        "step=-1&head=L0&compare=head:L9H9&token=1.5&=&&&a=b=c&%E0%A4%A",
        "__proto__=1&constructor=2&head=__proto__&compare=toString:1&metric=toString",
    ):
        page = opened(small_run(), state=state)
        assert page.heading.startswith("L")
        assert len(page.tokens) == len(LABELS)


def test_keys_reach_every_control_in_the_order_of_the_page_and_every_head(page):
    seen: list[str] = []
    focused = "const now = document.activeElement; return now.ariaLabel ?? now.className"
    for _ in range(30):
        page.press(Keys.TAB)
        seen.append(page.script(focused))
    order = ["run", "compare with", "play", "metric of the timeline", "training step"]
    places = [seen.index(name) for name in order]
    assert places == sorted(places)
    heads = [name for name in seen if re.match(r"L\dH\d ", name)]
    assert len(heads) == 1  # one stop for all heads, and the arrow keys move between them
    assert len(page.all(".tokens [tabindex='0']")) == 1

    page.script("document.querySelector('.grid button').focus()")
    right, down, up = Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_UP
    for key, name in [
        *((Keys.ARROW_LEFT, "L0H0"), (up, "L0H0"), (right, "L0H1"), (down, "L1H1")),
        *((down, "L1H1"), (right + right, "L1H2"), (up, "L0H2")),
    ]:
        page.press(key)
        assert page.heading.startswith(name)
        [pressed] = page.all(".grid [aria-pressed=true]")
        assert pressed.get_attribute("aria-label").startswith(name)
        assert pressed == page.browser.switch_to.active_element
        assert page.moment.startswith("step 1,000")


def assert_compared(page: Page, first: np.ndarray, second: np.ndarray) -> None:
    """The page shows `first` minus `second`, both (T, T), and both beside each other."""
    difference = first - second
    ends = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    end = next(each for each in ends if each >= np.abs(difference).max())
    page.assert_cells(difference / end, "RdBu_r", error=2 / 255 / end)
    for number, side in enumerate([first, second], 1):
        page.assert_cells(side, selector=f".sides figure:nth-child({number}) canvas")
    key = int(np.abs(difference[5]).argmax())
    sign = "+" if difference[5, key] > 0 else "\N{MINUS SIGN}"
    said = page.hover(page.tokens[5])
    assert f"“{SHOWN[key]}” {sign}{abs(difference[5, key]):.2f}" in said


def test_a_head_is_compared_with_another_step_run_or_head(page):
    page.select("compare with", "step:10")
    assert page.moment.endswith(" minus step 10")
    assert_compared(page, WEIGHTS[0, 0], weights_at(10, 1000, WEIGHTS)[0, 0])
    page.select("compare with", "run:run b")
    assert_compared(page, WEIGHTS[0, 0], WEIGHTS[0, 2])
    shift = webdriver.ActionChains(page.browser).key_down(Keys.SHIFT)
    shift.click(page.all(".grid button")[4]).key_up(Keys.SHIFT).perform()
    page.ready()
    assert page.chosen("compare with") == "head:L1H1"
    [other] = page.all(".grid .other")
    assert other.get_attribute("aria-label").startswith("L1H1 ")
    assert_compared(page, WEIGHTS[0, 0], WEIGHTS[1, 1])
    step = small_run()["history"]["steps"][-1]
    names = [f"{step['names'][n]} {step['scores'][n]:.2f}" for n in (0, 4)]
    assert page.heading == f"L0H0 {names[0]} minus L1H1 {names[1]}"
    assert page.text(".metrics-card thead") == "metric L0H0 L1H1 uniform"
    [row] = [row for row in page.all(".metrics-card tbody tr") if row.text.startswith("previous")]
    previous = [np.diagonal(WEIGHTS[at], -1).mean() for at in ((0, 0), (1, 1))]
    assert [float(text) for text in row.text.split()[1:3]] == pytest.approx(previous, abs=0.002)
    page.open_head(4)  # the head itself ends the comparison
    page.assert_cells(WEIGHTS[1, 1])
    assert page.chosen("compare with") == ""


def test_runs_that_cannot_be_compared_say_why(opened):
    other = small_run("other text", labels=[*LABELS[:-1], "x"])
    page = opened(other, small_run(), state="run=run%20a&head=L0H0")
    page.select("compare with", "run:other text")
    assert "its text has other tokens" in page.text(".notice")
    page.assert_cells(WEIGHTS[0, 0])
