"""The corpora of tasks: every answer is right, and nothing of the validation is in training."""

import pytest
from composing import training_config
from refusals import refused

from headscope.config import build_part
from headscope.data.tasks import SYMBOLS, Modular, Names


def splits(corpus):
    found = list(corpus.examples())
    assert found == list(corpus.examples())
    train, validation = (
        [text for each, text in found if each == name] for name in ("train", "validation")
    )
    assert not set(train) & set(validation)
    return train, validation


def test_sums_are_right_and_every_pair_occurs_once():
    train, validation = splits(Modular(prime=59, share=0.4, seed=1))
    assert len({frozenset(text[:2]) for text in train}) == round(0.4 * 59 * 60 / 2)
    assert not {frozenset(text[:2]) for text in train} & {
        frozenset(text[:2]) for text in validation
    }
    pairs = set()
    for text in train + validation:
        a, b, c = (SYMBOLS.index(text[place]) for place in (0, 1, 3))
        assert text[2] == "="
        assert c == (a + b) % 59 < 59
        pairs.add((a, b))
    assert len(pairs) == len(train + validation) == 59**2


def test_the_answer_is_the_name_that_occurs_once_and_pairs_are_held_out():
    train, validation = splits(Names(names=20, seed=1))
    assert len(train + validation) == 4 * 190
    for text in train + validation:
        [answer] = {name for name in text[:3] if text[:3].count(name) == 1}
        assert text[3:] == f"={answer}"
    assert not {frozenset(text[:3]) for text in train} & {
        frozenset(text[:3]) for text in validation
    }


def test_other_seeds_divide_differently_and_have_other_fingerprints():
    for one, other in (
        (Modular(prime=7, share=0.5, seed=1), Modular(prime=7, share=0.5, seed=2)),
        (Names(names=9, seed=1), Names(names=9, seed=2)),
        (Names(names=9, seed=1), Names(names=10, seed=1)),
    ):
        assert splits(one) != splits(other)
        assert one.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data=modular data.prime=60", "data.prime=60"),
        ("data=modular data.prime=97", "data.prime=97"),
        ("data=modular data.share=1", "data.share=1"),
        ("data=names data.names=4", "data.names=4"),
        ("data=names data.names=94", "data.names=94"),
    ],
)
def test_values_out_of_range_are_refused(words, message):
    with refused(message):
        build_part(training_config(*words.split()).data)
