"""Activation patching with texts: their tokens, and the metric that they name."""

from dataclasses import replace

import pytest
import torch
from checkpoint_files import content, save
from refusals import refused

import headscope
from headscope.analysis.patching import ContinuationLoss, LogitDifference, patch_heads, patch_texts

GOOD = {"clean": "abc ab", "corrupted": "abd ab", "answers": ["c", "d"]}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A model of 8 bytes of context."""
    file = tmp_path_factory.mktemp("patch") / "some.safetensors"
    save(content()[0], file)
    return headscope.load(file)


def test_answers_are_the_two_tokens_of_a_logit_difference(loaded):
    texts = patch_texts(loaded, clean="abc abc", corrupted="abd abc", answers=["x", " "])
    assert texts.metric == LogitDifference(right=ord("x"), wrong=ord(" "))
    assert (texts.clean, texts.corrupted) == (list(b"abc abc"), list(b"abd abc"))
    assert texts.clean_labels == list("abc·abc")
    tokens = torch.tensor(texts.clean), torch.tensor(texts.corrupted)
    direct = patch_heads(loaded.model, *tokens, LogitDifference(right=120, wrong=32))
    torch.testing.assert_close(vars(texts.run(loaded)), vars(direct))


def test_a_continuation_follows_both_texts(loaded):
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


def test_without_a_difference_of_the_metric_there_is_no_score(loaded):
    texts = patch_texts(loaded, **GOOD)
    with refused("no difference that a head could carry"):
        replace(texts, corrupted=texts.clean).run(loaded)
