"""The laws of generated corpora: the same arguments give the same text, every answer is right, and
nothing of the validation is in training."""

import re

import pytest
from composing import training_config
from corpora import texts
from refusals import refused

from headscope.config.parts import build_part
from headscope.data.generated import CHARACTERS, SYMBOLS


def corpus(name, **keys):
    return build_part(training_config(f"data={name}").data | keys, "data")


CHANGES = {
    "repeats": {"alphabet": 63, "min_length": 9, "max_length": 25, "min_copies": 3}
    | {"max_copies": 5, "characters": 21_000, "seed": 2},
    "modular": {"prime": 11, "share": 0.6, "seed": 2},
    "names": {"names": 12, "seed": 2},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_text_and_its_fingerprint_are_functions_of_every_key(name):
    less = {"characters": 20_000} if name == "repeats" else {}
    found = corpus(name, **less)
    changed = [corpus(name, **less | {key: value}) for key, value in CHANGES[name].items()]
    assert {*CHANGES[name]} == {*training_config(f"data={name}").data} - {"_target_"}
    assert len({each.fingerprint() for each in (found, *changed)}) == len(changed) + 1
    train, validation = texts(found)
    assert (train, validation) == texts(corpus(name, **less))
    assert corpus(name, **less).fingerprint() == found.fingerprint()
    assert not {*train} & {*validation}
    for each in changed:
        assert texts(each) != (train, validation)


def test_sums_are_right_and_every_pair_occurs_once():
    train, validation = texts(corpus("modular", prime=59, share=0.4))
    pairs = [{frozenset(text[:2]) for text in split} for split in (train, validation)]
    assert len(pairs[0]) == round(0.4 * 59 * 60 / 2)
    assert not pairs[0] & pairs[1]
    found = set()
    for text in train + validation:
        a, b, c = (SYMBOLS.index(text[place]) for place in (0, 1, 3))
        assert text[2] == "="
        assert c == (a + b) % 59 < 59
        found.add((a, b))
    assert len(found) == len(train + validation) == 59**2


def test_the_answer_is_the_name_that_occurs_once_and_pairs_are_held_out():
    train, validation = texts(corpus("names", names=20))
    assert len(train + validation) == 4 * 190
    for text in train + validation:
        [answer] = {name for name in text[:3] if text[:3].count(name) == 1}
        assert text[3:] == f"={answer}"
    assert not {frozenset(text[:3]) for text in train} & {*map(frozenset, validation)}


RANGES = {"min_length": 8, "max_length": 24, "min_copies": 2, "max_copies": 3}


def drawn(**keys):
    """The training and the validation text of `repeats`."""
    keys = RANGES | {"alphabet": 64, "characters": 20_000, "seed": 1} | keys
    [train], [validation] = texts(corpus("repeats", **keys))
    return train, validation


@pytest.mark.parametrize(("lengths", "copies"), [((8, 24), (2, 3)), ((24, 24), (5, 5))])
def test_strings_have_a_length_and_copies_in_range_and_all_values_occur(lengths, copies):
    train, _ = drawn(**dict(zip(RANGES, (*lengths, *copies), strict=True)))
    # With 64 characters, two strings begin with the same seven by chance once in 10^12.
    found = re.findall(r"((.{7}.*?)\2+)", train)
    assert train.startswith("".join(whole for whole, _ in found))
    found.pop()  # it is cut
    strings = [(len(once), len(whole) // len(once)) for whole, once in found]
    assert {length for length, _ in strings} == {*range(lengths[0], lengths[1] + 1)}
    assert {times for _, times in strings} == {*range(copies[0], copies[1] + 1)}
    assert sum(length * times for length, times in strings) >= len(train) - lengths[1] * copies[1]


def test_the_texts_of_repeats_have_their_lengths_and_characters_and_share_no_string():
    for alphabet in (2, len(CHARACTERS)):
        for text in drawn(alphabet=alphabet, characters=10**5):
            counts = [text.count(char) for char in {*text}]
            assert len(counts) == alphabet
            assert max(counts) < 3 * min(counts)
            assert all(char.isprintable() and char.isascii() and char != " " for char in {*text})
    train, validation = drawn()
    assert (len(train), len(validation)) == (20_000, 2_000)
    passages = {train[start : start + 8] for start in range(len(train))}
    assert not passages & {validation[start : start + 8] for start in range(len(validation))}
    assert drawn(characters=30_000)[0].startswith(train)  # the last string may have been cut
    assert [len(text) for text in drawn(characters=720)] == [720, 72]  # one string


REFUSED = [
    *(("modular", {"prime": 60}), ("modular", {"prime": 97}), ("modular", {"share": 1})),
    *(("names", {"names": 4}), ("names", {"names": 94})),
    *(("repeats", {"alphabet": 95}), ("repeats", {"characters": 0})),
    *(("repeats", {"min_length": 0}), ("repeats", {"min_length": 25, "max_length": 24})),
    *(("repeats", {"min_copies": 4, "max_copies": 3}), ("repeats", RANGES | {"characters": 719})),
]


@pytest.mark.parametrize(("name", "keys"), REFUSED)
def test_a_value_out_of_range_is_refused(name, keys):
    key, value = [*keys.items()][0 if len(keys) < 3 else -1]
    with refused(f"data.{key}={value}"):
        corpus(name, **keys)
