"""attention.html has room for everything, in windows of three widths."""

import pytest
from viewer_data import run
from viewer_page import small_run

LONG = ["", "W" * 200, "a\nb", *(f"internationally {number}" for number in range(250))]
PROBLEMS = """
const shown = (selector) => [...document.querySelectorAll(selector)]
  .filter((each) => each.offsetParent);
const cards = shown(".card").map((each) => [each.className, each.getBoundingClientRect()]);
const apart = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 1;
const found = cards.flatMap(([name, one], number) => cards.slice(number + 1)
  .filter(([, two]) => !apart(one, two) && !apart(two, one))
  .map(([other]) => `${name} overlaps ${other}`));
for (const each of shown("h2, .says, .grid .name")) {
  if (each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight + 2) {
    found.push(`cut: ${each.outerHTML.slice(0, 200)}`);
  }
}
if (document.documentElement.scrollWidth > innerWidth) found.push("the page is too wide");
return found;
"""


@pytest.mark.parametrize("width", [1400, 1280, 390])
def test_nothing_overlaps_or_is_cut(opened, width):
    """Also with the longest sentence about a token. A click on a head shows it."""
    many = {"labels": list("abcdefgh"), "layers": 12, "heads": 12}
    for made in (
        run(labels=["a"], layers=1, heads=1, steps=[5]),
        run(**many, names=["previous-token"] * 144, steps=[0, 5]),
        run("n" * 200, labels=LONG, layers=16, heads=3, steps=[0, 5]),
    ):
        page = opened(made, small_run("b"), title="Wide" * 50, state="head=L0H1")
        page.resize(width)
        page.browser.refresh()
        page.ready()
        assert page.script(PROBLEMS) == []
        assert " looks at " in page.hover(page.tokens[:4][-1])
        assert page.script(PROBLEMS) == []
        page.open_head(-1)
        top = page.one(".headline").rect["y"] - page.script("return window.scrollY")
        assert -1 <= top < page.script("return window.innerHeight")
