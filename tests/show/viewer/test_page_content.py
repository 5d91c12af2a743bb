"""What attention.html shows, also in other scripts and themes: opened from disk in a browser."""

import zlib

import numpy as np
import pytest
from viewer_data import HOSTILE, weights_at
from viewer_page import HEADS, SHOWN, WEIGHTS, Keys, small_run


def test_every_text_is_shown_as_text_and_nothing_is_asked_for(opened):
    names = [HOSTILE, "__proto__", "constructor", "previous-token", "", "مرحبا"]
    made = small_run(HOSTILE, names=names, text="<b>text</b>")
    for step in made["history"]["steps"]:
        step["metrics"] = {"toString": [0.5] * 6, "__proto__x": [None] * 6, HOSTILE: [0.1] * 6}
    page = opened(made, small_run("b"))
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
    loaded = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    assert [name for name in page.script(loaded) if not name.startswith("data:")] == []


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
    for row, (name, uniform_value) in zip(rows, history["uniform"].items(), strict=True):
        *words, value, even = row.text.split()
        assert words == name.split("_")
        assert float(value) == pytest.approx(metrics[name][0], rel=0.01, abs=0.001)
        assert float(even) == pytest.approx(uniform_value, rel=0.01, abs=0.001)
        term = row.find_element("css selector", "[data-tip]")
        assert "A high value means" in term.get_attribute("aria-description")
        page.script("arguments[0].focus()", term)
        assert page.text(".tip") == term.get_attribute("aria-description")


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
