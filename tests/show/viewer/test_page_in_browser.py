"""What attention.html shows and answers: texts, the cursor, clicks, the pointer, the URL, keys and
comparisons and predictions. Opened from disk in a browser."""

import math
import re
import zlib
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from viewer_data import HOSTILE, causal, predictions, uniform_metrics, weights_at
from viewer_page import (
    HEADS,
    LABELS,
    LAYERS,
    SHOWN,
    WEIGHTS,
    Keys,
    Page,
    percent,
    small_run,
)

from headscope.analysis.metrics import colour_ends, head_metrics
from headscope.analysis.roles import best_assignment, differences
from headscope.show.viewer.files import meanings
from headscope.show.viewer.page import attention_page

LOOKS = "“·of” looks at “·state” 0.90"
"""What L0H0 does at token 2."""


@pytest.fixture
def opened(browser, tmp_path):
    """opened(runs, title, state) opens a page. Afterwards the console may hold no error."""
    page = Page(browser)
    page.resize(1400)

    def open_page(*runs, title=f"A title {HOSTILE}", state="", **more):
        file = tmp_path / "attention.html"
        file.write_text(attention_page(title=title, runs=runs, **more), encoding="utf-8")
        browser.get("about:blank")
        browser.get(f"{file.as_uri()}#{state}")
        page.ready()
        return page

    yield open_page
    assert browser.get_log("browser") == []


@pytest.fixture
def page(opened):
    """A page with two runs of four steps, with L0H0 opened."""
    runs = small_run(), small_run("run b", weights=WEIGHTS[:, ::-1])
    return opened(*runs, state="head=L0H0")


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


def test_a_strip_has_the_names_of_its_head_and_opens_it_at_a_step(page):
    steps = small_run()["history"]["steps"]
    for number in range(6):
        strip = page.one(f".strips [data-head='{number}']")
        parts = strip.find_elements("css selector", "i")
        names = [part.get_attribute("textContent") or "-" for part in parts]
        assert names == [name for name, _ in groupby(step["names"][number] for step in steps)]
        page.click(strip)
        assert page.heading.startswith(f"L{number // HEADS}H{number % HEADS} ")
        assert page.all(".strips .opened") == [strip]
    page.hover(strip, right=strip.size["width"] // 2 - 2)
    assert page.text(".hovered").startswith("L1H2 ")
    assert page.text(".hovered").endswith(f"step {steps[-1]['step']:,}")


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
    page.click(page.tokens[2])
    page.resize(1000)  # the labels are written again
    page.script("return new Promise((done) => { setTimeout(done, 300) })")
    assert page.one(".down .here").get_attribute("textContent") == SHOWN[2]


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


def test_arrow_keys_reach_every_head(page):
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
        assert page.all(".grid [tabindex='0']") == [pressed]  # one stop of the Tab key
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
    page.compare_head(4)
    assert page.chosen("compare with") == "head:L1H1"
    [other] = page.all(".grid .other")
    assert other.get_attribute("aria-label").startswith("L1H1 ")
    assert_compared(page, WEIGHTS[0, 0], WEIGHTS[1, 1])
    step = small_run()["history"]["steps"][-1]
    names = [f"{step['names'][n]} {step['scores'][n]:.2f}" for n in (0, 4)]
    assert page.heading == f"L0H0 {names[0]} minus L1H1 {names[1]}"
    assert page.text(".metrics-card thead") == "metric L0H0 L1H1 uniform"
    [row] = [row for row in page.all(".metrics-card tbody tr") if row.text.startswith("previous")]
    metrics = head_metrics(torch.from_numpy(WEIGHTS))
    previous = [float(metrics["previous"][at]) for at in ((0, 0), (1, 1))]
    assert [float(text) for text in row.text.split()[1:3]] == pytest.approx(previous, abs=0.002)
    page.open_head(4)  # the head itself ends the comparison
    page.assert_cells(WEIGHTS[1, 1])
    assert page.chosen("compare with") == ""


def test_each_head_is_compared_with_the_head_of_the_same_role_in_another_run(opened):
    """The assignment is Python's, for random heads, whose nearest heads are often the same."""
    random = np.random.default_rng(0)
    first, second = (causal(random.random(WEIGHTS.shape) ** power + 1e-9) for power in (2, 3))
    tokens, even = len(LABELS), uniform_metrics(len(LABELS), LAYERS * HEADS)
    ends = {name: colour_ends(name, tokens) for name in even}
    described = [
        SimpleNamespace(metrics=head_metrics(torch.from_numpy(each)), uniform=even, ends=ends)
        for each in (first, second)
    ]
    costs = differences(*described)
    roles = best_assignment(costs)
    assert len({*costs.argmin(dim=1).tolist()}) < len(roles)
    page = opened(small_run(weights=first), small_run("run b", weights=second), state="head=L0H0")
    page.select("compare with", "role:run b")
    for head, other in roles.items():
        page.open_head(head)
        name, theirs = (f"L{each // HEADS}H{each % HEADS}" for each in (head, other))
        text = f"minus {theirs} of run b at step 1,000, which has the same role as {name} "
        assert f"{text}(difference of their metrics: {costs[head, other]:.2f})" in page.moment
        assert_compared(page, first[divmod(head, HEADS)], second[divmod(other, HEADS)])
    assert "the heads of run b at step 1,000 that have the same roles" in page.text(".grid-card")


def test_a_held_head_has_no_role_and_is_not_opened_first(opened):
    runs = small_run(steps=[0]), small_run("run b", steps=[0])
    for made, head in zip(runs, (0, 2), strict=True):
        made["history"]["steps"][0]["held"][head] = 1
        made["history"]["steps"][0]["ratios"] = [0] * 6
    page = opened(*runs)
    assert page.heading.startswith("L0H1")
    page.select("compare with", "role:run b")
    partners = []
    for head in range(6):
        page.open_head(head)
        if head == 0:
            assert "No head has the same role as L0H0" in page.text(".notice")
        else:
            partners += re.findall("minus (L[0-9]H[0-9])", page.moment)
    assert sorted(partners) == ["L0H0", "L0H1", "L1H0", "L1H1", "L1H2"]


def test_a_run_with_shuffled_heads_does_not_differ_by_role(opened):
    weights = WEIGHTS.reshape(6, 10, 10)[[3, 5, 1, 0, 2, 4]].reshape(WEIGHTS.shape)
    runs = small_run(steps=[0]), small_run("run b", steps=[0], weights=weights)
    page = opened(*runs, state="compare=role:run b")
    assert "(difference of their metrics: 0.00)" in page.moment
    colours = """const maps = [...document.querySelectorAll(".grid canvas")];
      const pixels = maps.flatMap((map) => [...new Uint32Array(map.getContext("2d")
        .getImageData(0, 0, map.width, map.height).data.buffer)]);
      return new Set(pixels.filter((pixel) => pixel >>> 24 === 255)).size;"""
    assert page.script(colours) == 1  # that of no difference


def test_runs_that_cannot_be_compared_say_why(opened):
    other = small_run("other text", labels=[*LABELS[:-1], "x"])
    page = opened(other, small_run(), state="run=run%20a&head=L0H0")
    page.select("compare with", "run:other text")
    assert "its text has other tokens" in page.text(".notice")
    page.assert_cells(WEIGHTS[0, 0])


def test_every_text_is_shown_as_text_and_nothing_is_asked_for(opened):
    names = [HOSTILE, "__proto__", "constructor", "previous-token", "", "مرحبا"]
    made = small_run(HOSTILE, names=names, text="<b>text</b>")
    for step in made["history"]["steps"]:
        step["metrics"] = {"toString": [0.5] * 6, "__proto__x": [None] * 6, HOSTILE: [0.1] * 6}
        step["metrics"] |= {"largest": [0.5] * 6}
    about = f"{HOSTILE} of an own metric"
    made["history"]["descriptions"] = {HOSTILE: about, "toString": about, "largest": about}
    captions = [{"text": HOSTILE}, {"text": "back", "href": "index.html"}]
    page = opened(made, small_run("b"), captions=captions, start={"token": 2, "head": "L0H1"})
    assert [caption.text for caption in page.all(".caption")] == [HOSTILE, "back"]
    assert page.heading.startswith("L0H1")
    assert page.tokens[2].get_attribute("aria-pressed") == "true"
    losses = ["–", *(f"{loss}.0" for loss in range(1, len(SHOWN)))]  # those of `measured`
    shown = [label + loss for label, loss in zip(SHOWN, losses, strict=True)]
    assert [token.get_attribute("textContent") for token in page.tokens] == shown
    assert page.text("h1") == f"A title {HOSTILE}"
    assert page.all("img, main svg, b") == []
    for number, name in enumerate(names):
        page.open_head(number)
        assert page.heading.startswith(f"L{number // HEADS}H{number % HEADS} {name}".strip())
    assert HOSTILE in page.text(".metrics-card")
    assert HOSTILE in page.text(".bar select")
    tips = [each.get_attribute("data-tip") for each in page.all(".metrics-card tbody th span")]
    assert tips == [about, None, about, meanings()["metrics"]["largest"]]
    loaded = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    assert [name for name in page.script(loaded) if not name.startswith("data:")] == []


def test_a_head_is_marked_where_it_is_held(opened):
    made = small_run()
    for step in made["history"]["steps"][:3]:
        step["held"][1] = 1
        step["names"][1] = "-"
    page = opened(made, state="head=L0H1&step=100")
    assert page.heading == "L0H1 without a name, held"
    assert "held" in page.text(".legend")
    assert "off" in page.all(".grid button")[1].get_attribute("class")
    page.press(Keys.ARROW_RIGHT)
    assert "held" not in page.heading
    assert "off" not in page.all(".grid button")[1].get_attribute("class")
    assert "held" not in opened(small_run()).text(".legend")


def test_the_page_opens_at_the_last_step_on_the_head_furthest_above_its_threshold(opened):
    """The losses of the tokens are those at the cursor."""
    made = small_run(weights=WEIGHTS[::-1, ::-1])
    made["history"]["steps"][2]["losses"] = losses = [None, 0.04, 0.06, 7.25, *range(20, 25)]
    page, history = opened(made), made["history"]
    last = history["steps"][-1]
    best = int(np.argmax(last["ratios"]))
    assert best > 0
    name, score = last["names"][best], last["scores"][best]
    assert page.heading == f"L{best // HEADS}H{best % HEADS} {name} {score:.2f}"
    assert page.moment == f"step 1,000 · train/loss {history['loss']['values'][-1]:.2f}"
    page.leave()
    page.press(Keys.ARROW_LEFT)
    shown = [each.text for each in page.all(".tokens small")]
    assert shown == ["–", "–", "0.0", "0.1", "7.3", *(f"{loss}.0" for loss in losses[4:])]


def test_the_first_token_can_be_taken_out(opened):
    """Head 1 gives most to the first token. Its other weights are then as clear as those of any
    head."""
    page = opened(small_run(), state="head=L0H1")
    weights = WEIGHTS[0, 1].copy()
    assert weights[5, 0] > 0.8
    page.script("document.querySelector('input[value=shares]').click()")
    page.ready()
    weights[:, 0] = 0
    shares = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-12)
    page.assert_cells(shares)
    looks = page.hover(page.tokens[5]).split(";")[0]
    assert f"“{SHOWN[5]}” {shares[5, 5]:.2f}" in looks
    assert f"“{SHOWN[0]}”" not in looks


def test_every_metric_has_its_uniform_value_and_an_explanation(page):
    history = small_run()["history"]
    metrics = history["steps"][-1]["metrics"]
    rows = page.all(".metrics-card tbody tr")
    assert [row.is_displayed() for row in rows].count(True) == 3
    page.script("document.querySelector('.metrics-card summary').click()")
    uniform = history["steps"][-1]["uniform"]
    for row, (name, values) in zip(rows, metrics.items(), strict=True):
        cells = [each.text for each in row.find_elements("css selector", "th, td:not(.compared)")]
        value, even = (float(cell or "nan") for cell in cells[1:])
        assert cells[0] == name.replace("_", " ")
        assert value == pytest.approx(values[0], rel=0.01, abs=0.001)
        of_uniform = uniform.get(name, [math.nan])[0]  # `queries` has none
        assert even == pytest.approx(of_uniform, rel=0.01, abs=0.001, nan_ok=True)
        term = row.find_element("css selector", "[data-tip]")
        assert "A high value means" in term.get_attribute("aria-description")
        page.script("arguments[0].focus()", term)
        assert page.text(".tip") == term.get_attribute("aria-description")


@pytest.mark.parametrize("by_keyboard", [True, False])
def test_help_has_the_glossary_and_explains_every_control(opened, by_keyboard):
    page = opened(small_run(), small_run("b"), state="token=2")
    assert page.unexplained() == []
    help_button = page.one("header [aria-label=Help]")
    page.script("arguments[0].focus()", help_button)
    page.press(Keys.ENTER) if by_keyboard else page.click(help_button)
    terms = {each.text for each in page.all("dialog dt")}
    names = [*meanings()["metrics"], *meanings()["names"]]
    assert terms > {name.replace("_", " ") for name in names}
    page.press(Keys.ARROW_LEFT, Keys.ESCAPE)
    assert not page.one("dialog").is_displayed()
    assert page.tokens[2].get_attribute("aria-pressed") == "true"  # Esc and ← act on the panel only
    assert page.moment.startswith("step 1,000 ")


def test_a_notice_says_what_is_not_shown(opened):
    assert "callbacks.attention.steps" in opened().text(".notice")
    page = opened(small_run(text_tokens=5000))
    assert page.text(".notice").startswith("Shows the first 10 of 5,000 tokens")
    assert not opened(small_run()).all(".notice:not([hidden])")


def test_a_damaged_step_says_so_and_the_other_steps_are_shown(opened):
    for damage in (
        lambda part: b"",
        lambda part: zlib.compress(zlib.decompress(part)[:-1]),
        lambda part: zlib.compress(bytes(10**7)),  # more than the header justifies
        lambda part: zlib.compress(np.full(len(zlib.decompress(part)), 255, np.uint8).tobytes()),
    ):
        made = small_run()
        for key in made["history"]["steps"][2]["parts"][1:]:
            made["parts"][key] = damage(made["parts"][key])
        page = opened(made, state="head=L0H0")
        page.leave()
        page.press(Keys.ARROW_LEFT)
        assert "damaged" in page.text(".notice")
        assert not page.one(".map-card").is_displayed()
        page.press(Keys.ARROW_LEFT)
        assert not page.one(".notice").is_displayed()
        page.assert_cells(weights_at(10, 1000, WEIGHTS)[0, 0])


# --- what the model predicts after a token ---

VOCABULARY = [*SHOWN, *(f"w{number}" for number in range(20))]
TOKEN = 3  # a line break, which is shown as ⏎; an Arabic word follows


def predicted(step):
    """The probability of the token that follows rises with the steps. L1H1 adds most at the end.
    After the last token, the most likely token is asked about."""
    found = predictions(LAYERS, HEADS, len(LABELS), len(VOCABULARY), seed=step)
    targets = np.append(np.arange(1, len(LABELS)), found.tokens[-1, -1, 0])
    found.target_probabilities[-1] = {0: 0.01, 10: 0.02, 100: 0.7, 1000: 0.9}[step]
    found.target_pushes[1, 1, TOKEN] = 9 if step >= 100 else 0.001
    return replace(found, targets=targets)


def predicting_run(change=lambda found: found):
    return small_run(predicted=lambda step: change(predicted(step)), vocabulary=VOCABULARY)


def rows(page, name):
    """The rows of a block, each as (mark, text, number)."""
    page.ready()
    return [
        tuple(part.text for part in row.find_elements("css selector", ".before, bdi, .note"))
        for row in page.all(f".{name} .row")
    ]


def signed(value):
    text = f"{abs(float(np.float16(value))):.2f}"
    return "±0" if float(text) == 0 else ("+" if value > 0 else "\N{MINUS SIGN}") + text


def test_when_and_through_which_head_in_three_clicks(opened):
    page = opened(predicting_run(), state="head=L0H0&step=0")
    assert "Click a token" in page.text(".next-card")
    page.click(page.tokens[TOKEN])
    assert "first at least 50 % at step 100" in page.text(".steps")
    page.click(page.one(".shares"))  # its middle is at step 100: the axis is logarithmic
    assert page.moment.startswith("step 100 ")
    page.click(page.all(".heads .row")[0])
    assert page.heading.startswith("L1H1 ")


@pytest.mark.parametrize("token", [TOKEN, LABELS.index(HOSTILE) - 1, len(LABELS) - 1])
def test_the_numbers_are_those_of_the_data(opened, token):
    page = opened(predicting_run(), state="head=L0H0&step=100")
    page.click(page.tokens[token])
    for step, head in ((100, 0), (1000, 5)):
        if step == 1000:
            page.leave()  # on a token, the key moves to the next token
            page.press(Keys.ARROW_RIGHT)
            page.open_head(head)
        found = predicted(step)
        target = found.targets[token]
        for place in (".next-card .quiet", ".heads h4"):
            assert f"“{VOCABULARY[target]}”" in page.text(place)
        assert page.all("img") == []
        mark = "" if token == len(LABELS) - 1 else "✓"  # nothing follows the last token
        likely = [
            (mark if each == target else "", VOCABULARY[each], percent(float(np.float16(share))))
            for each, share in zip(
                found.tokens[-1, token], found.probabilities[-1, token], strict=True
            )
        ]
        if target not in found.tokens[-1, token]:
            share = percent(float(np.float16(found.target_probabilities[-1, token])))
            likely.append((mark, VOCABULARY[target], share))
        assert rows(page, "likely") == likely
        assert rows(page, "lens") == [
            (
                "at the end" if layer == LAYERS else f"before L{layer}",
                VOCABULARY[found.tokens[layer, token, 0]],
                percent(float(np.float16(found.target_probabilities[layer, token]))),
            )
            for layer in range(LAYERS + 1)
        ]
        pushes = found.target_pushes[..., token].flatten()
        assert rows(page, "heads") == [
            ("", f"L{number // HEADS}H{number % HEADS}", signed(pushes[number]))
            for number in np.argsort(-np.abs(pushes.astype(np.float16)), kind="stable")
        ]
        layer, number = divmod(head, HEADS)
        assert rows(page, "raised") == [
            (mark if each == target else "", VOCABULARY[each], signed(value))
            for each, value in zip(
                *(listed[number, token] for listed in found.raised[layer]), strict=True
            )
        ]


def test_data_without_predictions_and_large_models_show_what_they_have(opened):
    page = opened(small_run(), state=f"token={TOKEN}")
    assert not page.one(".next-card").is_displayed()
    page = opened(predicting_run(lambda found: replace(found, raised={})), state=f"token={TOKEN}")
    assert len(rows(page, "heads")) == HEADS * LAYERS
    assert not page.one(".raised").is_displayed()


def examples_of(*changes):
    """What a head does elsewhere, with an example for each of these changes."""
    example = {"kind": "weight", "weight": 0.25, "moved": 2}
    example |= {"labels": LABELS[3:7], "marked": [0, 2]}
    return {"measured": HOSTILE, "examples": [example | change for change in changes]}


def test_examples_of_the_opened_head_are_texts_with_query_and_key(opened):
    first = examples_of({}, {"kind": "moved"}, {"kind": "decile", "marked": [3, 3]})
    others = [examples_of({"weight": number}) for number in range(5)]
    page = opened(small_run(examples=[[first, *others[:2]], others[2:]]), state="head=L0H0")
    assert page.text(".elsewhere-card summary") == "What L0H0 does elsewhere"
    assert f"Found in {HOSTILE}" in page.text(".elsewhere-card .quiet")
    assert [each.text for each in page.all(".example .quiet")] == ["0.25", "2.00", "0.25"]
    rows = [each.text.replace("\n", "") for each in page.all(".example p")]
    assert rows == ["".join(LABELS[3:7]).strip()] * 3
    assert [each.text for each in page.all(".example .query")] == ["", "", LABELS[6]]
    assert [each.text for each in page.all(".example .key")] == [HOSTILE, HOSTILE, LABELS[6]]
    assert page.all("img") == page.all(".example svg") == []
    page.open_head(3)
    assert [each.text for each in page.all(".example .quiet")] == ["2.00"]
    assert not opened(small_run()).one(".elsewhere-card").is_displayed()


DAMAGED = [
    *(("kind", "toString"), ("weight", "1"), ("weight", None), ("moved", HOSTILE)),
    *(("labels", texts) for texts in (["a" * 201] * 4, [1, 2, 3], ["a"] * 501, None)),
    *(("marked", places) for places in ([0, 4], [0], [0, -1], "ab")),
]


def test_damaged_examples_are_one_line(opened):
    heads = [examples_of({"kind": "moved", name: value}) for name, value in DAMAGED]
    sizes = {"layers": 2, "heads": len(heads) // 2, "weights": None}
    page = opened(small_run(**sizes, examples=[heads[::2], heads[1::2]]))
    for head in range(len(heads)):
        page.open_head(head)
        assert "damaged" in page.text(".elsewhere-card .quiet")
        assert page.all(".example") == []


PLACES = {"labels": 3, "lens": 4, "raised": 5}  # after the thumbnails and two layers


def damaged(kind, change):
    """A run whose last step has another content of a part, or another description of its arrays."""
    run = predicting_run()
    step = run["history"]["steps"][-1]
    [described] = [each for each in step["layout"] if each["name"] == kind]
    if change == "other shapes":
        described["arrays"] = [[*said, [*shape[:-1], 1]] for *said, shape in described["arrays"]]
    elif change == "other names":
        described["arrays"] = [["other", *said] for _, *said in described["arrays"]]
    else:
        key = step["parts"][PLACES[kind]]
        run["parts"][key] = zlib.compress(change(zlib.decompress(run["parts"][key])))
    return run


def test_damaged_predictions_are_one_line_and_the_weights_stay(opened):
    for kind, change in [
        ("labels", lambda data: b"[1, 2]".ljust(len(data))),
        ("lens", lambda data: b"short"),
        ("raised", lambda data: b"\xff" * len(data)),  # unknown tokens
        *((kind, change) for kind in PLACES for change in ("other shapes", "other names")),
    ]:
        page = opened(damaged(kind, change), state=f"token={TOKEN}&head=L0H0")
        assert "damaged" in page.text(".next-card .quiet")
        assert "looks at" in page.says()
