"""What a person sees in TensorBoard: the real program, opened in a real browser."""

from typing import Any

from running import SMALL, until
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


def found(page: Any, selector: str, script: str = "return found") -> Any:
    return page.execute_script(IN_ALL_SHADOWS + script, selector)


def text_of(page: Any) -> str:
    return found(page, "*:not(style):not(script)", "return found.map((e) => e.textContent).join()")


def test_the_tabs_show_maps_charts_settings_and_names(browser, script, speeches):
    """Of a run of 4 steps. The browser's console may hold no error."""
    watched = ["callbacks.heads.every_steps=2", "callbacks.attention.images=2"]
    words = [*SMALL, *watched, "trainer.max_steps=4", f"data.path={speeches}"]
    assert script("train", *words).code == 0
    served = TensorBoard()
    served.configure(argv=["tensorboard", "--logdir", "outputs", "--port", "0"])
    address, page = served.launch(), browser
    browser.set_window_size(1600, 1200)

    def open_tab(name: str) -> None:
        browser.get("about:blank")
        browser.get(f"{address}#{name}")

    open_tab("images")
    drawn = "return found.filter((image) => image.naturalWidth > 0)"
    images = until(lambda: len(found(page, "img")) >= 2 and found(page, "img", drawn), "images")
    assert len(images) == 2  # the maps of two layers
    words = text_of(page)
    for layer in (0, 1):
        assert image_tag(layer, 4) in words

    open_tab("custom_scalars")
    until(lambda: "layer 1" in text_of(page), "the charts of layers")
    lines = until(lambda: found(page, "path.line, svg g path[d]"), "lines in a chart")
    assert len(lines) >= 4  # a head each

    open_tab("hparams")
    until(lambda: "model.heads" in text_of(page), "the settings")
    words = text_of(page)
    assert "trainer.max_steps" in words
    assert "trainer.accelerator" not in words  # only the settings that people compare
    assert [line for line in page.get_log("browser") if line["level"] == "SEVERE"] == []
