"""Steps, runs and heads compared in attention.html, in a browser."""

from typing import Any

import numpy as np
import pytest
from viewer_data import weights_at
from viewer_page import (
    LABELS,
    SHOWN,
    WEIGHTS,
    assert_cells,
    click,
    find,
    find_one,
    headline,
    hover,
    says,
    select,
    small_run,
    tokens,
)


def compared(page: Any, first: np.ndarray, second: np.ndarray) -> None:
    """The page shows `first` minus `second`, both (T, T), and both beside each other."""
    reach = next(
        (
            each
            for each in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
            if each >= np.abs(first - second).max()
        ),
        1,
    )
    assert_cells(page, (first - second) / reach, "RdBu_r", error=2 / 255 / reach)
    for number, side in enumerate([first, second], 1):
        assert_cells(page, side, selector=f".sides figure:nth-child({number}) canvas")
    hover(page, tokens(page)[5])
    change = first[5] - second[5]
    largest = int(np.abs(change).argmax())
    sign = "+" if change[largest] > 0 else "\N{MINUS SIGN}"
    assert f"“{SHOWN[largest]}” {sign}{abs(change[largest]):.2f}" in says(page)


def test_a_step_minus_another_step(opened):
    page = opened(small_run(), state="head=L0H0")
    select(page, "compare with", "step")
    assert find_one(page, ".sides figure:nth-child(2)").text == "step 0"
    select(page, "compare with which", "10")
    compared(page, WEIGHTS[0, 0], weights_at(10, 1000, WEIGHTS)[0, 0])
    select(page, "compare with", "")
    assert_cells(page, WEIGHTS[0, 0])


def test_a_run_minus_another_run(page):
    click(page, find(page, ".grid button")[0])
    select(page, "compare with", "run")
    compared(page, WEIGHTS[0, 0], WEIGHTS[0, 2])
    assert find_one(page, ".sides figure:nth-child(2)").text == "run b at step 1,000"


def test_a_head_beside_another_head(page):
    click(page, find(page, ".grid button")[0])
    select(page, "compare with", "head")
    select(page, "compare with which", "L1H1")
    compared(page, WEIGHTS[0, 0], WEIGHTS[1, 1])
    [row] = [row for row in find(page, ".figures-card tbody tr") if row.text.startswith("previous")]
    value, other = (float(text) for text in row.text.split()[1:3])
    previous = [np.diagonal(WEIGHTS[at], -1).mean() for at in ((0, 0), (1, 1))]
    assert [value, other] == pytest.approx(previous, abs=0.002)
    click(page, find(page, ".grid button")[4])  # the head itself ends the comparison
    assert_cells(page, WEIGHTS[1, 1])
    assert find_one(page, "select[aria-label='compare with']").get_attribute("value") == ""


def test_runs_that_cannot_be_compared_say_why(opened):
    page = opened(small_run(), small_run("other text", labels=[*LABELS[:-1], "x"]))
    select(page, "compare with", "run")
    assert find_one(page, ".notice").text == (
        "Run other text cannot be compared: its text has other tokens."
    )
    assert_cells(page, WEIGHTS[tuple(int(digit) for digit in headline(page)[1:4:2])])


def test_another_run_is_selected(page):
    select(page, "run", "run b")
    click(page, find(page, ".grid button")[0])
    assert_cells(page, WEIGHTS[0, 2])
