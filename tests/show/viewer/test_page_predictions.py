"""What the model predicts after a token, in attention.html: the numbers of the data, and the answer
in three clicks."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
from viewer_data import HOSTILE, predictions
from viewer_page import HEADS, LABELS, LAYERS, SHOWN, Keys, percent, small_run

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


@pytest.fixture
def page(opened):
    return opened(predicting_run(), state="head=L0H0&step=100")


def test_when_and_through_which_head_in_three_clicks(opened):
    page = opened(predicting_run(), state="head=L0H0&step=0")
    assert "Click a token" in page.text(".next-card")
    page.click(page.tokens[TOKEN])
    assert "first at least 50 % at step 100" in page.text(".steps")
    page.click(page.one(".steps canvas"))  # its middle is at step 100: the axis is logarithmic
    assert page.moment.startswith("step 100 ")
    page.click(page.all(".heads .row")[0])
    assert page.heading.startswith("L1H1 ")


@pytest.mark.parametrize("token", [TOKEN, LABELS.index(HOSTILE) - 1, len(LABELS) - 1])
def test_the_numbers_are_those_of_the_data(page, token):
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
        likely = [
            ("✓" if each == target else "", VOCABULARY[each], percent(float(np.float16(share))))
            for each, share in zip(
                found.tokens[-1, token], found.probabilities[-1, token], strict=True
            )
        ]
        if target not in found.tokens[-1, token]:
            share = percent(float(np.float16(found.target_probabilities[-1, token])))
            likely.append(("✓", VOCABULARY[target], share))
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
            ("✓" if each == target else "", VOCABULARY[each], signed(value))
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
