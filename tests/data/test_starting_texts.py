"""The texts that explore starts with can be read, and begin and end where a reader expects it."""

import re
from pathlib import Path

import numpy as np
import pytest
from corpora import texts
from test_chinese import CLAUSE, MAKERS
from test_chinese import TEXT as CHINESE
from test_generated import corpus

from headscope.data import encode
from headscope.data.corpus import Sotu, TinyShakespeare
from headscope.data.own_files import TextFiles
from headscope.data.starting_texts import starting_texts
from headscope.data.tokenizer import bpe, byte, char, splits_characters

ENGLISH = "Mr. Brown went home. Anna had a red ball, and gave it to Tom. Then Tom ran away. " * 99
OWN = {  # documents, and what is before and after a text that begins and ends well
    "english": ([ENGLISH[1:]], r"(home|Tom|away)\. ", "[ ,.]"),
    "chinese": ([CHINESE[9:] * 9], "[\u3002\uff1f]\n?", "."),
    "line": (["wo three four five six t" * 99], " ", " "),
    "code": ([Path(encode.__file__).read_text("utf-8")[3:]], r"\n\n|\w{4}\.\s+", r"\s"),
    "rows": ([f"row {number} of it" for number in range(99)], "^", " it$"),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("own", OWN)
def test_a_text_of_the_validation_split_begins_with_a_sentence_and_ends_with_a_word(own, name):
    documents, before, after = OWN[own]
    tokenizer = MAKERS[name](documents)
    each = [[tokenizer.end_of_text, *tokenizer.encode(document)] for document in documents]
    [text] = starting_texts(TextFiles(path=__file__), tokenizer, np.concatenate(each))
    found = re.compile(f"({before}){re.escape(text)}{after}", re.MULTILINE)
    assert found.search("\n".join(documents)), text
    assert own in ("rows", "code") or 12 <= len(tokenizer.encode(text)) <= 24


def test_the_tokenizer_of_a_built_in_corpus_knows_its_examples():
    keys = [("repeats", "alphabet", 2), ("repeats", "alphabet", 47), ("names", "names", 5)]
    changed = [corpus(name, **{key: value}) for name, key, value in keys]
    for built in (*changed, *map(corpus, ("sotu", "repeats", "names", "modular"))):
        found = starting_texts(built, char(texts(built)[0]), np.array([]))
        assert found == [*built.starting_texts] != []
    assert starting_texts(TinyShakespeare(), byte([]), np.array([])) == [
        *TinyShakespeare.starting_texts
    ]
    assert starting_texts(Sotu(), char(["My felowctizns"]), np.array([])) == ["My fellow citizens"]


def test_a_tokenizer_with_more_tokens_than_characters_splits_them():
    english = bpe([ENGLISH], vocab_size=300)
    assert splits_characters(english, CLAUSE)
    for tokenizer in (bpe([CHINESE * 9], vocab_size=2000), char([CHINESE]), byte([])):
        assert not splits_characters(tokenizer, CHINESE)
    for text in ("", "\xe9", "\xe0 la carte", ENGLISH, "Unknown words: xylophone"):
        assert not splits_characters(english, text)
