"""Activation patching with texts: their tokens, and the metric that they name."""

from dataclasses import replace

import pytest
from checkpoint_files import content, save
from refusals import refused

import headscope
from headscope.analysis.patching import ContinuationLoss, LogitDifference, patch_texts

GOOD = {"clean": "abc ab", "corrupted": "abd ab", "answers": ["c", "d"]}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A model of 8 bytes of context."""
    file = tmp_path_factory.mktemp("patch") / "some.safetensors"
    save(content()[0], file)
    return headscope.load(file)


def test_answers_are_a_logit_difference_and_a_continuation_is_a_loss(loaded):
    texts = patch_texts(loaded, clean="abc abc", corrupted="abd abc", answers=["x", " "])
    assert texts.metric == LogitDifference(right=ord("x"), wrong=ord(" "))
    assert (texts.clean, texts.corrupted) == (list(b"abc abc"), list(b"abd abc"))
    assert texts.clean_labels == list("abc·abc")
    with refused("no difference that a head could carry"):
        replace(texts, corrupted=texts.clean).run(loaded)
    texts = patch_texts(loaded, clean="abca", corrupted="abda", continuation="bc")
    assert texts.metric == ContinuationLoss((98, 99))
    assert (texts.clean, texts.corrupted) == (list(b"abcabc"), list(b"abdabc"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"corrupted": "多 abc"}, ["have 6 and 7 tokens", "['多 1/3', "]),
        ({"corrupted": "abc ab"}, ["same text"]),
        ({"clean": None}, ["patch.clean="]),
        ({"answers": None}, ["patch.answers", "patch.continuation"]),
        ({"answers": ["c"]}, ["patch.answers=['c']", "two different"]),
        ({"answers": ["c", "c"]}, ["two different"]),
        ({"answers": ["c", "de"]}, ["'de' has 2 tokens (d, e)"]),
        ({"answers": None, "continuation": ""}, ["patch.continuation"]),
        ({"answers": None, "continuation": "cde"}, ["9 tokens", "block_size=8"]),
        ({"position": 6}, ["position=6", "0 to 5"]),
    ],
    ids=str,
)
def test_a_mistake_is_told_in_one_line(loaded, changed, words):
    with refused(*words):
        patch_texts(loaded, **(GOOD | changed)).run(loaded)
