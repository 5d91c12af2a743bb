"""What is in sight in attention.html, and what timeline, heads and map say at the pointer."""

import re

import pytest
from viewer_data import measured, run
from viewer_page import HEADS, SHOWN, WEIGHTS, Keys, small_run, webdriver

RECORD = """window.written = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  window.written.push(text);
  fill.call(this, text, ...place);
};"""
TWELVE = {"labels": list("abcdefgh"), "layers": 12, "heads": 12}
NAMES = ["previous-token", "induction", "first-token", "same-token", "punctuation", "single-key"]
NAMES += ["self", "local", "short-range", "frequent-token", "rare-token", "8 back"]


@pytest.mark.parametrize("width", [1400, 800, 360])
def test_the_opened_head_is_in_sight_after_a_click_and_its_headline_takes_one_line(opened, width):
    page = opened(small_run(text="t"), state="head=L0H0")
    page.resize(width)
    page.open_head(4)
    scrolled = page.script("return window.scrollY")
    assert (scrolled == 0) == (width == 1400)  # a narrow window scrolls to the opened head
    top = page.one(".headline").rect["y"] - scrolled
    assert -1 <= top < 120
    heading, moment = page.one("h2").rect, page.one(".moment").rect
    assert heading["height"] < 30
    assert heading["y"] <= moment["y"] <= heading["y"] + heading["height"] / 2
    if width == 1400:  # beside the timeline and all heads
        for selector in (".timeline-card", ".grid-card"):
            left, opened_head = page.one(selector).rect, page.one(".headline").rect
            assert left["x"] + left["width"] < opened_head["x"]
            assert left["y"] + left["height"] < 900
    assert page.script("return document.documentElement.scrollWidth") <= width


def test_pointing_at_a_line_or_a_strip_says_head_name_value_and_step(page):
    history = small_run()["history"]
    step, chart = history["steps"][-1], page.one(".chart")
    width, height = chart.size["width"], chart.size["height"]
    page.select("metric of the timeline", "entropy")
    right, bottom = width // 2 - 106, height // 2 - 8  # the last step, and the last strip
    page.hover(chart, right, bottom)
    value = step["metrics"]["entropy"][5]
    said = f"L1H2 {step['names'][5]} {step['scores'][5]:.2f} · entropy {value:.3f} · step 1,000"
    assert page.text(".chart .hovered") == said
    page.hover(chart, right, bottom - 15 * (HEADS - 1))
    assert page.text(".chart .hovered").startswith("L1H0 ")
    seen = set()
    for y in range(-height // 2 + 12, -height // 2 + 200, 6):  # along the lines
        page.hover(chart, right, y)
        if page.one(".chart .hovered").is_displayed():
            seen.add(page.text(".chart .hovered"))
    for line in seen:
        head, *_, shown = re.fullmatch(r"L(\dH\d) .* · entropy ((.*)) · step 1,000", line).groups()
        number = int(head[0]) * HEADS + int(head[2])
        assert float(shown) == pytest.approx(step["metrics"]["entropy"][number], abs=6e-4)
    assert len(seen) >= 3
    page.leave()
    assert not page.one(".chart .hovered").is_displayed()


def test_the_labels_of_lines_have_the_values_at_the_cursor(page):
    page.select("metric of the timeline", "previous")
    page.script(RECORD)
    page.leave()
    page.press(Keys.ARROW_LEFT)
    step = small_run()["history"]["steps"][2]
    for head, value in enumerate(step["metrics"]["previous"]):
        assert f"L{head // HEADS}H{head % HEADS} {value:.2f}" in page.script(
            "return window.written"
        )


def test_a_step_number_moves_the_cursor_to_the_nearest_step_with_data(page):
    field = page.one(".controls input")
    for typed, step in [("95", "100"), ("7", "10"), ("nonsense", "10"), ("1,000", "1,000")]:
        page.one("h1").click()
        field.click()  # selects the old number
        field.send_keys(typed, Keys.ENTER)
        page.ready()
        assert page.moment.startswith(f"step {step} ")
        assert field.get_attribute("value") == step


def test_a_step_number_stays_while_it_is_typed(page):
    page.one(".controls input").click()
    page.press("9")
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)  # draws everything again
    page.ready()
    page.press("5", Keys.ENTER)
    assert page.moment.startswith("step 100 ")


def test_the_timeline_can_be_folded(page):
    fold, field = page.one(".fold"), page.one(".controls input")
    for shown in (False, True):
        page.click(fold)
        assert fold.get_attribute("aria-expanded") == str(shown).lower()
        assert page.one(".chart").is_displayed() == shown
        assert field.is_displayed()
    assert page.one(".chart .base").size["height"] > 200


def test_the_map_labels_the_row_and_the_column_that_are_pointed_at(page):
    canvas = page.one(".map canvas")
    cell, middle = canvas.size["width"] / len(SHOWN), (len(SHOWN) - 1) / 2
    labels = [page.all(f".{axis} .here") for axis in ("down", "across")]
    assert labels == [[], []]
    for query, key in [(2, 1), (6, 4)]:
        page.hover(canvas, round((key - middle) * cell), round((query - middle) * cell))
        [row], [column] = (page.all(f".{axis} .here") for axis in ("down", "across"))
        assert row.get_attribute("textContent") == SHOWN[query]
        assert column.get_attribute("textContent") == SHOWN[key]
        assert row.rect["y"] < canvas.rect["y"] + (query + 1) * cell < row.rect["y"] + 2 * cell
        others = page.all(".axis.down > span:not(.here)")
        under = [each for each in others if abs(each.rect["y"] - row.rect["y"]) < 12]
        assert not any(each.is_displayed() for each in under)
    page.leave()
    assert page.all(".axis .here") == []
    assert all(each.is_displayed() for each in page.all(".axis > span"))


def test_shift_and_a_click_compare_two_heads(page):
    shift = webdriver.ActionChains(page.browser).key_down(Keys.SHIFT)
    shift.click(page.all(".grid button")[4]).key_up(Keys.SHIFT).perform()
    page.ready()
    assert re.fullmatch(r"L0H0 \S+ [\d.]+ minus L1H1 \S+ [\d.]+", page.heading)
    assert page.one("select[aria-label='compare with']").get_attribute("value") == "head:L1H1"
    [other] = page.all(".grid .other")
    assert other.get_attribute("aria-label").startswith("L1H1 ")
    assert page.one(".grid [aria-pressed=true]").get_attribute("aria-label").startswith("L0H0 ")


def test_the_ablation_is_among_the_heads_in_the_headline_and_in_the_table(opened):
    changes = [0.25, -0.031, 1.5, 0, 0.004, 0.1]
    metrics = measured(WEIGHTS)["metrics"] | {"loss_change": changes}
    page = opened(small_run(metrics=metrics, steps=[7]), state="head=L0H0")
    written = [
        cell.find_elements("css selector", ".score")[1].text for cell in page.all(".grid button")
    ]
    assert written == ["+0.25", "\N{MINUS SIGN}0.03", "+1.50", "±0", "±0", "+0.10"]
    assert "loss without it +0.25" in page.all(".grid button")[0].get_attribute("title")
    assert "change of the loss without the head, in nats per token" in page.text(".grid-card")
    assert page.moment.endswith("loss +0.250 without this head")
    [row] = [
        each for each in page.all(".metrics-card tbody tr") if each.text.startswith("loss change")
    ]
    assert row.text.split() == ["loss", "change", "0.250"]  # no uniform value


def test_a_head_without_a_name_has_no_dash_and_no_number(opened):
    page = opened(small_run(names=["-"] * 6), state="head=L0H0")
    page.script(RECORD)
    page.resize(1390)  # draws all texts again
    page.ready()
    assert page.heading == "L0H0 without a name"
    assert page.one("h2 [data-tip]").get_attribute("data-tip").startswith("The head has no name")
    for cell in page.all(".grid button"):
        assert cell.text == ""
        assert re.fullmatch(r"L\dH\d without a name", cell.get_attribute("title"))
    assert page.text(".legend.names") == ""
    page.script("document.querySelector('.tokens small').remove()")  # the first token has no loss
    assert not {"-", "–"} & {*page.script("return window.written"), *page.text("main").split()}


@pytest.mark.parametrize("steps", [[5], [0, 5]], ids=["one step", "timeline"])
def test_144_heads_fit_1400_pixels_with_abbreviated_names_that_are_explained(opened, steps):
    metrics = {"previous": [0.1] * 144, "loss_change": [-0.25] * 144}
    page = opened(run(**TWELVE, steps=steps, names=NAMES * 12, metrics=metrics), state="head=L0H0")
    grid = page.one(".grid")
    assert page.script("return arguments[0].scrollWidth <= arguments[0].clientWidth", grid)
    about = page.text(".grid-card p")
    for cell, name in zip(page.all(".grid button")[:12], NAMES, strict=True):
        shown = cell.find_element("css selector", ".name")
        assert shown.size["height"] <= 20  # one line
        assert page.script("return arguments[0].scrollWidth <= arguments[0].clientWidth", shown)
        assert f" {name} " in cell.get_attribute("title")
        assert shown.text == name or f"{shown.text} = {name}" in about
    assert (
        page.text("h2") == f"L0H0 previous-token {page.text('h2').split()[-1]}"
    )  # not abbreviated


@pytest.mark.parametrize("width", [1400, 360])
def test_what_the_page_says_about_a_token_is_a_whole_sentence_in_its_place(opened, width):
    labels = ["internationally " + str(number) for number in range(8)]
    page = opened(run(labels=labels, layers=1, heads=2, steps=[1]), state="head=L0H1")
    page.resize(width)
    place = page.tokens[3].rect
    said = page.hover(page.tokens[3])
    assert re.fullmatch("“[^”]+3” looks at .* [\\d.]+; looked at most by “[^”]+.* [\\d.]+", said)
    says = page.one(".says")
    assert page.script("return arguments[0].scrollHeight <= arguments[0].clientHeight", says)
    assert page.tokens[3].rect == place
