"""How attention.html looks in other scripts, themes and sizes, in a browser."""

from itertools import pairwise

import pytest
from viewer_data import run
from viewer_page import (
    click,
    find,
    find_one,
    headline,
    hover,
    ready,
    resize,
    says,
    select,
    small_run,
    tokens,
)


def test_right_to_left_script_has_its_direction_and_does_not_move_its_neighbours(opened):
    page = opened(run(labels=["مرحبا"] * 4, layers=1, heads=1, steps=[1]))
    assert {token.value_of_css_property("direction") for token in tokens(page)} == {"rtl"}
    hover(page, tokens(page)[3])
    says(page)
    for parts in (tokens(page), find(page, ".says bdi")):
        places = [part.rect["x"] for part in parts[:4]]
        assert len(places) >= 4
        assert places == sorted(places)


def test_chinese_stands_upright_below_the_map(opened):
    labels = ["多", "多 1/3", "天地", "word"]
    page = opened(run(labels=labels, layers=1, heads=1, steps=[1]))
    columns = find(page, ".across > span")
    assert [column.get_attribute("textContent") for column in columns] == labels
    for column in columns:
        parts = column.find_elements("css selector", "div")
        assert all(part.rect["height"] >= 11 for part in parts)
        for above, below in pairwise(parts):
            assert below.rect["y"] >= above.rect["y"] + above.rect["height"] - 1
    turned = [part.text for part in find(page, ".across .turned")]
    assert [text.strip() for text in turned] == ["1/3", "word"]


def lightness(colour: str) -> float:
    channels = colour[colour.index("(") + 1 : -1].split(",")[:3]
    return sum(float(channel) for channel in channels) / 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_follow_the_theme_and_letters_stand_out(opened, scheme):
    page = opened(small_run(), state="head=L0H0")
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    ready(page)
    paper = lightness(find_one(page, "body").value_of_css_property("background-color"))
    assert (paper > 128) == (scheme == "light")
    hover(page, tokens(page)[2])
    says(page)
    for token in tokens(page)[1:4]:  # weights of 0.9, 0.1 and 0.9
        ground = lightness(token.value_of_css_property("background-color"))
        assert abs(lightness(token.value_of_css_property("color")) - ground) > 70
        assert abs(ground - paper) > 15


@pytest.mark.parametrize(
    ("layers", "heads", "count", "width"),
    [(1, 1, 1, 800), (3, 16, 7, 360), (3, 16, 7, 1600), (2, 2, 256, 360)],
)
def test_pages_of_any_size_fit_any_width(opened, layers, heads, count, width):
    labels = ["", "W" * 200, "a\nb", *[f" word{index}" for index in range(count)]][:count]
    made = run("n" * 200, labels=labels, layers=layers, heads=heads, steps=[0, 5])
    page = opened(made, run("b", labels=labels, layers=layers, heads=heads), title="Wide" * 50)
    resize(page, width)
    select(page, "compare with", "step")
    hover(page, tokens(page)[-1])
    says(page)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    names = find(page, ".grid .name")
    assert len(names) == layers * heads
    assert all(name.text for name in names)
    click(page, find(page, ".grid button")[-1])
    assert headline(page).startswith(f"L{layers - 1}H{heads - 1} ")
    text, table = find_one(page, ".text-card").rect, find_one(page, ".figures-card").rect
    assert width > 860 or text["y"] < table["y"]


def test_a_token_far_down_is_brought_into_sight_among_the_lines(opened):
    labels = [f" word{index}" for index in range(200)]
    page = opened(run(labels=labels, layers=1, heads=1, steps=[1]))
    hover(page, tokens(page)[150])
    says(page)
    top, height = page.execute_script(
        "const at = document.querySelector('.lines'); return [at.scrollTop, at.clientHeight];"
    )
    assert top < 150.5 * 18 < top + height


def test_canvases_have_a_pixel_for_every_pixel_of_the_window(opened):
    page = opened(small_run())
    for width in (1000, 1200, 700, 400, 1900):
        resize(page, width, scale=2)
        page.refresh()  # the page hears of the new size, but not always of the new scale factor
        ready(page)
        sizes = page.execute_script(
            """const all = [".map canvas", ".lines canvas", ".chart .base", ".grid canvas"];
            return all.map((at) => document.querySelector(at))
              .map((canvas) => [canvas.width, canvas.clientWidth * devicePixelRatio]);"""
        )
        for pixels, shown in sizes:
            assert abs(pixels - shown) <= 2
