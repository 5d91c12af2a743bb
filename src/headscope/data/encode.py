"""Encodes a corpus: its documents are read in batches, which are encoded on all cores."""

import copy
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headscope.data.bpe import byte_count
from headscope.data.corpus import HOLD_OUT, SPLITS, Corpus, Split
from headscope.data.machine import process_cores
from headscope.data.tokenizer import Tokenizer

BATCH = 2**20
"""Number of bytes of text that a thread encodes at a time."""

CHUNK = 2**24
"""Number of tokens that are checked or counted at a time, to limit memory use."""


@dataclass
class Batch:
    """Text to encode: pieces, each with its split and whether a document begins with it. `size` is
    its number of bytes."""

    pieces: list[tuple[Split, bool, str]] = field(default_factory=list)
    size: int = 0


Track = Callable[[Iterator[Batch], int | None], Generator[Batch, None, None]]
"""A function of (batches, size of all text in bytes) that yields the same batches and shows the
progress."""


def untracked(batches: Iterator[Batch], size: int | None) -> Generator[Batch, None, None]:
    """Shows no progress."""
    yield from batches


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text (n,), the indices at which documents begin, and the number of bytes of
    the text."""

    tokens: np.ndarray
    documents: list[int]
    text_bytes: int


@dataclass
class Count:
    """What one split has: at most `limit` tokens, its documents, the bytes of its text, and the
    digests of all its documents, also of those that were left out."""

    limit: float
    tokens: int = 0
    documents: int = 0
    text_bytes: int = 0
    digests: set[bytes] = field(default_factory=set)

    def take(self, encoded: Encoded, byte_lengths: np.ndarray) -> np.ndarray:
        """Counts the encoded text, and returns its tokens, as far as the limit allows. If only a
        part is taken and the tokenizer loses text, the number of bytes of this part is an estimate.
        `byte_lengths` (V,) are the bytes of each token in the vocabulary."""
        tokens, text_bytes = encoded.tokens, encoded.text_bytes
        if self.tokens + len(tokens) > self.limit:
            tokens = tokens[: int(self.limit) - self.tokens]
            kept, total = (int(byte_lengths[part].sum()) for part in (tokens, encoded.tokens))
            text_bytes = text_bytes * kept // max(1, total)
        self.tokens += len(tokens)
        self.documents += sum(start < len(tokens) for start in encoded.documents)
        self.text_bytes += text_bytes
        return tokens


def new_counts(corpus: Corpus) -> dict[Split, Count]:
    """Counts of nothing. The validation split gets at most a ninth of the tokens of the training
    split."""
    limit = corpus.max_tokens
    if limit is None:
        return {split: Count(float("inf")) for split in SPLITS}
    return {"train": Count(limit), "validation": Count(max(2, limit // (HOLD_OUT - 1)))}


def encode_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    counts: dict[Split, Count],
    *,
    splits: tuple[Split, ...] = SPLITS,
    track: Track = untracked,
) -> Generator[tuple[Split, np.ndarray], None, None]:
    """Yields the tokens of the given splits in parts (n,), in the order of the text, each with its
    split, and keeps `counts` up to date. Raises UserError if the text cannot be read."""
    byte_lengths = tokenizer.byte_lengths()
    threads = process_cores()
    own = OwnTokenizer(tokenizer)
    with (
        closing(track(read_batches(corpus, counts, splits), corpus.size())) as batches,
        ThreadPoolExecutor(threads) as pool,
    ):
        for encoded in in_order(
            pool, lambda batch: encode_batch(own.tokenizer, batch), batches, ahead=2 * threads
        ):
            for split, found in encoded.items():
                yield split, counts[split].take(found, byte_lengths)


def encode_validation(corpus: Corpus, tokenizer: Tokenizer) -> tuple[np.ndarray, int]:
    """The tokens of the validation split, as a token store has them, and the number of bytes of
    their text."""
    counts = new_counts(corpus)
    encoded = encode_corpus(corpus, tokenizer, counts, splits=("validation",))
    parts = [tokens for _, tokens in encoded]
    tokens = np.concatenate([np.empty(0, token_dtype(tokenizer.vocab_size)), *parts])
    return tokens, counts["validation"].text_bytes


def read_batches(
    corpus: Corpus, counts: dict[Split, Count], splits: tuple[Split, ...]
) -> Iterator[Batch]:
    """Reads the given splits of a corpus in batches, until `counts` have all tokens that they may.
    Documents are compared by their digests, in `counts`."""
    batch = Batch()
    compares = corpus.deduplicate or len(splits) == len(SPLITS)
    for document in corpus.documents(
        lambda split: split in splits and counts[split].tokens < counts[split].limit
    ):
        if compares and document.digest:
            digest = document.digest()
            is_new = not any(digest in count.digests for count in counts.values())
            counts[document.split].digests.add(digest)
            if corpus.deduplicate and not is_new:
                continue
        if document.split not in splits:
            continue
        begins = True
        for piece in document.pieces:
            batch.pieces.append((document.split, begins, piece))
            batch.size += byte_count(piece)
            begins = False
            if batch.size >= BATCH:
                yield batch
                batch = Batch()
        if begins:  # a document without text
            batch.pieces.append((document.split, True, ""))
    yield batch


class OwnTokenizer(threading.local):
    """`tokenizer` is a copy for each thread. Threads that share a `tiktoken.Encoding` wait for each
    other, which makes two threads about as slow as one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)


def encode_batch(tokenizer: Tokenizer, batch: Batch) -> dict[Split, Encoded]:
    """The tokens of a batch for each split. If the tokenizer has an end-of-text token, it comes
    before each document."""
    begin = [] if tokenizer.end_of_text is None else [np.array([tokenizer.end_of_text])]
    parts: dict[Split, list[np.ndarray]] = {}
    documents: dict[Split, list[int]] = {split: [] for split in SPLITS}
    lengths, text_bytes = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
    for split, begins, piece in batch.pieces:
        if begins:
            documents[split].append(lengths[split])
        found = [*(begin if begins else []), tokenizer.encode(piece)]
        parts.setdefault(split, []).extend(found)
        lengths[split] += sum(map(len, found))
        text_bytes[split] += byte_count(piece)
    dtype = token_dtype(tokenizer.vocab_size)
    return {
        split: Encoded(np.concatenate(found).astype(dtype), documents[split], text_bytes[split])
        for split, found in parts.items()
    }


def in_order(
    pool: ThreadPoolExecutor, function: Callable, items: Iterable, *, ahead: int
) -> Iterator[Any]:
    """Yields function(item) in the order of `items`. The pool works on up to `ahead` items at a
    time."""
    waiting: deque[Future] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    for result in waiting:
        yield result.result()


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def text_per_token_byte(text_bytes: int, tokens: np.ndarray, byte_lengths: np.ndarray) -> float:
    """The bytes of a text per byte of its tokens: 1 unless the tokenizer loses text. If the tokens
    have no bytes, 1. `byte_lengths` (V,) are the bytes of each token in the vocabulary."""
    starts = range(0, len(tokens), CHUNK)
    token_bytes = sum(int(byte_lengths[tokens[start : start + CHUNK]].sum()) for start in starts)
    return text_bytes / token_bytes if token_bytes else 1.0
