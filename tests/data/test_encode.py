"""The laws of encoding: whatever happens in between, a store has the tokens of the text."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from headscope.data import bpe as bpe_module
from headscope.data import encode
from headscope.data import tokenizer as tokenizers
from headscope.data.bpe import distinct, few_words, sample
from headscope.data.hub import Hub
from headscope.data.own_files import TextFiles
from headscope.data.preparing import LOCK, prepare_store
from headscope.errors import UserError

TEXT = "".join(f"Sentence {number}: it's one of many.\n\n" for number in range(20_000))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Batches of 20 kB."""
    monkeypatch.setattr(encode, "BATCH", 20_000)
    monkeypatch.setattr("headscope.data.text_file.CHUNK_BYTES", 7_000)
    monkeypatch.setattr("headscope.data.corpus.pieces.__kwdefaults__", {"size": 5_000})


@pytest.fixture
def corpus(tmp_path) -> TextFiles:
    (tmp_path / "a.txt").write_text(TEXT)
    return TextFiles(path=str(tmp_path / "a.txt"))


def bpe(texts):
    return tokenizers.bpe(texts, vocab_size=300)


def whole(text: str, tokenizer) -> np.ndarray:
    return np.concatenate([[tokenizer.end_of_text], tokenizer.encode(text)])


@pytest.mark.parametrize("make", [bpe, tokenizers.char, tokenizers.byte])
def test_a_store_has_the_tokens_of_the_whole_text(corpus, tmp_path, make):
    store = prepare_store(corpus, make, root=tmp_path / "data")
    cut = len(TEXT) * 9 // 10
    assert np.array_equal(store.train, whole(TEXT[:cut], store.tokenizer))
    assert np.array_equal(store.validation, whole(TEXT[cut:], store.tokenizer))


def rows(folder: Path, texts) -> Path:
    folder.mkdir(exist_ok=True)
    lines = (json.dumps({"text": text}) for text in texts)
    (folder / "train.jsonl").write_text("\n".join(lines))
    return folder


LONG = [f"Document {number}. " * 40 for number in range(200)]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("validation", [None, "train"])
def test_the_number_of_tokens_is_limited(tmp_path, streaming, validation):
    folder = rows(tmp_path / "set", LONG)
    limited = Hub(
        name=str(folder), streaming=streaming, validation_split=validation, max_tokens=9_001
    )
    store = prepare_store(limited, tokenizers.byte, root=tmp_path / "limited")
    assert (len(store.train), len(store.validation)) == (9_001, 1_000)
    everything = Hub(name=str(folder), validation_split=validation)
    unlimited = prepare_store(everything, tokenizers.byte, root=tmp_path / "all")
    assert np.array_equal(store.train, unlimited.train[:9_001])
    assert np.array_equal(store.validation, unlimited.validation[:1_000])


def test_each_thread_encodes_with_its_own_copy_of_the_tokenizer():
    tokenizer = bpe([TEXT])
    own = encode.OwnTokenizer(tokenizer)
    both = Barrier(2)

    def encoded(text: str):
        both.wait(10)  # so that both threads take part
        return own.tokenizer, own.tokenizer.encode(text)

    with ThreadPoolExecutor(2) as pool:
        (one, first), (other, second) = pool.map(encoded, [TEXT, TEXT])
    assert len({id(each.encoding._core_bpe) for each in (tokenizer, one, other)}) == 3
    assert np.array_equal(first, second)
    assert np.array_equal(first, tokenizer.encode(TEXT))


def test_equal_documents_in_both_splits_are_reported_or_removed(tmp_path):
    texts = [*LONG[:9], LONG[3], *LONG[9:18], LONG[18], LONG[12]]
    corpus = {"path": str(rows(tmp_path / "set", texts) / "train.jsonl")}
    said: list[str] = []
    prepare_store(TextFiles(**corpus), tokenizers.byte, root=tmp_path / "data", say=said.append)
    assert [line for line in said if line.startswith("1 document(s) are in both splits")]

    unique = TextFiles(**corpus, deduplicate=True)
    said.clear()
    store = prepare_store(unique, tokenizers.byte, root=tmp_path / "data", say=said.append)
    assert said == []
    starts = np.flatnonzero(store.train == store.tokenizer.end_of_text)
    found = [store.tokenizer.decode(part[1:]) for part in np.split(store.train, starts[1:])]
    assert found == LONG[:18]
    assert store.tokenizer.decode(store.validation) == LONG[18]


@pytest.mark.parametrize("kind", ["one file", "rows", "unique rows", "limited"])
def test_an_evaluation_reads_the_validation_split_of_the_store(corpus, tmp_path, kind):
    file = rows(tmp_path / "set", [*LONG[:30], *LONG[9:12], *LONG[30:]]) / "train.jsonl"
    read = {
        "one file": corpus,
        "rows": TextFiles(path=str(file)),
        "unique rows": TextFiles(path=str(file), deduplicate=True),
        "limited": Hub(name=str(file.parent), max_tokens=9_001),
    }[kind]
    store = prepare_store(read, tokenizers.byte, root=tmp_path / "data")
    tokens, text_bytes = encode.encode_validation(read, store.tokenizer)
    assert np.array_equal(tokens, store.validation)
    assert text_bytes == store.tokenizer.byte_lengths()[tokens].sum()
    assert store.text_per_token_byte == 1


def test_without_text_for_a_split_there_is_no_store(tmp_path):
    path = str(rows(tmp_path / "set", ["the same"] * 3) / "train.jsonl")
    unique = TextFiles(path=path, deduplicate=True)
    with pytest.raises(UserError, match="no text for the validation split"):
        prepare_store(unique, tokenizers.byte, root=tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == [LOCK]


def test_the_sample_for_bpe_is_spread_over_the_text():
    texts = [f"{number:9}" for number in range(1000)]
    kept = sample(texts, 900)
    assert 450 <= sum(map(len, kept)) <= 900
    steps = np.diff([int(text) for text in kept])
    assert len(set(steps.tolist())) == 1
    assert int(kept[-1]) > 900
    assert sample(texts, 10**6) == [text.encode() for text in texts]


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
