"""The laws of encoding: whatever happens in between, a store has the tokens of the text."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import numpy as np
import pytest
from corpora import jsonl, texts, write

from headscope.data import bpe as bpe_module
from headscope.data import encode
from headscope.data import tokenizer as tokenizers
from headscope.data.bpe import distinct, few_words, sample
from headscope.data.hub import Hub
from headscope.data.own_files import TextFiles
from headscope.data.store import LOCK, prepare_store
from headscope.errors import UserError

TEXT = "".join(f"Sentence {number}: it's one of many.\n\n" for number in range(20_000))
SPEECHES = [f"Speech {i % 9}: <|endoftext|> we'll été 中文🦜\n\n" * (1 + i) for i in range(12)]
bpe = partial(tokenizers.bpe, vocab_size=300)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Batches of 20 kB."""
    monkeypatch.setattr(encode, "BATCH", 20_000)
    monkeypatch.setattr("headscope.data.text_file.CHUNK_BYTES", 7_000)
    monkeypatch.setattr("headscope.data.corpus.pieces.__kwdefaults__", {"size": 5_000})


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


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("validation", [None, "train"])
def test_the_number_of_tokens_is_limited(tmp_path, streaming, validation):
    name = str(write(tmp_path / "set", {"train.jsonl": jsonl(LONG)}))
    options = {"name": name, "streaming": streaming, "validation_split": validation}
    store = prepare_store(Hub(**options, max_tokens=9_001), tokenizers.byte, root=tmp_path)
    assert (len(store.train), len(store.validation)) == (9_001, 1_000)
    unlimited = prepare_store(Hub(**options), tokenizers.byte, root=tmp_path)
    assert np.array_equal(store.train, unlimited.train[:9_001])
    assert np.array_equal(store.validation, unlimited.validation[:1_000])


def test_each_thread_encodes_with_its_own_copy_of_the_tokenizer():
    tokenizer = bpe([TEXT])
    own, both = encode.OwnTokenizer(tokenizer), Barrier(2)

    def copy_of_this_thread(number: int):
        both.wait(10)  # so that both threads take part
        return own.tokenizer

    with ThreadPoolExecutor(2) as pool:
        copies = [*pool.map(copy_of_this_thread, range(2))]
    cores = {each.encoding._core_bpe for each in (tokenizer, *copies)}
    assert len(cores) == 3


def test_equal_documents_in_both_splits_are_reported_or_removed(tmp_path):
    rows = jsonl([*LONG[:9], LONG[3], *LONG[9:18], LONG[18], LONG[12]])
    path = str(write(tmp_path, {"a.jsonl": rows}) / "a.jsonl")
    said: list[str] = []
    prepare = partial(prepare_store, make_tokenizer=tokenizers.byte, root=tmp_path / "data")
    prepare(TextFiles(path=path), say=said.append)
    assert [line for line in said if line.startswith("1 document(s) are in both splits")]

    said.clear()
    store = prepare(TextFiles(path=path, deduplicate=True), say=said.append)
    assert said == []
    starts = np.flatnonzero(store.train == store.tokenizer.end_of_text)
    assert [store.tokenizer.decode(part) for part in np.split(store.train, starts[1:])] == LONG[:18]
    assert store.tokenizer.decode(store.validation) == LONG[18]


@pytest.mark.parametrize("kind", ["one file", "rows", "unique rows", "limited"])
def test_an_evaluation_reads_the_validation_split_of_the_store(tmp_path, kind):
    write(tmp_path / "set", {"train.jsonl": jsonl([*LONG[:30], *LONG[9:12], *LONG[30:]])})
    write(tmp_path, {"a.txt": TEXT})
    corpus = {
        "one file": lambda: TextFiles(path=str(tmp_path / "a.txt")),
        "rows": lambda: TextFiles(path=str(tmp_path / "set")),
        "unique rows": lambda: TextFiles(path=str(tmp_path / "set"), deduplicate=True),
        "limited": lambda: Hub(name=str(tmp_path / "set"), max_tokens=9_001),
    }[kind]()
    store = prepare_store(corpus, tokenizers.byte, root=tmp_path / "data")
    tokens, text_bytes = encode.encode_validation(corpus, store.tokenizer)
    assert np.array_equal(tokens, store.validation)
    assert text_bytes == store.tokenizer.byte_lengths()[tokens].sum()
    assert store.text_per_token_byte == 1


def test_without_text_for_a_split_there_is_no_store(tmp_path):
    path = str(write(tmp_path, {"a.jsonl": jsonl(["the same"] * 3)}) / "a.jsonl")
    unique = TextFiles(path=path, deduplicate=True)
    with pytest.raises(UserError, match="no text for the validation split"):
        prepare_store(unique, tokenizers.byte, root=tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == [LOCK]


def test_the_sample_for_bpe_is_spread_over_the_text():
    numbers = [f"{number:9}" for number in range(1000)]
    kept = sample(numbers, 900)
    assert 450 <= sum(map(len, kept)) <= 900
    assert len(set(np.diff([int(text) for text in kept]))) == 1
    assert int(kept[-1]) > 900
    assert sample(numbers, 10**6) == [text.encode() for text in numbers]


def test_the_sample_for_bpe_has_few_different_words(monkeypatch):
    monkeypatch.setattr(bpe_module, "MAX_DISTINCT", 20_000)
    same = [b"few words " * 1000] * 100
    assert few_words(same) == same
    different = [b"%09d " % number * 10 for number in range(10_000)]
    kept = few_words(different)
    assert 10_000 < distinct(kept) <= 20_000
    assert kept[-1] > different[9_000]
    spaces = [b" \n" * 5 + b"\t" * number for number in range(1000)]
    assert len(few_words(spaces)) < 500
