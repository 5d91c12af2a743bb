"""What attention.html answers: cursor, clicks, pointer, URL and keys, in a browser."""

import re

from viewer_data import weights_at
from viewer_page import (
    HEADS,
    LABELS,
    SHOWN,
    WEIGHTS,
    Keys,
    assert_cells,
    click,
    colours,
    find,
    find_one,
    headline,
    hover,
    moment,
    press,
    ready,
    says,
    select,
    small_run,
    tokens,
    webdriver,
)

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
    assert says(page).startswith(f"“{SHOWN[6]}” compared with step 0")
    assert find_one(page, "select[aria-label=run]").get_attribute("value") == "run & b=c#?%"
    chosen = find_one(page, "select[aria-label='figure of the timeline']")
    assert chosen.get_attribute("value") == "entropy"


def test_a_url_that_makes_no_sense_is_harmless(opened):
    for state in (
        "step=999999999999999&head=L9H9&token=99&figure=x&run=x&text=y&compare=step:x&view=z",
        "step=-1&head=L0&compare=head:L9H9&token=1.5",
        "compare=run:nowhere&=&&&a=b=c&%E0%A4%A",
        "__proto__=1&constructor=2&head=__proto__&compare=toString:1&figure=toString",
    ):
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
