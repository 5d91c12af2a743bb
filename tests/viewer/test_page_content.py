"""What attention.html shows: the page opened from disk in a browser."""

import zlib

import numpy as np
import pytest
from viewer_data import HOSTILE, weights_at
from viewer_page import (
    HEADS,
    LAYERS,
    SHOWN,
    WEIGHTS,
    Keys,
    assert_cells,
    click,
    find,
    find_one,
    headline,
    hover,
    moment,
    press,
    ready,
    resize,
    says,
    shares,
    small_run,
    tokens,
)

# ---- What is shown ------------------------------------------------------------------------------


def test_every_text_is_shown_as_text_and_nothing_is_asked_for(page):
    assert [token.get_attribute("textContent") for token in tokens(page)] == SHOWN
    assert find_one(page, "h1").text == f"A title {HOSTILE}"
    assert find(page, "img, main svg") == []
    names = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    assert [name for name in page.execute_script(names) if not name.startswith("data:")] == []


def test_hostile_names_of_heads_figures_runs_and_texts_stay_text(opened):
    names = [HOSTILE, "__proto__", "constructor", "previous-token", "", "مرحبا"]
    made = small_run(HOSTILE, names=names, text="<b>text</b>")
    for step in made["history"]["steps"]:
        step["figures"] = {"toString": [0.5] * 6, "__proto__x": [None] * 6, HOSTILE: [0.1] * 6}
    page = opened(made, small_run("b"))
    assert find(page, "img, b") == []
    for number, name in enumerate(names):
        click(page, find(page, ".grid button")[number])
        assert headline(page).startswith(f"L{number // HEADS}H{number % HEADS} {name}".strip())
    assert HOSTILE in find_one(page, ".figures-card").text
    assert HOSTILE in find_one(page, ".bar select").text


def test_the_page_opens_at_the_last_step_on_the_head_furthest_above_its_threshold(opened):
    made = small_run(weights=WEIGHTS[::-1, ::-1])
    page = opened(made)
    last = made["history"]["steps"][-1]
    best = int(np.argmax(last["ratios"]))
    assert best > 0
    name, score = last["names"][best], last["scores"][best]
    assert headline(page) == f"L{best // HEADS}H{best % HEADS} {name} {score:.2f}"
    loss = made["history"]["loss"]["values"][-1]
    assert moment(page) == f"step 1,000 · train/loss {loss:.2f}"


def test_the_map_has_the_colours_of_all_pictures_and_leaves_the_future_blank(page):
    for number in range(LAYERS * HEADS):
        click(page, find(page, ".grid button")[number])
        assert_cells(page, WEIGHTS[number // HEADS, number % HEADS])


def test_the_first_token_can_be_taken_out(opened):
    """Head 1 gives 0.99 to the first token. Its other weights are then as clear as those of any
    head."""
    page = opened(small_run(), state="head=L0H1")
    first = WEIGHTS[0, 1]
    assert first[5, 0] > 0.8
    radio = find_one(page, "input[value=shares]")
    page.execute_script("arguments[0].click()", radio)
    ready(page)
    assert_cells(page, shares(first))
    hover(page, tokens(page)[5])
    own = shares(first)[5, 5]
    assert f"“{SHOWN[5]}” {own:.2f}" in says(page).split(";")[0]
    assert f"“{SHOWN[0]}”" not in says(page).split(";")[0]


def test_every_figure_has_its_uniform_value_and_an_explanation(page):
    made = small_run()["history"]
    rows = find(page, ".figures-card tbody tr")
    assert len(rows) == len(made["uniform"])
    head = int(np.argmax(made["steps"][-1]["ratios"]))
    for row, (name, uniform_value) in zip(rows, made["uniform"].items(), strict=True):
        texts = row.text.split()
        assert texts[:-2] == name.split("_")
        assert float(texts[-2]) == pytest.approx(made["steps"][-1]["figures"][name][head], rel=0.01)
        assert float(texts[-1]) == pytest.approx(uniform_value, rel=0.01, abs=0.001)
        term = row.find_element("css selector", "[data-tip]")
        assert "A high value means" in term.get_attribute("aria-description")
        page.execute_script("arguments[0].focus()", term)
        tip = find_one(page, ".tip")
        assert tip.is_displayed()
        assert tip.text == term.get_attribute("aria-description")


def test_a_text_that_was_shortened_is_announced(opened):
    page = opened(small_run(text_tokens=5000))
    assert find_one(page, ".notice").text.startswith("Shows the first 10 of 5,000 tokens")
    assert not find(opened(small_run()), ".notice:not([hidden])")


# ---- Damaged data -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda part: b"",
        lambda part: zlib.compress(zlib.decompress(part)[:-1]),
        lambda part: zlib.compress(bytes(10**7)),  # more than the header justifies
        lambda part: zlib.compress(np.full(len(zlib.decompress(part)), 255, np.uint8).tobytes()),
    ],
)
def test_a_damaged_step_says_so_and_the_other_steps_are_shown(opened, damage):
    made = small_run()
    for key in made["history"]["steps"][2]["parts"][1:]:
        made["parts"][key] = damage(made["parts"][key])
    page = opened(made, state="head=L0H0")
    find_one(page, "h1").click()
    press(page, Keys.ARROW_LEFT)
    assert find_one(page, ".notice").text.startswith("The data of this step is damaged: ")
    assert not find_one(page, ".map-card").is_displayed()
    press(page, Keys.ARROW_LEFT)
    assert not find_one(page, ".notice").is_displayed()
    assert_cells(page, weights_at(10, 1000, WEIGHTS)[0, 0])


def test_a_page_without_runs_says_how_to_get_them(opened):
    page = opened()
    assert "callbacks.attention.steps" in find_one(page, ".notice").text
    assert not find_one(page, "main").is_displayed()


def test_the_thumbnails_fit_after_the_window_became_smaller(opened):
    page = opened(small_run())
    for width in (1600, 360):
        resize(page, width)
        says(page)
        script = (
            "const at = document.querySelector('.grid'); return at.scrollWidth - at.clientWidth"
        )
        assert page.execute_script(script) <= 0
