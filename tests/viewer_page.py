"""The attention viewer in a browser: point, click, type, and read what is shown."""

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import pytest
from viewer_data import HOSTILE, learned, run

from headscope.data.labels import visible

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the dev extra")
support_ui = pytest.importorskip("selenium.webdriver.support.ui")
Keys = webdriver.Keys

LAYERS, HEADS = 2, 3
STEPS = [0, 10, 100, 1000]
LABELS = ["The", " state", " of", "\n", "مرحبا", HOSTILE, "<svg/onload=alert(1)>", "", "\x07", "🦜"]
SHOWN = [visible(text) for text in LABELS]
WEIGHTS = learned(LAYERS, HEADS, len(LABELS))

READY = """const done = arguments[0];
const wait = () => requestAnimationFrame(() => requestAnimationFrame(() =>
  document.documentElement.dataset.ready === "1" ? done() : wait()));
wait();"""

SAYS = """const says = document.querySelector(".says").cloneNode(true);
for (const number of says.querySelectorAll(".token-number")) number.remove();
return says.textContent;"""

CELLS = """const [selector, tokens] = arguments;
const shown = document.querySelector(selector);
const copy = new OffscreenCanvas(shown.width, shown.height)
  .getContext("2d", { willReadFrequently: true });
copy.drawImage(shown, 0, 0);
const middle = (i) => Math.floor((i + 0.5) * shown.width / tokens);
const rows = [];
for (let query = 0; query < tokens; query++) for (let key = 0; key < tokens; key++) {
  rows.push(Array.from(copy.getImageData(middle(key), middle(query), 1, 1).data));
}
return rows;"""

UNEXPLAINED = """const terms = [...document.querySelectorAll("dialog dt")];
const words = [...terms.flatMap((term) => term.textContent.split(", ")), "Help", "Close"];
const isExplained = (control) => {
  if (control.closest("[data-tip], [title]")) return true;
  const text = (control.querySelector(".token-name") ?? control).textContent;
  const label = (control.ariaLabel ?? text).replaceAll(/L\\d+/g, "L0").replaceAll(/H\\d+/g, "H1");
  return words.some((word) => label === word);
};
return [...document.querySelectorAll("button, input, select, .metrics-card summary")]
  .filter((control) => !isExplained(control)).map((control) => control.outerHTML);"""


def small_run(name: str = "run a", **others: Any) -> Mapping[str, Any]:
    sizes = {"labels": LABELS, "layers": LAYERS, "heads": HEADS, "steps": STEPS}
    return run(name, **(sizes | {"weights": WEIGHTS} | others))


def percent(share: float) -> str:
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.9994 < share < 1:
        return ">99.9 %"
    return f"{100 * share:.{1 if share < 0.0995 or 0.9945 < share < 1 else 0}f} %"


class Page:
    """The page that the browser shows, or the frame that it has entered."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.script = browser.execute_script

    def ready(self) -> None:
        """Waits until everything is drawn."""
        self.browser.execute_async_script(READY)

    def resize(self, width: int, height: int = 900) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def lines(self, selector: str) -> list[list[str]]:
        """The lines of each element, read at one moment: the page may replace them at any time."""
        texts = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)"
        return [text.split("\n") for text in self.browser.execute_script(texts, selector)]

    def one(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    @property
    def heading(self) -> str:
        """The opened head, its name and its score."""
        return self.text("h2")

    @property
    def moment(self) -> str:
        """The step at the cursor, and its loss."""
        return self.text(".moment")

    @property
    def tokens(self) -> list[Any]:
        return self.all(".tokens [data-token]")

    def says(self) -> str:
        """The words about what is pointed at, without the numbers of the tokens."""
        self.ready()
        return self.script(SAYS)

    def hover(self, element: Any, right: int = 0, down: int = 0) -> str:
        """What the page says with the pointer here, from the middle of the element."""
        move = webdriver.ActionChains(self.browser).move_to_element_with_offset
        move(element, right, down).perform()
        return self.says()

    def leave(self) -> str:
        """Takes the focus and the pointer away from tokens and controls."""
        self.one("h1").click()
        return self.hover(self.one("h1"))

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.browser).send_keys(*keys).perform()
        self.ready()

    def click(self, element: Any) -> None:
        element.click()
        self.ready()

    def open_head(self, number: int) -> None:
        self.click(self.all(".grid button")[number])

    def compare_head(self, number: int) -> None:
        """Clicks a head with the shift key held down."""
        shift = webdriver.ActionChains(self.browser).key_down(Keys.SHIFT)
        shift.click(self.all(".grid button")[number]).key_up(Keys.SHIFT).perform()
        self.ready()

    def select(self, label: str, value: str) -> None:
        support_ui.Select(self.one(f"select[aria-label='{label}']")).select_by_value(value)
        self.ready()

    def chosen(self, label: str) -> str:
        """What is selected in a list."""
        return self.one(f"select[aria-label='{label}']").get_attribute("value")

    def is_in_sight(self, element: Any) -> bool:
        """Whether the middle of an element is in the window, and nothing covers it."""
        return self.script(
            """const { left, top, width, height } = arguments[0].getBoundingClientRect();
            const found = document.elementFromPoint(left + width / 2, top + height / 2);
            return width > 0 && top >= 0 && top + height <= innerHeight
              && (arguments[0].contains(found) || (found?.contains(arguments[0]) ?? false));""",
            element,
        )

    def unexplained(self) -> list[str]:
        """The controls without a tooltip whose label is not in the help panel either."""
        return self.script(UNEXPLAINED)

    def assert_cells(
        self,
        weights: np.ndarray,
        scale: str = "viridis",
        error: float = 1 / 255,
        selector: str = ".map canvas",
    ) -> None:
        """The map has matplotlib's colours of weights (T, T), or of differences from -1 to 1, with
        at most this error, and no future."""
        seen = np.array(self.script(CELLS, selector, len(weights))).reshape(*weights.shape, 4)
        future = np.triu(np.ones_like(weights, dtype=bool), 1)
        assert (seen[future] == 0).all()
        wanted = []
        for d in np.linspace(-error, error, 21):
            if scale == "viridis":
                places = np.sqrt((weights + d).clip(0, 1))
            else:
                places = ((weights + d).clip(-1, 1) + 1) / 2
            cells = np.rint(places * 255).astype(int)
            wanted.append(matplotlib.colormaps[scale](cells, bytes=True))
        low, high = np.min(wanted, 0).astype(int) - 3, np.max(wanted, 0).astype(int) + 3
        assert ((low <= seen) & (seen <= high))[~future].all()
