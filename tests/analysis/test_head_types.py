"""Heads are called what they plainly do. Every name and metric is in the glossary."""

import re

import pytest
import torch
from viewer_data import uniform_metrics

from headscope.analysis import head_types as names
from headscope.analysis.head_types import HeadType, Thresholds, head_types
from headscope.analysis.metrics import head_metrics, uniform
from headscope.analysis.own_metrics import OURS
from headscope.config.parts import defaults_in_conf
from headscope.show.viewer.files import GLOSSARY, glossary, meanings

TOKENS = 24
EVEN = uniform_metrics(TOKENS)


def looking(*offsets, share=1.0):
    """A head (T, T) that gives `share` of its weight, in equal parts, to the keys at `offsets`, and
    the rest to all that it sees alike."""
    even = uniform(torch.ones(TOKENS, TOKENS))
    aimed = torch.zeros(TOKENS, TOKENS)
    for query in range(TOKENS):
        keys = [query + offset for offset in offsets if 0 <= query + offset < TOKENS]
        aimed[query, keys or [query]] = 1 / max(len(keys), 1)
    return share * aimed + (1 - share) * even


def test_a_threshold_is_the_share_above_what_even_attention_gives():
    shares = [looking(-1, share=share) for share in (0.3, 0.35, 0.41, 1.0)]
    # Of two names, the one further above its threshold is taken.
    two_names = 0.55 * looking(-1) + 0.45 * torch.eye(TOKENS)
    metrics, previous = head_metrics(torch.stack([*shares, two_names])), "previous-token"
    for thresholds, expected in (
        (Thresholds(), ["global", "global", previous, previous, previous]),
        (Thresholds(previous=0.25), [previous] * 5),
        (Thresholds(self=0.2), ["global", "global", previous, previous, "self"]),
    ):
        assert [head.name for head in head_types(metrics, EVEN, thresholds=thresholds)] == expected


FIRST = torch.eye(TOKENS)[[0] * TOKENS]


@pytest.mark.parametrize(
    ("weights", "queries", "name"),
    [
        (0.7 * FIRST + 0.3 * looking(-1), 64, "previous-token"),
        (0.7 * FIRST + 0.3 * looking(-1), 63, "first-token"),
        (0.3 * FIRST + 0.7 * looking(-1), 63, "-"),
        (0.7 * FIRST + 0.3 * looking(-1, share=0), 64, "first-token"),
        (0.3 * FIRST + 0.7 * looking(-1, share=0), 64, "-"),
    ],
)
def test_a_name_says_what_a_head_does_where_it_does_not_rest(weights, queries, name):
    """`first-token` says that it does nothing else, or only in a few queries."""
    [head] = head_types(head_metrics(weights[None]), EVEN, queries=queries)
    assert head.name == name


NOWHERE = torch.eye(TOKENS)[[(9 * t + 3 * t * t // 7) % (t + 1) for t in range(TOKENS)]]
"""Each query attends to another key, so that no metric names this head."""


UNNAMED = HeadType("mixed", float(head_metrics(NOWHERE)["unevenness"]), 0.0)


@pytest.mark.parametrize(
    ("added", "even", "expected"),
    [
        ({"induction": 0.8}, 0.0, HeadType("induction", 0.8, 0.8 / 0.3)),
        ({"punctuation": 0.47}, 0.1, HeadType("punctuation", 0.47, 0.37 / 0.9 / 0.4)),
        ({"punctuation": 0.45}, 0.1, UNNAMED),
        ({"same_token": 0.35}, 0.05, HeadType("same-token", 0.35, 0.3 / 0.95 / 0.3)),
        ({"frequent": 0.68}, 0.5, HeadType("frequent-token", 0.68, 0.36 / 0.33)),
        ({"frequent": 0.32}, 0.5, HeadType("rare-token", 0.68, 0.36 / 0.33)),
        ({"global": 0.9}, 1.0, HeadType("global", 0.9, 0.0)),
        # A narrow name goes before a broad one.
        ({"punctuation": 0.6, "frequent": 0.99}, 0.1, HeadType("punctuation", 0.6, 0.5 / 0.36)),
    ],
)
def test_a_metric_of_the_text_names_a_head_by_its_excess_over_the_threshold(added, even, expected):
    """The score is the metric, for rare-token 1 minus `frequent`. The ratio is excess/threshold."""
    metrics = head_metrics(NOWHERE[None])
    metrics |= {name: torch.tensor([value]) for name, value in added.items()}
    [head] = head_types(metrics, EVEN | {name: [even] for name in metrics})
    assert head.name == expected.name
    assert (head.score, head.ratio) == pytest.approx((expected.score, expected.ratio), abs=1e-4)


def test_the_score_of_short_range_is_how_much_shorter_the_distance_is():
    metrics = head_metrics(looking(*range(-5, 1))[None])
    [head] = head_types(metrics, EVEN)
    assert head.score == pytest.approx(1 - float(metrics["distance"]) / EVEN["distance"][0])
    assert head.ratio == pytest.approx(head.score / Thresholds.short_range)
    [in_conf] = defaults_in_conf("thresholds").values()
    assert {**in_conf, **vars(Thresholds())} == in_conf


# --- the glossary ---


def test_every_entry_says_what_a_high_value_means_and_every_head_name_has_one():
    """tests/show/report/test_report.py compares the metrics with those of a report."""
    metrics, described = (meanings()[kind] for kind in ("metrics", "names"))
    plain = [names.GLOBAL, names.MIXED, names.NONE]
    narrow, broad = names.NARROW.values(), names.BROAD.values()
    assert list(described) == [names.FIRST, *narrow, *broad, *plain]
    assert all(". A high value means" in text for text in metrics.values())
    assert {*metrics} <= {*OURS}  # the names that a metric of the user may not have
    for table in glossary().values():  # the pages show the meanings as tooltips
        for meaning in table.values():
            assert meaning.endswith(".")
            assert not re.search(r"[=^|/*]|sum\(|\bln\b", meaning)


def test_the_thresholds_in_the_glossary_are_the_defaults():
    keys = {name: key for key, name in [*names.NARROW.items(), *names.BROAD.items()]}
    keys |= {
        names.FIRST: "first",
        names.GLOBAL: "spread",
        names.MIXED: "spread",
        names.NONE: "even",
    }
    section = GLOSSARY.read_text("utf-8").partition("## Names of heads\n")[2].partition("\n## ")[0]
    conditions = dict(re.findall(r"^\| `(.+?)` \| [^|]+ \| (.*) \|$", section, re.M))
    assert [*conditions] == [*glossary()["Names of heads"]]
    for name, condition in conditions.items():
        value = getattr(Thresholds, keys[name])
        assert re.search(rf"(at least|below) ({value}|{value:.0%})(?![\d.]*\d)", condition), name
