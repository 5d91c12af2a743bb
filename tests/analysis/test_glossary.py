"""Every metric and every head name is in the glossary."""

import re

from benchmarks.pages import head_names, metrics
from headscope.analysis.head_types import BROAD, GLOBAL, MIXED, NARROW, NONE, Thresholds


def test_every_entry_says_what_a_high_value_means_and_every_head_name_has_one():
    """tests/show/report/test_report.py compares the metrics with those of a report."""
    names = head_names()
    assert list(names) == [*NARROW.values(), *BROAD.values(), GLOBAL, MIXED, NONE]
    assert all(text.endswith(".") for text in [*metrics().values(), *names.values()])
    assert all(". A high value means" in text for text in metrics().values())


def test_the_thresholds_in_the_glossary_are_the_defaults():
    keys = {name: key for key, name in [*NARROW.items(), *BROAD.items()]}
    keys |= {GLOBAL: "spread", MIXED: "spread", NONE: "even"}
    for name, text in head_names().items():
        value = getattr(Thresholds, keys[name])
        assert re.search(rf"(at least|below) ({value}|{value:.0%})(?![\d.]*\d)", text), name
