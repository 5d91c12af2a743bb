"""The laws of the corpus of repeated strings: what is drawn, and that the same seed draws it."""

import re

import pytest

from headscope.data.repeats import CHARACTERS, Repeats
from headscope.errors import UserError

SETTINGS = {
    "alphabet": 64,
    "min_length": 8,
    "max_length": 24,
    "min_copies": 2,
    "max_copies": 3,
    "characters": 20_000,
    "seed": 1,
}


def texts(**settings: int) -> tuple[str, str]:
    """The training and the validation text."""
    corpus = Repeats(**(SETTINGS | settings))
    train, validation = ("".join(document.pieces) for document in corpus.documents())
    return train, validation


def strings(text: str) -> list[tuple[int, int]]:
    """The length and the number of copies of each string in a text, the last one left out. With 64
    characters, two strings have the same first seven characters by chance once in 10^12."""
    found = re.findall(r"((.{7}.*?)\2+)", text)
    assert "".join(whole for whole, _ in found) == text[: sum(len(whole) for whole, _ in found)]
    return [(len(once), len(whole) // len(once)) for whole, once in found][:-1]


def test_every_string_has_a_length_and_copies_in_range_and_all_values_occur():
    found = strings(texts()[0])
    assert {length for length, _ in found} == {*range(8, 25)}
    assert {copies for _, copies in found} == {2, 3}
    assert sum(length * copies for length, copies in found) > 20_000 - 3 * 24


@pytest.mark.parametrize(("length", "copies"), [(8, 2), (24, 5)])
def test_equal_ends_give_one_period(length, copies):
    for text in texts(min_length=length, max_length=length, min_copies=copies, max_copies=copies):
        assert {*strings(text)} == {(length, copies)}
        whole = length * copies
        for start in range(0, len(text) - whole, whole):
            assert text[start : start + whole] == text[start : start + length] * copies


@pytest.mark.parametrize("alphabet", [2, 64, len(CHARACTERS)])
def test_the_alphabet_has_as_many_characters_as_asked_for_and_each_is_visible(alphabet):
    train, validation = texts(alphabet=alphabet, characters=200_000)
    assert len({*train}) == len({*validation}) == alphabet
    assert all(char.isprintable() and char.isascii() and char != " " for char in train)


def test_each_character_is_about_equally_frequent():
    train, _ = texts(characters=200_000)
    counts = [train.count(char) for char in {*train}]
    assert max(counts) < 1.5 * min(counts)


def test_the_texts_have_their_lengths_and_share_no_string():
    train, validation = texts()
    assert (len(train), len(validation)) == (20_000, 2_000)
    passages = {train[start : start + 8] for start in range(len(train))}
    assert not passages & {validation[start : start + 8] for start in range(len(validation))}


def test_the_seed_draws_the_texts():
    assert texts() == texts()
    assert texts(seed=-1)[0][:8] != texts()[0][:8]
    longer, _ = texts(characters=30_000)
    assert longer.startswith(texts()[0])  # the last string may have been cut


OTHERS = {
    "alphabet": 63,
    "min_length": 9,
    "max_length": 23,
    "min_copies": 1,
    "max_copies": 2,
    "characters": 20_001,
    "seed": 2,
}


def test_the_fingerprint_depends_on_every_key_and_on_nothing_else():
    assert OTHERS.keys() == SETTINGS.keys()
    fingerprint = Repeats(**SETTINGS).fingerprint()
    assert Repeats(**SETTINGS).fingerprint() == fingerprint
    changed = [Repeats(**(SETTINGS | {key: value})).fingerprint() for key, value in OTHERS.items()]
    assert len({fingerprint, *changed}) == len(OTHERS) + 1


def test_a_value_out_of_range_is_told_in_one_line():
    for settings, message in (
        ({"alphabet": 95}, "data.alphabet=95 must be between 2 and 94"),
        ({"min_length": 0}, "data.min_length=0 must be at least 1"),
        ({"min_length": 25}, "data.min_length=25 .* at most data.max_length=24"),
        ({"min_copies": 0}, "data.min_copies=0 must be at least 1"),
        ({"min_copies": 4}, "data.min_copies=4 .* at most data.max_copies=3"),
        ({"characters": 0}, "data.characters=0 must be between 1 and 10,000,000"),
        ({"characters": 719}, "data.max_length=24 x data.max_copies=3 .* of 71 characters"),
    ):
        with pytest.raises(UserError, match=message) as error:
            Repeats(**(SETTINGS | settings))
        assert "\n" not in str(error.value)
    train, validation = texts(characters=720)  # the smallest text that holds one string
    assert (len(train), len(validation)) == (720, 72)
