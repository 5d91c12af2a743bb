"""attention.html opened from disk in a browser."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from viewer_data import HOSTILE

from headscope.show.viewer.page import attention_page


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """opened(runs, title, state) opens a page. Afterwards the console may hold no error."""
    from viewer_page import Page

    page = Page(browser)
    page.resize(1400)

    def open_page(
        *runs: Mapping[str, Any], title: str = f"A title {HOSTILE}", state: str = ""
    ) -> Page:
        file = tmp_path / "attention.html"
        file.write_text(attention_page(title=title, runs=runs), encoding="utf-8")
        browser.get("about:blank")
        browser.get(f"{file.as_uri()}#{state}")
        page.set_scheme()
        return page

    yield open_page
    assert browser.get_log("browser") == []


@pytest.fixture
def page(opened: Callable[..., Any]) -> Any:
    """A page with two runs of four steps, with L0H0 opened."""
    from viewer_page import WEIGHTS, small_run

    runs = small_run(), small_run("run b", weights=WEIGHTS[:, ::-1])
    return opened(*runs, state="head=L0H0")
