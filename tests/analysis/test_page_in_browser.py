"""The page of attention as a reader has it: opened from disk in a browser, pointed at, typed at."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from headscope.analysis.page import attention_page
from headscope.data.labels import visible

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the dev extra")
Keys = webdriver.Keys

LAYERS, HEADS = 2, 3
HOSTILE = "<img src=x onerror=alert(1)>"
LABELS = ["The", " state", " of", "\n", "مرحبا", HOSTILE, "<svg/onload=alert(1)>", "", "\x07", "🦜"]
SHOWN = [visible(text) for text in LABELS]


def previous_token(tokens: int) -> torch.Tensor:
    """Nine tenths to the token before, the rest to itself; what the first head here does."""
    weights = 0.1 * torch.eye(tokens) + 0.9 * torch.eye(tokens).roll(1, 0).tril(-1)
    return weights / weights.sum(-1, keepdim=True)


def model_weights(layers: int, heads: int, tokens: int) -> torch.Tensor:
    """Head h of layer l sees itself and l x heads + h before, evenly; the first is another."""
    ages = torch.arange(tokens)[:, None] - torch.arange(tokens)
    reach = torch.arange(layers * heads).view(layers, heads, 1, 1)
    seen = ((ages >= 0) & (ages <= reach)).float()
    weights = seen / seen.sum(-1, keepdim=True)
    weights[0, 0] = previous_token(tokens)
    return weights


def write(path: Path, layers: int, heads: int, labels: list[str], title: str) -> str:
    """Writes a page and returns its address."""
    html = attention_page(
        weights=model_weights(layers, heads, len(labels)),
        labels=labels,
        figures=[
            {"layer": layer, "head": head, "type": f"type-{layer}-{head}", "entropy": 1.23456}
            for layer in range(layers)
            for head in range(heads)
        ],
        title=title,
    )
    path.write_text(html, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """The browser with a page open; afterwards nothing may have gone wrong in it."""
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.set_window_size(1400, 1000)
    browser.get(write(tmp_path / "page.html", LAYERS, HEADS, LABELS, f"A title {HOSTILE}"))
    yield browser
    assert browser.get_log("browser") == []


def find(page: Any, selector: str) -> list[Any]:
    return page.find_elements("css selector", selector)


def find_one(page: Any, selector: str) -> Any:
    return page.find_element("css selector", selector)


def words(page: Any) -> list[Any]:
    return find(page, "#text [data-token]")


def says(page: Any) -> str:
    return find_one(page, "#says").text


def pressed(page: Any) -> list[str]:
    """The layer, the head and the thumbnail that are chosen."""
    selector = "#layer [aria-pressed=true], #head [aria-pressed=true]"
    buttons = [button.text for button in find(page, selector)]
    thumbnails = find(page, "#thumbnails [aria-pressed=true]")
    return buttons + [button.get_attribute("aria-label") for button in thumbnails]


def chosen(layer: int, head: int) -> list[str]:
    return [str(layer), str(head), f"layer {layer}, head {head}, type-{layer}-{head}"]


def colours(page: Any, selector: str) -> set[tuple[int, ...]]:
    """The colours a canvas shows."""
    pixels = page.execute_script(
        """const shown = document.querySelector(arguments[0]);
        const copy = new OffscreenCanvas(shown.width, shown.height).getContext("2d");
        copy.drawImage(shown, 0, 0);
        const data = copy.getImageData(0, 0, shown.width, shown.height).data;
        return Array.from(new Set(new Uint32Array(data.buffer)));""",
        selector,
    )
    return {tuple(int(pixel).to_bytes(4, "little")) for pixel in pixels}


def backgrounds(page: Any) -> list[str]:
    return [word.value_of_css_property("background-color") for word in words(page)]


def hover(page: Any, element: Any, right: int = 0, down: int = 0) -> None:
    webdriver.ActionChains(page).move_to_element_with_offset(element, right, down).perform()


def press(page: Any, *keys: str) -> None:
    webdriver.ActionChains(page).send_keys(*keys).perform()


def test_every_text_is_shown_as_text(page):
    assert [word.get_attribute("textContent") for word in words(page)] == SHOWN
    assert find_one(page, "h1").text == page.title == f"A title {HOSTILE}"
    assert find(page, "img, main svg") == []


def test_the_page_asks_for_nothing(page):
    names = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    assert [name for name in page.execute_script(names) if not name.startswith("data:")] == []


def test_the_map_shows_the_weights_and_leaves_the_future_blank(page):
    seen = colours(page, "#map")
    assert (0, 0, 0, 0) in seen
    assert len({colour for colour in seen if colour[3] == 255}) == 4  # weights of 0, 0.1, 0.9, 1
    assert len(find(page, "#thumbnails canvas")) == LAYERS * HEADS
    assert len(colours(page, "#thumbnails canvas")) == 5
    assert len(colours(page, "#lines canvas")) > 1


def test_pointing_at_a_token_says_what_it_looks_at_and_colours_that(page):
    at_rest, all_lines = backgrounds(page), colours(page, "#lines canvas")
    assert len(set(at_rest)) == 1
    hint = says(page)
    hover(page, words(page)[2])
    assert says(page) == "token 2 '·of' attends to: 1 '·state' 0.90, 2 '·of' 0.10"
    coloured = backgrounds(page)
    assert coloured[3:] == at_rest[3:]  # the future
    assert len(set(coloured)) == 4  # that, 0, 0.1 and 0.9
    assert colours(page, "#lines canvas") != all_lines

    hover(page, find_one(page, "#title"))
    assert backgrounds(page) == at_rest
    assert says(page) == hint


def test_a_token_that_is_clicked_stays_while_heads_change_until_escape(page):
    words(page)[2].click()
    hover(page, find_one(page, "#title"))
    press(page, Keys.ARROW_DOWN)  # the fourth head looks evenly over what there is
    assert says(page).startswith("token 2 '·of' attends to: 0 'The' 0.33, 1 '·state' 0.33")
    press(page, Keys.ESCAPE)
    assert says(page).startswith("Point at")


def test_the_keyboard_alone_reaches_a_token(page):
    page.execute_script("document.querySelector('#text [data-token=\"1\"]').focus()")
    press(page, Keys.TAB)
    assert says(page).startswith("token 2 '·of' attends to: 1 '·state' 0.90")


def test_pointing_at_the_columns_of_the_lines_says_both_ways(page):
    hover(page, find_one(page, ".queries [data-token='2']"))
    assert says(page) == "token 2 '·of' attends to: 1 '·state' 0.90, 2 '·of' 0.10"
    hover(page, find_one(page, ".keys-column [data-token='2']"))
    assert says(page) == "token 2 '·of' is attended to by: 3 '⏎' 0.90, 2 '·of' 0.10"


def test_pointing_at_a_cell_of_the_map_says_query_key_and_weight(page):
    canvas = find_one(page, "#map")
    cell = canvas.size["width"] / len(LABELS)

    def cell_of(query: int, key: int) -> None:
        middle = (len(LABELS) - 1) / 2
        hover(page, canvas, round((key - middle) * cell), round((query - middle) * cell))

    cell_of(query=2, key=1)
    assert says(page) == "query 2 '·of' attends to key 1 '·state' with weight 0.900"
    cell_of(query=2, key=5)
    assert says(page) == f"query 2 '·of' cannot see key 5 '{SHOWN[5]}', which comes later"


def test_arrow_keys_go_through_heads_and_layers_and_stop_at_the_ends(page):
    first = colours(page, "#map")
    expected = [
        (Keys.ARROW_LEFT, (0, 0)),
        (Keys.ARROW_UP, (0, 0)),
        (Keys.ARROW_RIGHT, (0, 1)),
        (Keys.ARROW_DOWN, (1, 1)),
        (Keys.ARROW_DOWN, (1, 1)),
        (Keys.ARROW_LEFT, (1, 0)),
        (Keys.ARROW_LEFT, (0, 2)),
        (Keys.ARROW_RIGHT, (1, 0)),
        (Keys.ARROW_RIGHT + Keys.ARROW_RIGHT, (1, 2)),
        (Keys.ARROW_RIGHT, (1, 2)),
        (Keys.ARROW_UP, (0, 2)),
    ]
    assert pressed(page) == chosen(0, 0)
    for keys, (layer, head) in expected:
        press(page, keys)
        assert pressed(page) == chosen(layer, head)
        table = find_one(page, "#figures").text
        assert f"layer {layer}, head {head}" in table
        assert f"type-{layer}-{head}" in table
        assert "1.235" in table
    assert colours(page, "#map") != first


def test_a_click_chooses_a_layer_a_head_or_a_thumbnail(page):
    find(page, "#layer button")[1].click()
    assert pressed(page) == chosen(1, 0)
    find(page, "#head button")[2].click()
    assert pressed(page) == chosen(1, 2)
    find(page, "#thumbnails button")[1].click()
    assert pressed(page) == chosen(0, 1)


def test_right_to_left_script_has_its_direction_and_does_not_move_its_neighbours(page, tmp_path):
    directions = [word.value_of_css_property("direction") for word in words(page)]
    assert directions == ["rtl" if text == "مرحبا" else "ltr" for text in SHOWN]

    page.get(write(tmp_path / "arabic.html", 1, 1, ["مرحبا"] * 4, "Arabic"))
    hover(page, words(page)[3])
    for parts in (words(page), find(page, "#says *")):
        assert len(parts) >= 4
        places = [part.rect["x"] for part in parts]
        assert places == sorted(places)


def test_chinese_stands_upright_below_the_map(page, tmp_path):
    labels = ["多", "多 1/3", "天地", "word"]
    page.get(write(tmp_path / "chinese.html", 1, 1, labels, "Chinese"))
    columns = find(page, ".across > span")
    assert [column.get_attribute("textContent") for column in columns] == labels
    for column in columns:
        parts = column.find_elements("css selector", "div")
        assert all(part.rect["height"] >= 11 for part in parts)
        for above, below in pairwise(parts):
            assert below.rect["y"] >= above.rect["y"] + above.rect["height"] - 1
    turned = [part.text for part in find(page, ".across .turned")]
    assert [text.strip() for text in turned] == ["1/3", "word"]
    for part in find(page, ".across div:not(.turned)"):
        assert part.value_of_css_property("writing-mode") == "horizontal-tb"


def test_each_head_shows_its_own_weights(page):
    weights = model_weights(LAYERS, HEADS, len(LABELS))
    for layer in range(LAYERS):
        for head in range(HEADS):
            find(page, "#thumbnails button")[layer * HEADS + head].click()
            hover(page, words(page)[-1])
            numbers = [float(part.text) for part in find(page, ".says-weight")]
            expected = sorted(weights[layer, head, -1].tolist(), reverse=True)
            expected = [weight for weight in expected[:5] if weight > 0]
            assert numbers == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_follow_the_theme_and_letters_stand_out(page, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def lightness(colour: str) -> float:
        channels = colour[colour.index("(") + 1 : -1].split(",")[:3]
        return sum(float(channel) for channel in channels) / 3

    body = find_one(page, "body")
    paper = lightness(body.value_of_css_property("background-color"))
    assert (paper > 128) == (scheme == "light")
    hover(page, words(page)[2])
    shown = words(page)[:3]  # weights of 0, 0.9 and 0.1
    grounds = [lightness(word.value_of_css_property("background-color")) for word in shown]
    for word, ground in zip(shown, grounds, strict=True):
        assert abs(lightness(word.value_of_css_property("color")) - ground) > 80
    far = [abs(ground - paper) for ground in grounds]
    assert far[0] < far[2] < far[1]


@pytest.mark.parametrize(("layers", "heads", "tokens"), [(1, 1, 1), (3, 16, 7), (2, 2, 256)])
@pytest.mark.parametrize("width", [320, 1000, 1600])
def test_pages_of_any_size_fit_any_width(page, tmp_path, layers, heads, tokens, width):
    labels = ["", "W" * 200, "a\nb", *[f" word{index}" for index in range(tokens)]][:tokens]
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.get(write(tmp_path / "other.html", layers, heads, labels, "Wide" * 50))
    hover(page, words(page)[-1])
    assert says(page).startswith(f"token {tokens - 1} ")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert len(colours(page, "#map")) >= (1 if tokens == 1 else 3)


def test_a_token_far_down_is_brought_into_sight_among_the_lines(page, tmp_path):
    labels = [f" word{index}" for index in range(200)]
    page.get(write(tmp_path / "long.html", 1, 1, labels, "Long"))
    hover(page, words(page)[150])
    top, height, row = page.execute_script(
        """const lines = document.getElementById("lines");
        const row = lines.querySelector("[data-token='150']");
        const box = lines.getBoundingClientRect();
        return [row.getBoundingClientRect().top - box.top, box.height, row.offsetHeight];"""
    )
    assert 0 <= top <= height - row
    assert len(colours(page, "#lines canvas")) > 1


def test_canvases_have_a_pixel_for_every_pixel_of_the_window(page):
    for width in (1000, 1200, 700, 400, 1900):
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        page.refresh()  # the page hears of the new size, but not always of the new scale factor
        sizes = page.execute_async_script(
            """const done = arguments[0], started = performance.now();
            const size = (canvas) => [canvas.width, canvas.clientWidth * devicePixelRatio];
            const canvases = ["#map", "#lines canvas"].map((at) => document.querySelector(at));
            const wait = () => requestAnimationFrame(() => setTimeout(() => {
              const sizes = canvases.map(size);
              const fit = sizes.every(([pixels, shown]) => Math.abs(pixels - shown) <= 1);
              fit || performance.now() > started + 5000 ? done(sizes) : wait();
            }));
            wait();"""
        )
        for pixels, shown in sizes:
            assert abs(pixels - shown) <= 1
