"""Walks from a prediction to the embeddings by clicks, on the runs of docs/explore.md."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, Script
from test_explore_in_browser import ExplorePage, page

import headscope
from headscope.show.explore import server
from headscope.show.explore.answers import Explorer
from headscope.show.explore.models import Models

__all__ = ["page"]


@pytest.fixture
def explored(script: Script, page: ExplorePage, tmp_path: Path) -> Any:
    """Trains a run, and opens the page on it. Returns the model."""

    def train_and_open(*words: str, **state: str) -> Any:
        script("train", "callbacks.samples.max_new_tokens=0", *words).succeeded()
        [run] = tmp_path.glob("outputs/*_*")
        explorer = Explorer(Models(str(run), None, "cpu"))
        page.open(server.serve(explorer, host="127.0.0.1", port=0)[1], **state)
        return headscope.load(run)

    return train_and_open


def shown_pair(page: ExplorePage) -> tuple[str, str, str]:
    """The parts of the first pair, and what they add to the score."""
    at_query, _, at_key, value = page.lines(".pairs .row")[1]
    return at_query, at_key, value


def last_edge(page: ExplorePage) -> tuple[str, int, int]:
    """The head, the query and the key of the end of the walk, from the address."""
    *_, (head, query, key) = re.findall(
        r"(L\dH\d)\.(\d+)\.(\d+)", page.script("return location.hash")
    )
    return head, int(query), int(key)


def follow(page: ExplorePage, part: str) -> None:
    [first, *_] = [each for each in page.all(".pairs button") if each.text == part]
    page.click(first)


def test_an_induction_head_reads_what_a_previous_token_head_wrote(
    page: ExplorePage, explored: Any
) -> None:
    loaded = explored("experiment=induction")
    text = page.one(".editor-card textarea").get_attribute("value")
    reading = loaded.read(text)
    page.press("3 ")  # click 1: the experiment, which opens the head that decides
    page.press("Why there?")  # click 2
    head, query, key = last_edge(page)
    assert (query, reading.labels[key]) == (len(text) - 1, text[9])
    at_query, previous, value = shown_pair(page)
    assert [at_query, previous] == [*reading.why(head, query, key).table().iloc[0]][:2]
    assert at_query == "embedding"
    follow(page, previous)  # click 3
    assert last_edge(page) == (previous, key, key - 1)
    assert shown_pair(page)[:2] == ("embedding", "embedding")
    assert page.text(".why-card .rows .marked").startswith("1 back")
    page.browser.back()
    page.ready()
    assert last_edge(page) == (head, query, key)
    assert shown_pair(page) == (at_query, previous, value)
    page.click(page.one(".why-card .close"))
    assert not page.one(".why-card").is_displayed()
    assert page.one(".editor-card").is_displayed()


def test_a_head_finds_the_name_that_occurs_twice_by_its_embedding(
    page: ExplorePage, explored: Any
) -> None:
    loaded = explored("experiment=names")
    reading = loaded.read("ETT=")
    page.press("4 ")
    page.press("Why there?")
    _, query, key = last_edge(page)
    assert (query, reading.labels[key]) == (3, "T")
    assert shown_pair(page)[:2] == ("embedding", "embedding")
    page.press("Since which step?")
    for _ in range(100):
        rows = page.lines(".by-step .row")
        if len(rows) == 7:
            break
        time.sleep(0.1)
    assert [rows[0][0], rows[-1][0]] == ["0", "3,000"]
    assert rows[-1][-1] == shown_pair(page)[2]


def test_a_head_looks_from_to_at_the_second_name(page: ExplorePage, explored: Any) -> None:
    docs = (ROOT / "docs" / "explore.md").read_text("utf-8")
    exec(re.search(r"```python\n(import random.*?)```", docs, re.DOTALL)[1], {})
    loaded = explored("data.path=garden.txt", "model.layers=2", "trainer.max_steps=400")
    text = "Anna and Tom went to the garden. Anna gave a ball to"
    page.type(text)
    assert page.likely[0][0] == "·Tom"
    page.press("Why there?")
    assert loaded.read(text).labels[last_edge(page)[2]] == "·Tom"
    assert shown_pair(page)[1] == "L0 feed-forward"
