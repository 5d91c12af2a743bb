"""Helpers for tests of attention.html in a browser: point, click, type, and read what is shown."""

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


def small_run(name: str = "run a", **others: Any) -> Mapping[str, Any]:
    sizes = {"labels": LABELS, "layers": LAYERS, "heads": HEADS, "steps": STEPS}
    return run(name, **(sizes | {"weights": WEIGHTS} | others))


def resize(page: Any, width: int, scale: int = 1) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": scale, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def ready(page: Any) -> None:
    page.execute_async_script(READY)


def find(page: Any, selector: str) -> list[Any]:
    return page.find_elements("css selector", selector)


def find_one(page: Any, selector: str) -> Any:
    return page.find_element("css selector", selector)


def tokens(page: Any) -> list[Any]:
    return find(page, ".tokens [data-token]")


def says(page: Any) -> str:
    """The words about what is pointed at, without the numbers of the tokens."""
    ready(page)
    script = """const says = document.querySelector(".says").cloneNode(true);
    for (const number of says.querySelectorAll(".token-number")) number.remove();
    return says.textContent;"""
    return page.execute_script(script)


def hover(page: Any, element: Any, right: int = 0, down: int = 0) -> None:
    webdriver.ActionChains(page).move_to_element_with_offset(element, right, down).perform()


def press(page: Any, *keys: str) -> None:
    webdriver.ActionChains(page).send_keys(*keys).perform()
    ready(page)


def click(page: Any, element: Any) -> None:
    element.click()
    ready(page)


def select(page: Any, label: str, value: str) -> None:
    [found] = find(page, f"select[aria-label='{label}']")
    support_ui.Select(found).select_by_value(value)
    ready(page)


def colours(page: Any, selector: str) -> set[tuple[int, ...]]:
    """The colours that a canvas shows."""
    pixels = page.execute_script(
        """const shown = document.querySelector(arguments[0]);
        const copy = new OffscreenCanvas(shown.width, shown.height)
          .getContext("2d", { willReadFrequently: true });
        copy.drawImage(shown, 0, 0);
        const data = copy.getImageData(0, 0, shown.width, shown.height).data;
        return Array.from(new Set(new Uint32Array(data.buffer)));""",
        selector,
    )
    return {tuple(int(pixel).to_bytes(4, "little")) for pixel in pixels}


def cells(page: Any, tokens: int, selector: str = ".map canvas") -> np.ndarray:
    """The colours (T, T, 4) in the middle of each cell of a map."""
    pixels = page.execute_script(
        """const [selector, tokens] = arguments;
        const shown = document.querySelector(selector);
        const copy = new OffscreenCanvas(shown.width, shown.height)
          .getContext("2d", { willReadFrequently: true });
        copy.drawImage(shown, 0, 0);
        const cell = shown.width / tokens;
        const middle = (i) => Math.floor((i + 0.5) * cell);
        const rows = [];
        for (let query = 0; query < tokens; query++) for (let key = 0; key < tokens; key++) {
          rows.push(Array.from(copy.getImageData(middle(key), middle(query), 1, 1).data));
        }
        return rows;""",
        selector,
        tokens,
    )
    return np.array(pixels).reshape(tokens, tokens, 4)


def expected_cells(weights: np.ndarray, scale: str = "viridis") -> np.ndarray:
    """The colours of matplotlib for weights (T, T), or for differences from -1 to 1."""
    places = np.sqrt(weights) if scale == "viridis" else (weights + 1) / 2
    return matplotlib.colormaps[scale](np.rint(places * 255).astype(int), bytes=True)


def assert_cells(
    page: Any,
    weights: np.ndarray,
    scale: str = "viridis",
    error: float = 1 / 255,
    **other: Any,
) -> None:
    """The map has the colours of weights with at most this error, and no future."""
    seen = cells(page, len(weights), **other)
    future = np.triu(np.ones_like(weights, dtype=bool), 1)
    assert (seen[future] == 0).all()
    wanted = [
        expected_cells((weights + d).clip(-1, 1).clip(0 if scale == "viridis" else -1), scale)
        for d in np.linspace(-error, error, 21)
    ]
    low, high = np.min(wanted, 0).astype(int) - 3, np.max(wanted, 0).astype(int) + 3
    assert ((low <= seen) & (seen <= high))[~future].all()


def shares(weights: np.ndarray) -> np.ndarray:
    others = weights.copy()
    others[..., 0] = 0
    return others / np.maximum(others.sum(-1, keepdims=True), 1e-12)


def headline(page: Any) -> str:
    return find_one(page, "h2").text


def moment(page: Any) -> str:
    return find_one(page, ".moment").text
