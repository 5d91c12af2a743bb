"""The laws of the corpus of repeated strings: what is drawn, and that the same seed draws it."""

import re

import pytest
from corpora import texts
from refusals import refused

from headscope.data.generated import CHARACTERS, Repeats

SETTINGS = {"alphabet": 64, "min_length": 8, "max_length": 24, "min_copies": 2, "max_copies": 3}
SETTINGS |= {"characters": 20_000, "seed": 1}


def drawn(**settings):
    """The training and the validation text."""
    [train], [validation] = texts(Repeats(**(SETTINGS | settings)))
    return train, validation


def strings(text):
    """The length and the number of copies of each string in a text, the last one left out. With 64
    characters, two strings have the same first seven characters by chance once in 10^12."""
    found = re.findall(r"((.{7}.*?)\2+)", text)
    assert text.startswith("".join(whole for whole, _ in found))
    return [(len(once), len(whole) // len(once)) for whole, once in found][:-1]


@pytest.mark.parametrize(
    ("lengths", "copies"), [((8, 24), (2, 3)), ((8, 8), (2, 2)), ((24, 24), (5, 5))]
)
def test_strings_have_a_length_and_copies_in_range_and_all_values_occur(lengths, copies):
    keys = ("min_length", "max_length", "min_copies", "max_copies")
    train, _ = drawn(**dict(zip(keys, (*lengths, *copies), strict=True)))
    found = strings(train)
    assert {length for length, _ in found} == {*range(lengths[0], lengths[1] + 1)}
    assert {times for _, times in found} == {*range(copies[0], copies[1] + 1)}
    assert sum(length * times for length, times in found) >= len(train) - lengths[1] * copies[1]


@pytest.mark.parametrize("alphabet", [2, 64, len(CHARACTERS)])
def test_the_alphabet_has_as_many_visible_characters_as_asked_for_about_equally_often(alphabet):
    for text in drawn(alphabet=alphabet, characters=10**6):
        counts = [text.count(char) for char in {*text}]
        assert len(counts) == alphabet
        assert max(counts) < 1.5 * min(counts)
        assert all(char.isprintable() and char.isascii() and char != " " for char in {*text})


def test_the_seed_draws_the_texts_which_have_their_lengths_and_share_no_string():
    train, validation = drawn()
    assert (len(train), len(validation)) == (20_000, 2_000)
    passages = {train[start : start + 8] for start in range(len(train))}
    assert not passages & {validation[start : start + 8] for start in range(len(validation))}
    assert drawn() == (train, validation)
    assert drawn(seed=-1)[0][:8] != train[:8]
    assert drawn(characters=30_000)[0].startswith(train)  # the last string may have been cut


def test_the_fingerprint_depends_on_every_key_and_on_nothing_else():
    fingerprint = Repeats(**SETTINGS).fingerprint()
    assert Repeats(**SETTINGS).fingerprint() == fingerprint
    changes = [{key: value - 1} for key, value in SETTINGS.items()]
    changed = [Repeats(**(SETTINGS | change)).fingerprint() for change in changes]
    assert len({fingerprint, *changed}) == len(SETTINGS) + 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alphabet": 95}, "data.alphabet=95 must be between 2 and 94"),
        ({"min_length": 0}, "data.min_length=0 must be at least 1"),
        ({"min_length": 25}, "at most data.max_length=24"),
        ({"min_copies": 4}, "at most data.max_copies=3"),
        ({"characters": 0}, "data.characters=0 must be between 1 and 10,000,000"),
        ({"characters": 719}, "of 71 characters"),
    ],
)
def test_a_value_out_of_range_is_told(settings, message):
    with refused(message):
        Repeats(**(SETTINGS | settings))
    assert [len(text) for text in drawn(characters=720)] == [720, 72]  # one string
