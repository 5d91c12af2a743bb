"""What the model predicts after a token, in attention.html: the numbers of the data, and the answer
in three clicks."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
from viewer_data import HOSTILE, predictions
from viewer_page import HEADS, LABELS, LAYERS, SHOWN, Keys, small_run

VOCABULARY = [*SHOWN, *(f"w{number}" for number in range(20))]
TOKEN = 3  # a line break, which is shown as ⏎; an Arabic word follows


def predicted(step):
    """The probability of the token that follows rises with the steps. L1H1 adds most at the end."""
    found = predictions(LAYERS, HEADS, len(LABELS), VOCABULARY, seed=step)
    found = replace(found, tokens=np.arange(len(LABELS)))
    found.next_probabilities[-1] = {0: 0.01, 10: 0.02, 100: 0.7, 1000: 0.9}[step]
    found.next_pushes[1, 1, TOKEN] = 9 if step >= 100 else 0.001
    return found


def rows(page, name):
    """The rows of a block, each as (mark, text, number)."""
    page.ready()
    return [
        tuple(part.text for part in row.find_elements("css selector", ".before, bdi, .note"))
        for row in page.all(f".{name} .row")
    ]


def percent(value):
    share = float(np.float16(value))
    return f"{100 * share:.{1 if share < 0.0995 or 0.9945 < share < 1 else 0}f} %"


def signed(value):
    text = f"{abs(float(np.float16(value))):.2f}"
    return "±0" if float(text) == 0 else ("+" if value > 0 else "\N{MINUS SIGN}") + text


@pytest.fixture
def page(opened):
    return opened(small_run(predicted=predicted), state="head=L0H0&step=100")


def test_when_and_through_which_head_in_three_clicks(opened):
    page = opened(small_run(predicted=predicted), state="head=L0H0&step=0")
    assert "Click a token" in page.text(".next-card")
    page.click(page.tokens[TOKEN])
    assert "first at least 50 % at step 100" in page.text(".steps")
    page.click(page.one(".steps canvas"))  # its middle is at step 100: the axis is logarithmic
    assert page.moment.startswith("step 100 ")
    page.click(page.all(".heads .row")[0])
    assert page.heading.startswith("L1H1 ")


def test_the_numbers_are_those_of_the_data(page):
    page.click(page.tokens[TOKEN])
    for step, head in ((100, 0), (1000, 5)):
        if step == 1000:
            page.leave()  # on a token, the key moves to the next token
            page.press(Keys.ARROW_RIGHT)
            page.open_head(head)
        found, follows = predicted(step), SHOWN[TOKEN + 1]
        likely = [
            ("✓" if VOCABULARY[token] == follows else "", VOCABULARY[token], percent(share))
            for token, share in zip(
                found.lens_tokens[-1, TOKEN], found.lens_probabilities[-1, TOKEN], strict=True
            )
        ]
        if not any(mark for mark, *_ in likely):
            likely.append(("✓", follows, percent(found.next_probabilities[-1, TOKEN])))
        assert rows(page, "likely") == likely
        assert rows(page, "lens") == [
            (
                "at the end" if layer == LAYERS else f"before L{layer}",
                VOCABULARY[found.lens_tokens[layer, TOKEN, 0]],
                percent(found.next_probabilities[layer, TOKEN]),
            )
            for layer in range(LAYERS + 1)
        ]
        pushes = found.next_pushes[..., TOKEN].flatten()
        assert rows(page, "heads") == [
            ("", f"L{number // HEADS}H{number % HEADS}", signed(pushes[number]))
            for number in np.argsort(-np.abs(pushes.astype(np.float16)), kind="stable")
        ]
        layer, number = divmod(head, HEADS)
        assert rows(page, "raised") == [
            ("✓" if VOCABULARY[token] == follows else "", VOCABULARY[token], signed(value))
            for token, value in zip(
                found.push_tokens[layer, number, TOKEN],
                found.push_values[layer, number, TOKEN],
                strict=True,
            )
        ]


def test_texts_of_tokens_stay_texts(page):
    page.click(page.tokens[LABELS.index(HOSTILE) - 1])
    assert HOSTILE in page.text(".next-card .quiet")
    assert f"“{HOSTILE}”" in page.text(".heads h4")
    assert page.all("img") == []


def test_after_the_last_token_nothing_is_known_to_follow(page):
    page.click(page.tokens[-1])
    assert "unknown" in page.text(".next-card .quiet")
    assert len(rows(page, "likely")) == 5
    assert rows(page, "heads") == rows(page, "steps") == []
    page.press(Keys.ESCAPE)
    assert "Click a token" in page.text(".next-card")


def test_older_data_and_large_models_show_what_they_have(opened):
    page = opened(small_run(), state=f"token={TOKEN}")
    assert not page.one(".next-card").is_displayed()

    def without_pushes(step):
        return replace(predicted(step), push_tokens=None, push_values=None)

    page = opened(small_run(predicted=without_pushes), state=f"token={TOKEN}")
    assert len(rows(page, "heads")) == HEADS * LAYERS
    assert not page.one(".raised").is_displayed()


@pytest.mark.parametrize(
    ("place", "content"),
    [(4, b"[1, 2]"), (4, b"x"), (5, b"short"), (6, b"\xff" * 900), (5, b"\xff" * 10**5)],
)
def test_a_damaged_part_is_one_line_and_the_weights_stay(opened, place, content):
    run = small_run(predicted=predicted)
    step = run["history"]["steps"][-1]
    key, size = step["parts"][place - 1], None
    if place == 4:  # of the right size
        size = step["predictions"]["label_bytes"]
    data = content * (size // len(content) + 1) if size else content
    run["parts"][key] = zlib.compress(data[:size] if size else data)
    page = opened(run, state=f"token={TOKEN}&head=L0H0")
    assert "damaged" in page.text(".next-card .quiet")
    assert "looks at" in page.says()
