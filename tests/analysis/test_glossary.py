"""Every metric and every head name is in the glossary, and docs/glossary.md is current."""

import pytest
from running import ROOT

from headscope.analysis.glossary import HEAD_NAMES, METRICS, as_javascript, as_markdown
from headscope.analysis.head_types import BROAD, GLOBAL, MIXED, NARROW, NONE

JAVASCRIPT = "src/headscope/viewer/static/glossary.js"
FILES = {"docs/glossary.md": as_markdown, JAVASCRIPT: as_javascript}


def test_every_entry_says_what_a_high_value_means_and_every_head_name_has_one():
    """tests/analysis/report/test_report_numbers.py compares the metrics with those of a report."""
    assert list(HEAD_NAMES) == [*NARROW.values(), *BROAD.values(), GLOBAL, MIXED, NONE]
    assert all(text.endswith(".") for text in [*METRICS.values(), *HEAD_NAMES.values()])
    assert all(". A high value means" in text for text in METRICS.values())


@pytest.mark.parametrize("file", FILES)
def test_the_files_made_from_the_glossary_are_current(file):
    function = FILES[file]
    write = (
        f'python -c "from headscope.analysis.glossary import {function.__name__} as text; '
        f"print(text(), end='')\" > {file}"
    )
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text == function(), f"write it again: {write}"
