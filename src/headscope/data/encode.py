"""Encodes a corpus into two files of tokens, on all cores. Continues after it was killed.

The tokens are written in shards. After each shard, both files are flushed to disk, and the file
progress.json says how far they are. A process that continues reads the text of the finished shards
again, but does not encode it again.
"""

import copy
import json
import math
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headscope.data.bpe import byte_count
from headscope.data.corpus import Corpus, Wanted
from headscope.data.documents import HOLD_OUT, Split
from headscope.data.duplicates import Duplicates
from headscope.data.machine import process_cores
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.files import cannot_write, read_json, write_atomically
from headscope.stop import temporary_folder

SPLITS: tuple[Split, ...] = ("train", "validation")
PROGRESS = "progress.json"

BATCH = 2**20
"""Number of characters that a thread encodes at a time."""
SHARD = 32
"""Number of batches in a shard."""

CHUNK = 2**24
"""Number of tokens that are checked at a time, to limit memory use."""

Counts = dict[Split, int]

Track = Callable[[Iterable["Batch"], int | None], Iterable["Batch"]]
"""A function of (batches, size of all text in bytes) that yields the same batches and shows the
progress."""


@dataclass
class Batch:
    """Text to encode: pieces, each with its split and whether a document begins with it. `size` is
    its number of bytes, also if the pieces were encoded before and left out."""

    pieces: list[tuple[Split, bool, str]] = field(default_factory=list)
    size: int = 0


@dataclass
class Progress:
    """How far the files of tokens are. For each split: the number of encoded pieces, the number of
    documents, and the shards, each with its number of tokens and their CRC-32."""

    pieces: Counts = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    documents: Counts = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    shards: dict[Split, list[list[int]]] = field(
        default_factory=lambda: {split: [] for split in SPLITS}
    )

    def tokens(self, split: Split) -> int:
        return sum(tokens for tokens, _ in self.shards[split])


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


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
            writer.write(batch, tokens)
            if number % SHARD == 0:
                writer.end_shard()
        writer.end_shard()
        return writer.progress, duplicates.in_both()


def encode_validation(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """The tokens of the validation split, as `encode_corpus` would write them."""
    limit = limits(corpus.max_tokens)["validation"]
    parts: list[np.ndarray] = []

    def wanted(split: Split) -> bool:
        return split == "validation" and sum(map(len, parts)) < limit

    with temporary_folder() as folder, Duplicates(folder / "documents.sqlite") as duplicates:
        for batch in Reader(corpus, duplicates, wanted, only="validation").batches():
            parts.extend(encode_batch(tokenizer, batch).values())
    tokens = np.concatenate([np.empty(0, token_dtype(tokenizer.vocab_size)), *parts])
    return tokens[: int(min(limit, len(tokens)))]


class OwnTokenizer(threading.local):
    """`tokenizer` is a copy for each thread. Threads that share a `tiktoken.Encoding` wait for each
    other, which makes two threads about as slow as one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)


def encode_batch(tokenizer: Tokenizer, batch: Batch) -> dict[Split, np.ndarray]:
    """The tokens of a batch for each split. An end-of-text token comes before each document."""
    parts: dict[Split, list[np.ndarray]] = {}
    for split, begins, piece in batch.pieces:
        found = parts.setdefault(split, [])
        if begins:
            found.append(np.array([tokenizer.end_of_text]))
        found.append(tokenizer.encode(piece))
    dtype = token_dtype(tokenizer.vocab_size)
    return {split: np.concatenate(found).astype(dtype) for split, found in parts.items()}


def limits(max_tokens: int | None) -> dict[Split, float]:
    """The maximum number of tokens of each split. The validation split gets at most a ninth of the
    tokens of the training split."""
    if max_tokens is None:
        return dict.fromkeys(SPLITS, math.inf)
    return {"train": max_tokens, "validation": max(2, max_tokens // (HOLD_OUT - 1))}


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


class ShardWriter:
    """Appends tokens to the files of both splits, and keeps `progress` up to date.

    With `max_tokens`, the training split gets at most this number of tokens, and the validation
    split at most a ninth of it.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, max_tokens: int | None) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.limits = limits(max_tokens)
        self.progress = read_progress(folder, self.dtype)
        self.tokens: Counts = {split: self.progress.tokens(split) for split in SPLITS}
        self.checksums: Counts = dict.fromkeys(SPLITS, 0)
        self.pieces, self.documents = dict(self.progress.pieces), dict(self.progress.documents)
        self.files: dict[Split, BinaryIO] = {}

    def __enter__(self) -> "ShardWriter":
        for split, tokens in self.tokens.items():
            file = self.folder / f"{split}.bin"
            file.touch()
            self.files[split] = file.open("r+b")
            self.files[split].truncate(tokens * self.dtype().itemsize)
            self.files[split].seek(0, os.SEEK_END)
        return self

    def __exit__(self, *error: object) -> None:
        for file in self.files.values():
            file.close()

    def wants(self, split: Split) -> bool:
        return self.tokens[split] < self.limits[split]

    def write(self, batch: Batch, tokens: dict[Split, np.ndarray]) -> None:
        for split, _, _ in batch.pieces:
            self.pieces[split] += 1
        for split, array in tokens.items():
            room = max(0, self.limits[split] - self.tokens[split])
            array = array[: int(min(room, len(array)))]
            data = array.tobytes()
            try:
                self.files[split].write(data)
            except OSError as error:
                raise self._cannot_write(split, error) from error
            self.tokens[split] += len(array)
            self.documents[split] += int(np.count_nonzero(array == self.tokenizer.end_of_text))
            self.checksums[split] = zlib.crc32(data, self.checksums[split])

    def end_shard(self) -> None:
        """Flushes the files to disk, and writes progress.json."""
        for split, file in self.files.items():
            try:
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                raise self._cannot_write(split, error) from error
            new = self.tokens[split] - self.progress.tokens(split)
            if new:
                self.progress.shards[split].append([new, self.checksums[split]])
                self.checksums[split] = 0
        self.progress.pieces, self.progress.documents = dict(self.pieces), dict(self.documents)
        write_atomically(self.folder / PROGRESS, json.dumps(asdict(self.progress)))

    def _cannot_write(self, split: Split, error: OSError) -> UserError:
        size = self.tokens[split] * self.dtype().itemsize
        return UserError(cannot_write(self.folder / f"{split}.bin", error, size=size))


def read_progress(folder: Path, dtype: type[np.unsignedinteger]) -> Progress:
    """The progress of an earlier process in `folder`, if its files have what it says. Otherwise a
    new one."""
    found = read_json(folder / PROGRESS)
    try:
        progress = Progress(**found)
        counts = [
            counts[split] for counts in (progress.pieces, progress.documents) for split in SPLITS
        ]
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError
        for split in SPLITS:
            file = folder / f"{split}.bin"
            tokens = np.memmap(file, dtype, "r") if file.stat().st_size else np.empty(0, dtype)
            stored = progress.shards[split]
            total = sum(count for count, _ in stored)
            if file.is_symlink() or total > len(tokens):
                raise ValueError
            check_shards(tokens[:total], stored)
    except (TypeError, KeyError, ValueError, OSError):
        return Progress()
    return progress


def check_shards(tokens: np.ndarray, shards: Any) -> None:
    """Raises ValueError unless `shards` has the number of tokens and the CRC-32 of each shard."""
    start = 0
    for shard in shards if isinstance(shards, list) else []:
        match shard:
            case [int(count), int(checksum)] if 0 < count <= len(tokens) - start:
                end, found = start + count, 0
            case _:
                break
        for first in range(start, end, CHUNK):
            found = zlib.crc32(tokens[first : min(first + CHUNK, end)].data, found)
        if found != checksum:
            raise ValueError("the checksum of a shard differs")
        start = end
    if start != len(tokens):
        raise ValueError("the shards do not have all tokens")
