"""attention.html has room for everything, in windows of three widths."""

import re

import pytest
from viewer_data import run
from viewer_page import small_run

NAMES = ["previous-token", "induction", "first-token", "same-token", "punctuation", "single-key"]
NAMES += ["self", "local", "short-range", "frequent-token", "rare-token", "8 back"]
TWELVE = {"labels": list("abcdefgh"), "layers": 12, "heads": 12, "names": NAMES * 12}
TWELVE["metrics"] = {"previous": [0.1] * 144, "loss_change": [-0.25] * 144}
LONG = ["", "W" * 200, "a\nb", *(f"internationally {number}" for number in range(250))]

PROBLEMS = """
const shown = (selector) => [...document.querySelectorAll(selector)]
  .filter((each) => each.offsetParent);
const cards = shown(".card").map((each) => [each.className, each.getBoundingClientRect()]);
const apart = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 1;
const found = cards.flatMap(([name, one], number) => cards.slice(number + 1)
  .filter(([, two]) => !apart(one, two) && !apart(two, one))
  .map(([other]) => `${name} overlaps ${other}`));
const texts = innerWidth >= 1400 ? "h2, .says, .grid, .grid .name" : "h2, .says, .grid .name";
for (const each of shown(texts)) {
  if (each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight + 2) {
    found.push(`cut: ${each.outerHTML.slice(0, 200)}`);
  }
}
for (const each of shown("canvas")) {
  if (Math.abs(each.width - each.clientWidth * devicePixelRatio) > 2) found.push("blurred canvas");
}
if (document.documentElement.scrollWidth > innerWidth) found.push("the page is too wide");
return found;
"""


@pytest.mark.parametrize("width", [1400, 1280, 390])
def test_nothing_overlaps_or_is_cut(opened, width):
    """Also after a window has changed its size, and with the longest sentence about a token. The
    opened head is in sight after a click."""
    for made in (
        small_run(text="t"),
        run(labels=["a"], layers=1, heads=1, steps=[5]),
        run(**TWELVE, steps=[0, 5]),
        run("n" * 200, labels=LONG, layers=16, heads=3, steps=[0, 5]),
        run(labels=LONG[3:11], layers=1, heads=2, steps=[1]),
    ):
        page = opened(made, small_run("b"), title="Wide" * 50, state="head=L0H1")
        for scale in (2, 1):
            page.resize(width, scale)
            page.browser.refresh()  # the page does not always hear of a new scale
            page.ready()
            assert page.script(PROBLEMS) == []
        token = page.tokens[:4][-1]
        place = token.rect
        said = page.hover(token)
        assert re.search(r" looks at .*\d(; looked at most by .*\d)?$", said)
        assert token.rect == place
        assert page.script(PROBLEMS) == []
        page.open_head(-1)
        top = page.one(".headline").rect["y"] - page.script("return window.scrollY")
        assert -1 <= top < (450 if width > 1000 else 120)  # a narrow window scrolls to it


def test_names_of_144_heads_are_abbreviated_and_explained(opened):
    page = opened(run(**TWELVE, steps=[0, 5]), state="head=L0H0")
    about = page.text(".grid-card p")
    for cell, name in zip(page.all(".grid button")[:12], NAMES, strict=True):
        shown = cell.find_element("css selector", ".name").text
        assert f" {name} " in cell.get_attribute("title")
        assert shown == name or f"{shown} = {name}" in about
    assert page.heading.startswith("L0H0 previous-token ")
