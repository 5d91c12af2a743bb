"""The texts that explore starts with: the tokenizer knows those of a corpus, and a text of the
validation split begins with a sentence and ends with a word. And what a tokenizer does not know."""

import re
from pathlib import Path

import numpy as np
import pytest
from corpora import texts, write
from test_chinese import TEXT as CHINESE
from test_generated import corpus

from headscope.data import encode
from headscope.data.corpus import Sotu, TinyShakespeare
from headscope.data.examples import examples_of
from headscope.data.own_files import TextFiles
from headscope.data.store import prepare_store
from headscope.data.tokenizer import bpe, byte, char, splits_characters

ENGLISH = "Mr. Brown went home. Anna had a red ball, and gave it to Tom. Then Tom ran away. " * 99
MAKERS = {"bpe": lambda texts: bpe(texts, vocab_size=2000), "byte": byte, "char": char}
OWN = {  # the documents, and what is before and after a text of them
    "english": ([ENGLISH[7:]], r"(home|Tom|away)\. ", r"[ ,.]"),
    "chinese": ([CHINESE[9:] * 9], "[\u3002\uff1f]\n?", "."),
    "line": (["two three four five six " * 99], r"\b", " "),
    "code": ([Path(encode.__file__).read_text("utf-8")[3:]], r"\n\n|\w\w\w\w\.\s+", r"\s"),
    "rows": ([f"row {number} of it" for number in range(99)], "^", " it$"),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("own", OWN)
def test_a_text_of_the_validation_split_begins_with_a_sentence_and_ends_with_a_word(own, name):
    documents, before, after = OWN[own]
    tokenizer = MAKERS[name](documents)
    each = [[tokenizer.end_of_text, *tokenizer.encode(document)] for document in documents]
    [text] = examples_of(TextFiles(path=__file__), tokenizer, np.concatenate(each))
    found = re.compile(f"({before}){re.escape(text)}{after}", re.MULTILINE)
    assert found.search("\n".join(documents)), text
    assert len(tokenizer.encode(text)) in range(1 if own in ("rows", "code") else 12, 25)


BUILT_IN = {"sotu": [{}], "repeats": [{}, {"alphabet": 2}, {"alphabet": 47}]}
BUILT_IN |= {"names": [{}, {"names": 5}], "modular": [{}, {"prime": 3}]}


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_tokenizer_of_a_built_in_corpus_knows_its_examples(name):
    for keys in BUILT_IN[name]:
        built = corpus(name, **keys)
        tokenizer = char(texts(built)[0])
        assert examples_of(built, tokenizer, np.array([])) == [*built.examples] != []
    assert examples_of(TinyShakespeare(), byte([]), np.array([])) == [*TinyShakespeare.examples]
    assert examples_of(Sotu(), char(["My felowctizns"]), np.array([])) == ["My fellow citizens"]


def test_only_characters_that_need_several_tokens_are_reported(tmp_path):
    english, said = MAKERS["bpe"]([ENGLISH]), []
    assert splits_characters(english, CHINESE)
    for tokenizer in (MAKERS["bpe"]([CHINESE * 9]), char([CHINESE]), byte([])):
        assert not splits_characters(tokenizer, CHINESE)
    for text in ("", "\xe9", "\xe0 la carte", ENGLISH, "Unknown words: xylophone"):
        assert not splits_characters(english, text)
    path = write(tmp_path, {"chinese.txt": CHINESE * 9}) / "chinese.txt"
    for make in (lambda texts: english, MAKERS["char"]):
        prepare_store(TextFiles(path=str(path)), make, root=tmp_path / "s", say=said.append)
    assert len(said) == 1
    assert "tokenizer=char" in said[0]
