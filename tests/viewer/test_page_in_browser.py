"""attention.html as a reader has it: opened from disk in a browser, pointed at, typed at."""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from viewer_data import HOSTILE, learned, run, uniform, weights_at

from headscope.data.labels import visible
from headscope.viewer.page import attention_page

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

Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """opened(runs, title, state) opens a page. Afterwards the console may hold no error."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    resize(browser, 1400)

    def open_page(
        *runs: Mapping[str, Any], title: str = f"A title {HOSTILE}", state: str = ""
    ) -> Any:
        file = tmp_path / "attention.html"
        file.write_text(attention_page(title=title, runs=runs), encoding="utf-8")
        browser.get("about:blank")
        browser.get(f"{file.as_uri()}#{state}")
        ready(browser)
        return browser

    yield open_page
    assert browser.get_log("browser") == []


@pytest.fixture
def page(opened: Open) -> Any:
    """A page with two runs of four steps."""
    return opened(small_run(), small_run("run b", weights=WEIGHTS[:, ::-1]))


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


def test_a_map_as_wide_as_a_new_canvas_is_square(opened, tmp_path, browser):
    """A new canvas has 300 x 150 pixels."""
    opened(small_run())
    file = tmp_path / "attention.html"
    style = ".map-card canvas { width: 300px !important; }</style>"
    file.write_text(file.read_text("utf-8").replace("</style>", style), encoding="utf-8")
    browser.refresh()
    ready(browser)
    size = "const map = document.querySelector('.map-card canvas'); return [map.width, map.height]"
    assert browser.execute_script(size) == [300, 300]


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
        assert texts[0] == name
        assert float(texts[1]) == pytest.approx(made["steps"][-1]["figures"][name][head], rel=0.01)
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


# ---- Timeline -----------------------------------------------------------------------------------


def test_everything_follows_the_cursor(page):
    find_one(page, "h1").click()
    history = small_run()["history"]
    for index in (2, 1, 0, 0):
        press(page, Keys.ARROW_LEFT)
        step = history["steps"][index]
        head = 1 * HEADS if headline(page).startswith("L1") else 0
        head += int(headline(page)[3])
        assert moment(page).startswith(f"step {step['step']} · train/loss ")
        assert headline(page).split()[1:] == [step["names"][head], f"{step['scores'][head]:.2f}"]
        assert [each.text for each in find(page, ".grid .name")] == step["names"]
        assert_cells(page, weights_at(step["step"], 1000, WEIGHTS)[head // HEADS, head % HEADS])
        slider = find_one(page, "[role=slider]")
        assert slider.get_attribute("aria-valuenow") == str(index)
    find_one(page, "[role=slider]").click()
    press(page, Keys.END)
    assert moment(page).startswith("step 1,000")
    press(page, Keys.HOME, Keys.ARROW_RIGHT)
    assert moment(page).startswith("step 10 ")


def test_a_click_on_a_strip_opens_its_head_and_moves_the_cursor(page):
    chart = find_one(page, ".chart")
    width, height = chart.size["width"], chart.size["height"]
    hover(page, chart, 60 - width // 2, height // 2 - 8)  # the last strip, near the first step
    webdriver.ActionChains(page).click().perform()
    ready(page)
    assert headline(page).startswith("L1H2 ")
    assert moment(page).startswith("step 0 ")


def test_play_runs_through_all_steps_and_stops_at_the_last(page):
    play = find_one(page, ".play")
    play.click()
    seen = set()
    for _ in range(200):
        ready(page)
        seen.add(moment(page).split(" · ")[0])
        if "Play" in play.text and moment(page).startswith("step 1,000"):
            break
    assert seen == {"step 0", "step 10", "step 100", "step 1,000"}


def test_a_run_with_one_step_has_no_timeline(opened):
    page = opened(small_run(steps=[7]))
    assert not find_one(page, ".timeline-card").is_displayed()
    press(page, Keys.ARROW_LEFT)
    assert moment(page).startswith("step 7")


# ---- Pointing -----------------------------------------------------------------------------------


def test_pointing_at_a_token_says_both_directions_and_colours_the_text(opened):
    page = opened(small_run(), state="head=L0H0")
    hint = says(page)
    lines = colours(page, ".lines canvas")
    hover(page, tokens(page)[2])
    assert says(page) == (
        "“·of” looks at “·state” 0.90, “·of” 0.10; looked at most by “⏎” 0.90, “·of” 0.10"
    )
    grounds = [token.value_of_css_property("background-color") for token in tokens(page)]
    blank = "rgba(0, 0, 0, 0)"
    assert [number for number, ground in enumerate(grounds) if ground != blank] == [1, 2, 3]
    looks, looked = ([int(number) for number in re.findall(r"\d+", grounds[at])] for at in (1, 3))
    assert looks[0] > looks[2]  # orange
    assert looked[2] > looked[0]  # blue
    assert colours(page, ".lines canvas") != lines
    hover(page, find_one(page, "h1"))
    assert says(page) == hint


def test_pointing_at_a_cell_of_the_map_says_query_key_and_weight(opened):
    page = opened(small_run(), state="head=L0H0")
    canvas = find_one(page, ".map canvas")
    cell = canvas.size["width"] / len(LABELS)

    def cell_of(query: int, key: int) -> str:
        middle = (len(LABELS) - 1) / 2
        hover(page, canvas, round((key - middle) * cell), round((query - middle) * cell))
        return says(page)

    assert cell_of(query=2, key=1) == "“·of” looks at “·state”: 0.900"
    assert cell_of(query=2, key=5) == f"“·of” cannot see “{SHOWN[5]}”, which comes later"


def test_pointing_at_the_lines_says_both_directions(opened):
    page = opened(small_run(), state="head=L0H0")
    lines = find_one(page, ".lines")
    row = lines.size["height"] / len(LABELS)
    hover(page, lines, 0, round((2.5 - len(LABELS) / 2) * row))
    assert says(page).startswith("“·of” looks at “·state” 0.90")


def test_a_click_keeps_a_token_while_heads_and_steps_change_until_escape(opened):
    page = opened(small_run(), state="head=L0H0")
    click(page, tokens(page)[2])
    hover(page, find_one(page, "h1"))
    assert says(page).startswith("“·of” looks at “·state” 0.90")
    click(page, find(page, ".grid button")[2])  # a head that looks at its own token
    hover(page, find_one(page, "h1"))
    assert says(page).startswith(f"“·of” looks at “·of” {WEIGHTS[0, 2, 2, 2]:.2f}")
    press(page, Keys.ESCAPE)
    assert says(page).startswith("Point at")


def test_each_head_shows_its_own_weights_at_each_step(page):
    for index, step in enumerate(STEPS):
        page.execute_script(f"location.hash = 'step={step}&token={len(LABELS) - 1}'")
        ready(page)
        weights = weights_at(step, 1000, WEIGHTS)
        for number in range(LAYERS * HEADS):
            click(page, find(page, ".grid button")[number])
            hover(page, find_one(page, "h1"))
            assert moment(page).startswith(f"step {step:,}"), index
            says(page)
            numbers = [float(each.text.lstrip("<")) for each in find(page, ".says span.looks")]
            expected = sorted(weights[number // HEADS, number % HEADS, -1], reverse=True)
            assert numbers == pytest.approx(expected[: len(numbers)], abs=0.0101)


# ---- Comparison ---------------------------------------------------------------------------------


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
    assert "run b" in find_one(page, ".legend").text or "run b" in find_one(page, ".sides").text


def test_a_head_beside_another_head(page):
    click(page, find(page, ".grid button")[0])
    select(page, "compare with", "head")
    select(page, "compare with which", "L1H1")
    compared(page, WEIGHTS[0, 0], WEIGHTS[1, 1])
    [row] = [row for row in find(page, ".figures-card tbody tr") if row.text.startswith("previous")]
    value, other = (float(text) for text in row.text.split()[1:3])
    previous = [np.diagonal(WEIGHTS[at], -1).mean() for at in ((0, 0), (1, 1))]
    assert [value, other] == pytest.approx(previous, abs=0.002)


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


# ---- URL ----------------------------------------------------------------------------------------


def test_the_url_carries_the_state(opened):
    made = small_run(), small_run("run & b=c#?%")
    page = opened(*made)
    select(page, "run", "run & b=c#?%")
    click(page, find(page, ".grid button")[4])
    find_one(page, "h1").click()
    press(page, Keys.ARROW_LEFT)
    click(page, tokens(page)[6])
    select(page, "compare with", "step")
    select(page, "figure of the timeline", "entropy")
    before = {name: find_one(page, name).text for name in ("h2", ".moment", ".figures-card")}
    page.execute_async_script("setTimeout(arguments[0], 500)")
    address = page.current_url
    page.get("about:blank")
    page.get(address)
    ready(page)
    assert {name: find_one(page, name).text for name in before} == before
    hover(page, find_one(page, "h1"))
    assert says(page).startswith(f"“{SHOWN[6]}” against step 0")
    assert find_one(page, "select[aria-label=run]").get_attribute("value") == "run & b=c#?%"
    chosen = find_one(page, "select[aria-label='figure of the timeline']")
    assert chosen.get_attribute("value") == "entropy"


@pytest.mark.parametrize(
    "state",
    [
        "step=999999999999999&head=L9H9&token=99&figure=x&run=x&text=y&compare=step:x&view=z",
        "step=-1&head=L0&compare=head:L9H9&token=1.5",
        "compare=run:nowhere&=&&&a=b=c&%E0%A4%A",
        "__proto__=1&constructor=2&head=__proto__&compare=toString:1&figure=toString",
    ],
)
def test_a_url_that_makes_no_sense_is_harmless(opened, state):
    page = opened(small_run(), state=state)
    assert headline(page).startswith("L")
    assert len(tokens(page)) == len(LABELS)


# ---- Keyboard -----------------------------------------------------------------------------------


def test_the_tab_key_reaches_every_control_in_the_order_of_the_page(page):
    seen: list[str] = []
    script = """const now = document.activeElement;
    return now.ariaLabel ?? now.className ?? "" ;"""
    for _ in range(30):
        press(page, Keys.TAB)
        seen.append(page.execute_script(script))
    order = ["run", "compare with", "play", "figure of the timeline", "training step"]
    places = [seen.index(name) for name in order]
    assert places == sorted(places)
    heads = [name for name in seen if re.match(r"L\dH\d ", name)]
    assert len(heads) == 1  # one stop for all heads, and the arrow keys move between them
    roles = "return document.querySelectorAll('.tokens [tabindex=\"0\"]').length"
    assert page.execute_script(roles) == 1


def test_arrow_keys_go_through_the_heads_and_stop_at_the_ends(opened):
    page = opened(small_run(), state="head=L0H0")
    page.execute_script("document.querySelector('.grid button').focus()")
    moves = [
        (Keys.ARROW_LEFT, "L0H0"),
        (Keys.ARROW_UP, "L0H0"),
        (Keys.ARROW_RIGHT, "L0H1"),
        (Keys.ARROW_DOWN, "L1H1"),
        (Keys.ARROW_DOWN, "L1H1"),
        (Keys.ARROW_RIGHT + Keys.ARROW_RIGHT, "L1H2"),
        (Keys.ARROW_UP, "L0H2"),
    ]
    for keys, name in moves:
        press(page, keys)
        assert headline(page).startswith(name)
        [pressed] = find(page, ".grid [aria-pressed=true]")
        assert pressed.get_attribute("aria-label").startswith(name)
        assert pressed == page.switch_to.active_element
        assert moment(page).startswith("step 1,000")


def test_the_keyboard_alone_points_at_a_token_and_keeps_it(opened):
    page = opened(small_run(), state="head=L0H0")
    page.execute_script("document.querySelector('.tokens [data-token]').focus()")
    press(page, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert says(page).startswith("“·of” looks at “·state” 0.90")
    press(page, Keys.ENTER)
    assert tokens(page)[2].get_attribute("aria-pressed") == "true"
    assert moment(page).startswith("step 1,000")  # the arrow keys did not move the cursor


# ---- Scripts, themes and sizes ------------------------------------------------------------------


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


@pytest.mark.parametrize(("layers", "heads", "count"), [(1, 1, 1), (3, 16, 7), (2, 2, 256)])
@pytest.mark.parametrize("width", [360, 800, 1600])
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


# ---- Damaged data -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda part: part[:-9],
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


def test_decompression_stops_when_more_comes_out_than_the_header_justifies(browser, opened):
    made = small_run(steps=[1])
    [step] = made["history"]["steps"]
    made["parts"][step["parts"][1]] = zlib.compress(bytes(50 * 2**20))
    count_bytes = """window.decompressed = 0;
    const read = ReadableStreamDefaultReader.prototype.read;
    ReadableStreamDefaultReader.prototype.read = async function () {
      const next = await read.call(this);
      window.decompressed += next.value?.length ?? 0;
      return next;
    };"""
    [added] = browser.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": count_bytes}
    ).values()
    page = opened(made, state="head=L0H0")
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": added})
    assert "its size does not match its header" in find_one(page, ".notice").text
    assert 0 < page.execute_script("return window.decompressed") < 2**20


def test_a_page_without_runs_says_how_to_get_them(opened):
    page = opened()
    assert "callbacks.attention.steps" in find_one(page, ".notice").text
    assert not find_one(page, "main").is_displayed()


def test_uniform_attention_is_shown_both_ways(opened):
    page = opened(
        run(labels=["a"] * 8, layers=1, heads=1, steps=[1], weights=uniform(8)[None, None])
    )
    assert_cells(page, uniform(8))


def test_the_thumbnails_fit_after_the_window_became_smaller(opened):
    page = opened(small_run())
    for width in (1600, 360):
        resize(page, width)
        says(page)
        script = (
            "const at = document.querySelector('.grid'); return at.scrollWidth - at.clientWidth"
        )
        assert page.execute_script(script) <= 0
