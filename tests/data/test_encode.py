"""The laws of encoding: whatever happens in between, a store has the tokens of the text, and bits
per byte count the bytes of the text, also with a tokenizer that loses text."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import configuration, content
from corpora import jsonl, texts, write
from hf_tokenizers import CHINESE, imported

from headscope.data import encode
from headscope.data import tokenizer as tokenizers
from headscope.data.bpe import sample
from headscope.data.encode import validation_text
from headscope.data.hub import Hub
from headscope.data.own_files import TextFiles
from headscope.data.store import open_store, prepare_store
from headscope.data.tokenizer import CharTokenizer
from headscope.data.tokenizer_state import stored
from headscope.errors import UserError
from headscope.trained.evaluation import evaluate

TEXT = "".join(f"Sentence {number}: it's one of many.\n\n" for number in range(3_000))
SPEECHES = [f"Speech {i % 9}: <|endoftext|> we'll été 中文🦜\n\n" * (1 + i) for i in range(12)]
bpe = partial(tokenizers.bpe, vocab_size=300)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Batches of 5 kB."""
    monkeypatch.setattr(encode, "BATCH", 5_000)
    monkeypatch.setattr("headscope.data.text_file.CHUNK_BYTES", 7_000)
    monkeypatch.setattr("headscope.data.corpus.pieces.__kwdefaults__", {"size": 2_000})


@pytest.mark.parametrize("make", [bpe, tokenizers.char, tokenizers.byte, tokenizers.gpt2])
@pytest.mark.parametrize("documents", [[TEXT], [*SPEECHES, TEXT]])
def test_a_store_has_the_tokens_of_the_text_after_an_end_of_text(tmp_path, make, documents):
    files = {f"{number:02}.txt": text for number, text in enumerate(documents)}
    corpus = TextFiles(path=str(write(tmp_path / "text", files)))
    store = prepare_store(corpus, make, root=tmp_path / "data")
    train, validation = texts(corpus)
    assert store.tokenizer.state() == make(train).state()
    for tokens, split in ((store.train, train), (store.validation, validation)):
        encoded = [[store.tokenizer.end_of_text, *store.tokenizer.encode(text)] for text in split]
        assert tokens.tolist() == [token for document in encoded for token in document]
        assert store.tokenizer.decode(tokens) == "".join(split)  # `char` knows every character


LONG = [f"Document {number}. " * 40 for number in range(200)]


@pytest.mark.parametrize(("streaming", "split"), [(False, None), (True, None), (True, "train")])
def test_the_number_of_tokens_is_limited(tmp_path, streaming, split):
    name = str(write(tmp_path / "set", {"train.jsonl": jsonl(LONG)}))
    options = {"name": name, "streaming": streaming, "validation_split": split}
    store = prepare_store(Hub(**options, max_tokens=9_001), tokenizers.byte, root=tmp_path)
    assert (len(store.train), len(store.validation)) == (9_001, 1_000)
    unlimited = prepare_store(Hub(**options), tokenizers.byte, root=tmp_path)
    assert np.array_equal(store.train, unlimited.train[:9_001])
    assert np.array_equal(store.validation, unlimited.validation[:1_000])


def test_equal_documents_in_both_splits_are_reported_or_removed(tmp_path):
    rows = jsonl([*LONG[:9], LONG[3], *LONG[9:18], LONG[3], *LONG[:9], LONG[18]])
    path = str(write(tmp_path, {"a.jsonl": rows}) / "a.jsonl")
    said: list[str] = []
    options = {"make_tokenizer": tokenizers.byte, "root": tmp_path / "data", "say": said.append}
    prepare_store(TextFiles(path=path), **options)
    assert len(said) == 1
    assert "validation documents that are also in the training split: 2;" in said[0]
    store = prepare_store(TextFiles(path=path, deduplicate=True), **options)
    assert len(said) == 1
    starts = np.flatnonzero(store.train == store.tokenizer.end_of_text)
    assert [store.tokenizer.decode(part) for part in np.split(store.train, starts[1:])] == LONG[:18]
    assert store.tokenizer.decode(store.validation) == LONG[18]


def test_the_sample_for_bpe_is_spread_over_the_text():
    numbers = [f"{number:9}" for number in range(1000)]
    kept = sample(numbers, 900)
    assert 450 <= sum(map(len, kept)) <= 900
    assert len(set(np.diff([int(text) for text in kept]))) == 1
    assert int(kept[-1]) > 900
    assert sample(numbers, 10**6) == [text.encode() for text in numbers]


SENTENCE = f"{CHINESE}  Look   BACK, Élan!\n\n"
DOCUMENTS = [f"{number} {SENTENCE * (1 + number % 7)}" for number in range(40)]
VALIDATION = "".join(DOCUMENTS[9::10])
ALPHABET = "".join(sorted(set("".join(DOCUMENTS))))
TOKENIZERS = {
    "byte": tokenizers.byte([]),
    "word_piece": imported("word_piece"),
    "char that knows few": CharTokenizer("".join(sorted(set("Look BACK, lan!\n")))),
    "char without special tokens": CharTokenizer(ALPHABET, special_tokens=False),
}
FILES = {
    "rows/a.jsonl": jsonl(DOCUMENTS),
    "repeated/a.jsonl": jsonl([*DOCUMENTS[:30], *DOCUMENTS[9:12], *DOCUMENTS[30:]]),
    "splits/train.jsonl": jsonl(DOCUMENTS),
    "splits/test.jsonl": jsonl([2 * text for text in DOCUMENTS] + DOCUMENTS[:30]),
    "text/a.txt": "".join(DOCUMENTS),
}
CORPORA = {
    "rows": partial(TextFiles, path="rows"),
    "unique rows": partial(TextFiles, path="repeated", deduplicate=True),
    "limited": partial(Hub, name="rows", max_tokens=901),
    "one file": partial(TextFiles, path="text"),
    "both splits": partial(Hub, name="splits", validation_split="test"),
    "unique in both": partial(
        Hub, name="splits", validation_split="train[:6]+test", deduplicate=True
    ),
    "unique and limited": partial(  # the training text ends before document 30
        Hub,
        name="splits",
        validation_split="train[:3]+train[30:]",
        deduplicate=True,
        max_tokens=901,
    ),
}


@pytest.mark.parametrize("kind", CORPORA)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_store_and_an_evaluation_have_the_same_tokens_and_bytes_of_the_text(
    tmp_path, monkeypatch, kind, name
):
    monkeypatch.chdir(tmp_path)
    for path, text in FILES.items():
        write(Path(path).parent, {Path(path).name: text})
    tokenizer, corpus = TOKENIZERS[name], CORPORA[kind]()
    store = prepare_store(corpus, partial(stored, None, state=tokenizer.state()), root=Path("data"))
    found = validation_text(corpus, tokenizer)
    assert np.array_equal(found.tokens, store.validation)
    ratio = found.text_per_token_byte
    assert ratio == store.text_per_token_byte == open_store(store.folder).text_per_token_byte
    assert (ratio == 1) == (name in ("byte", "char without special tokens"))  # no text is lost
    if "limited" in kind:
        assert len(found.tokens) == 100
    elif kind == "rows":
        size = len(VALIDATION.encode())
        assert tokenizer.byte_lengths()[found.tokens].sum() * ratio == pytest.approx(size)
        _, model = content(configuration(), tokenizer)
        result = evaluate(model, found, batch_size=4)
        if tokenizer.end_of_text is not None:  # the first token, not predicted, has no bytes
            assert result["bytes"] == size
        nats = result["loss_nats_per_token"] * result["tokens"]
        assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / result["bytes"])


class TooManyTokens(CharTokenizer):
    """Its vocabulary is smaller than it says."""

    def encode(self, text):
        return super().encode(text) + self.vocab_size


def test_a_tokenizer_that_gives_tokens_above_its_vocab_size_is_refused_by_name(tmp_path):
    corpus = TextFiles(path=str(write(tmp_path / "texts", {"a.txt": "some text " * 50})))
    with pytest.raises(UserError, match=r"TooManyTokens.*vocab_size"):
        prepare_store(corpus, lambda texts: TooManyTokens(" emostx"), root=tmp_path / "data")
    assert not [*(tmp_path / "data").glob("text-*")]
