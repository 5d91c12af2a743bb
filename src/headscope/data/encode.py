"""Encodes a corpus into two files of tokens, on all cores. Continues after it was killed: the text
of finished shards is read again, but not encoded again.
"""

import copy
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headscope.data.bpe import byte_count
from headscope.data.corpus import Corpus, Wanted
from headscope.data.documents import Split
from headscope.data.duplicates import Duplicates
from headscope.data.machine import process_cores
from headscope.data.shards import (
    SPLITS,
    Counts,
    Encoded,
    Progress,
    ShardWriter,
    limits,
    token_dtype,
)
from headscope.data.tokenizer import Tokenizer
from headscope.stop import temporary_folder

BATCH = 2**20
"""Number of characters that a thread encodes at a time."""
SHARD = 32
"""Number of batches in a shard."""

Track = Callable[[Iterable["Batch"], int | None], Iterable["Batch"]]
"""A function of (batches, size of all text in bytes) that yields the same batches and shows the
progress."""


@dataclass
class Batch:
    """Text to encode: pieces, each with its split and whether a document begins with it. `size` is
    its number of bytes, also if the pieces were encoded before and left out."""

    pieces: list[tuple[Split, bool, str]] = field(default_factory=list)
    size: int = 0


def encode_corpus(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, track: Track
) -> tuple[Progress, int]:
    """Writes the tokens of a corpus to train.bin and validation.bin in `folder`, or completes them.
    Returns the progress at the end, and the number of documents that are in both splits.

    Raises UserError if the text cannot be read or the tokens cannot be written.
    """
    with ExitStack() as stack:
        duplicates = stack.enter_context(Duplicates(folder / "documents.sqlite"))
        writer = stack.enter_context(ShardWriter(folder, tokenizer, corpus.max_tokens))
        reader = Reader(corpus, duplicates, writer.wants, done=writer.progress.pieces)
        threads = process_cores()
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        batches = iter(track(reader.batches(), corpus.size()))
        stack.callback(getattr(batches, "close", lambda: None))  # ends a progress bar
        own = OwnTokenizer(tokenizer)
        encoded = in_order(
            pool, lambda batch: encode_batch(own.tokenizer, batch), batches, ahead=2 * threads
        )
        for number, (batch, tokens) in enumerate(encoded, start=1):
            writer.write(Counter(split for split, _, _ in batch.pieces), tokens)
            if number % SHARD == 0:
                writer.end_shard()
        writer.end_shard()
        return writer.progress, duplicates.in_both()


def encode_validation(corpus: Corpus, tokenizer: Tokenizer) -> tuple[np.ndarray, int]:
    """The tokens of the validation split, as `encode_corpus` would write them, and the number of
    bytes of their text."""
    limit = limits(corpus.max_tokens)["validation"]
    byte_lengths = tokenizer.byte_lengths()
    parts: list[np.ndarray] = []
    text_bytes = 0

    def wanted(split: Split) -> bool:
        return split == "validation" and sum(map(len, parts)) < limit

    with temporary_folder() as folder, Duplicates(folder / "documents.sqlite") as duplicates:
        for batch in Reader(corpus, duplicates, wanted, only="validation").batches():
            for encoded in encode_batch(tokenizer, batch).values():
                kept = encoded.first(limit - sum(map(len, parts)), byte_lengths)
                parts.append(kept.tokens)
                text_bytes += kept.text_bytes
    tokens = np.concatenate([np.empty(0, token_dtype(tokenizer.vocab_size)), *parts])
    return tokens, text_bytes


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
) -> Iterator[tuple[Any, Any]]:
    """Yields (item, function(item)) in the order of `items`. The pool works on up to `ahead` items
    at a time."""
    waiting: deque[tuple[Any, Future]] = deque()
    for item in items:
        waiting.append((item, pool.submit(function, item)))
        if len(waiting) >= ahead:
            first, result = waiting.popleft()
            yield first, result.result()
    for item, result in waiting:
        yield item, result.result()


class Reader:
    """Reads a corpus in batches, as far as text is `wanted`. Leaves out the pieces that are `done`,
    and the pieces of other splits than `only` if that is given."""

    def __init__(
        self,
        corpus: Corpus,
        duplicates: Duplicates,
        wanted: Wanted,
        *,
        done: Counts | None = None,
        only: Split | None = None,
    ) -> None:
        self.corpus = corpus
        self.duplicates = duplicates
        self.is_wanted = wanted
        self.done = dict(done or dict.fromkeys(SPLITS, 0))
        self.only = only
        self.read: Counts = dict.fromkeys(SPLITS, 0)

    def batches(self) -> Iterator[Batch]:
        batch = Batch()
        for document in self.corpus.documents(self.wanted):
            if document.digest and (self.corpus.deduplicate or self.only is None):
                is_new = self.duplicates.add(document.digest(), document.split)
                if self.corpus.deduplicate and not is_new:
                    continue
            if self.only not in (None, document.split):
                continue
            begins = True
            for piece in document.pieces:
                self.add(batch, document.split, begins, piece)
                begins = False
                if batch.size >= BATCH:
                    yield batch
                    batch = Batch()
            if begins:
                self.add(batch, document.split, True, "")
        yield batch

    def add(self, batch: Batch, split: Split, begins: bool, piece: str) -> None:
        self.read[split] += 1
        batch.size += byte_count(piece)
        if self.read[split] > self.done[split]:
            batch.pieces.append((split, begins, piece))

    def wanted(self, split: Split) -> bool:
        return self.read[split] < self.done[split] or self.is_wanted(split)
