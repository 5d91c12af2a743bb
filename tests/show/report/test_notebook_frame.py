"""The viewer inside a notebook: what the last line `loaded.read("text")` of a cell shows."""

import re
from html import unescape
from pathlib import Path

import pytest
import torch
from checkpoint_files import configuration, content, save
from refusals import refused
from viewer_data import Elements

import headscope
from headscope.analysis.reading import NOTEBOOK_BYTES

HOSTILE = "</iframe></script>\"'<b>&amp;{page}\n多"
FRAME = r'<iframe sandbox="allow-scripts" [^<>]*srcdoc="([^"<>]*)"[^<>]*>[^<>]*</iframe>'
MANY = ("model.block_size=128", "model.heads=32", "model.embed_dim=32", "model.layers=8")


def opened(folder: Path, *words: str):
    save(content(configuration("model/position=alibi", *words))[0], folder / "a.safetensors")
    return headscope.load(folder / "a.safetensors")


def page_in(output: str) -> Elements:
    return Elements(unescape(re.fullmatch(FRAME, output)[1]))


@pytest.mark.parametrize("text", [HOSTILE, [0, 256]], ids=type)
def test_every_text_is_shown_in_one_frame_and_written_to_a_file(tmp_path: Path, text) -> None:
    reading = opened(tmp_path, "model.block_size=64").read(text)
    shown = page_in(reading._repr_html_())
    assert shown.data["runs"][0]["history"]["labels"] == reading.labels
    for _ in range(2):  # the cell is run again
        reading.save_html(tmp_path / "x.html")
    assert Elements((tmp_path / "x.html").read_text("utf-8")).scripts == shown.scripts
    for place in (tmp_path, tmp_path / "none" / "x.html", "."):
        with refused(place):
            reading.save_html(place)


def test_a_long_text_is_shortened_and_a_short_line_describes_it(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"only the first 128 \(block_size\) are used") as warned:
        reading = opened(tmp_path, *MANY).read("x" * 1000)
    assert warned[0].filename == __file__
    assert repr(reading) == "<Reading: 8 layers, 32 heads each, 128 tokens>"
    output = reading._repr_html_()
    assert len(output) < NOTEBOOK_BYTES * 4 / 3 + 300_000  # base64, and the viewer itself
    history = page_in(output).data["runs"][0]["history"]
    assert 1 < len(history["labels"]) < 128
    assert history["text_tokens"] == 128


def test_weights_that_cannot_be_shown_say_why(tmp_path: Path) -> None:
    loaded = opened(tmp_path)
    torch.nn.init.constant_(loaded.model.blocks[0].attention.out_proj.weight, torch.nan)
    shown = loaded.read("abc")._repr_html_()
    assert re.fullmatch("<pre>&lt;Reading[^<>]*not finite[^<>]*</pre>", shown)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_frame_follows_the_notebook_and_opens_heads(browser, tmp_path, scheme) -> None:
    from viewer_page import Page

    file, page = tmp_path / "notebook.html", Page(browser)
    shown = opened(tmp_path).read("the peop")._repr_html_()
    file.write_text(f'<!doctype html><html style="color-scheme: {scheme}">{shown}', "utf-8")
    browser.get(file.as_uri())
    browser.switch_to.frame(0)
    page.ready()
    page.script("addEventListener('error', ({ message }) => (document.title = message))")
    assert page.script("return document.documentElement.dataset.theme") == scheme
    page.click(page.all(".grid button")[5])
    assert page.heading.startswith("L1H1")
    assert page.hover(page.tokens[1]).startswith("“h” looks at")
    page.script("return new Promise((resolve) => setTimeout(resolve, 400))")  # the URL is written
    assert page.script("return document.title") == "Attention heads"
    browser.switch_to.default_content()
