"""What a person sees in TensorBoard: the real program, opened in a real browser."""

from collections.abc import Iterator
from typing import Any

import pytest
from running import SMALL, Script
from tab_runs import until
from tensorboard.program import TensorBoard

from headscope.analysis.head_images import image_tag

IN_ALL_SHADOWS = """
const found = [];
const walk = (root) => {
  for (const element of root.querySelectorAll('*')) {
    if (element.matches(arguments[0])) found.push(element);
    if (element.shadowRoot) walk(element.shadowRoot);
  }
};
walk(document);
"""
"""All elements that match a selector, also inside TensorBoard's own elements."""

COLOURS = """
const canvas = document.createElement('canvas');
canvas.width = arguments[0].naturalWidth;
canvas.height = arguments[0].naturalHeight;
const context = canvas.getContext('2d');
context.drawImage(arguments[0], 0, 0);
const pixels = new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
return new Set(pixels).size;
"""


@pytest.fixture
def board(browser: Any, script: Script, speeches: Any) -> Iterator[Any]:
    """open_tab(name) shows a tab of TensorBoard, of a run of 4 steps. Afterwards the browser's
    console may hold no error."""
    watched = ["heads.every_steps=2", "attention.images=2"]
    words = [*SMALL, *(f"callbacks.{word}" for word in watched), "trainer.max_steps=4"]
    said = script("train", *words, f"data.path={speeches}")
    assert said.code == 0, said.err
    served = TensorBoard()
    served.configure(argv=["tensorboard", "--logdir", "outputs", "--port", "0"])
    address = served.launch()
    browser.set_window_size(1600, 1200)

    def open_tab(name: str) -> Any:
        browser.get("about:blank")
        browser.get(f"{address}#{name}")
        return browser

    yield open_tab
    errors = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert errors == []


def found(page: Any, selector: str) -> list[Any]:
    return page.execute_script(IN_ALL_SHADOWS + "return found", selector)


def text_of(page: Any) -> str:
    script = IN_ALL_SHADOWS + "return found.map((e) => e.textContent).join('\\n')"
    return page.execute_script(script, "*:not(style):not(script)")


def test_the_tabs_show_maps_charts_settings_and_names(board: Any) -> None:
    page = board("images")
    drawn = IN_ALL_SHADOWS + "return found.filter((image) => image.naturalWidth > 0)"
    images = until(
        lambda: len(found(page, "img")) >= 2 and page.execute_script(drawn, "img"), "images"
    )
    assert len(images) == 2  # the maps of two layers
    for image in images:
        assert page.execute_script(COLOURS, image) > 20
    words = text_of(page)
    for layer in (0, 1):
        assert image_tag(layer, 4) in words

    page = board("custom_scalars")
    until(lambda: "layer 1" in text_of(page), "the charts of layers")
    lines = until(lambda: found(page, "path.line, svg g path[d]"), "lines in a chart")
    assert len(lines) >= 4  # a head each

    page = board("hparams")
    until(lambda: "model.heads" in text_of(page), "the settings")
    words = text_of(page)
    assert "trainer.max_steps" in words
    assert "trainer.accelerator" not in words  # only the settings that people compare

    # The tab Attention shows what this run has logged.
    page = board("headscope")
    [frame] = until(lambda: found(page, 'iframe[src$="name=headscope"]'), "the tab Attention")
    page.switch_to.frame(frame)
    until(lambda: page.find_elements("css selector", ".grid button"), "all heads")
    names = [each.text for each in page.find_elements("css selector", ".grid button .name")]
    assert names == ["-"] * 8  # two layers of four heads, none with a name after so few steps
    page.switch_to.default_content()
