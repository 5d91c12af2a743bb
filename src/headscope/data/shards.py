"""Writes the tokens of a text in shards.

After each shard, both files of tokens are flushed to disk, and the file progress.json says how far
they are. So a killed process loses at most one shard.
"""

import json
import math
import os
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headscope.data.documents import HOLD_OUT, Split
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.files import cannot_write, read_json, write_atomically

SPLITS: tuple[Split, ...] = ("train", "validation")
PROGRESS = "progress.json"

CHUNK = 2**24
"""Number of tokens that are checked at a time, to limit memory use."""

Counts = dict[Split, int]


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text (n,), the indices at which documents begin, and the number of bytes of
    the text."""

    tokens: np.ndarray
    documents: list[int]
    text_bytes: int

    def first(self, count: float, byte_lengths: np.ndarray) -> "Encoded":
        """The first `count` tokens. If the tokenizer loses text, the number of bytes of their text
        is an estimate. `byte_lengths` (V,) are the bytes of each token in the vocabulary."""
        if count >= len(self.tokens):
            return self
        kept = self.tokens[: int(max(0, count))]
        kept_bytes, token_bytes = (int(byte_lengths[part].sum()) for part in (kept, self.tokens))
        return Encoded(
            kept,
            [start for start in self.documents if start < len(kept)],
            self.text_bytes * kept_bytes // max(1, token_bytes),
        )


def text_per_token_byte(text_bytes: int, tokens: np.ndarray, byte_lengths: np.ndarray) -> float:
    """The bytes of a text per byte of its tokens: 1 unless the tokenizer loses text. If the tokens
    have no bytes, 1. `byte_lengths` (V,) are the bytes of each token in the vocabulary."""
    starts = range(0, len(tokens), CHUNK)
    token_bytes = sum(int(byte_lengths[tokens[start : start + CHUNK]].sum()) for start in starts)
    return text_bytes / token_bytes if token_bytes else 1.0


@dataclass
class Progress:
    """How far the files of tokens are. For each split: the number of encoded pieces, the number of
    documents, the number of bytes of the text, and the shards, each with its number of tokens and
    their CRC-32."""

    pieces: Counts = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    documents: Counts = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    text_bytes: Counts = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    shards: dict[Split, list[list[int]]] = field(
        default_factory=lambda: {split: [] for split in SPLITS}
    )

    def tokens(self, split: Split) -> int:
        return sum(tokens for tokens, _ in self.shards[split])


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def limits(max_tokens: int | None) -> dict[Split, float]:
    """The maximum number of tokens of each split. The validation split gets at most a ninth of the
    tokens of the training split."""
    if max_tokens is None:
        return dict.fromkeys(SPLITS, math.inf)
    return {"train": max_tokens, "validation": max(2, max_tokens // (HOLD_OUT - 1))}


class ShardWriter:
    """Appends tokens to the files of both splits, and keeps `progress` up to date.

    With `max_tokens`, the training split gets at most this number of tokens, and the validation
    split at most a ninth of it.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, max_tokens: int | None) -> None:
        self.folder = folder
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.limits = limits(max_tokens)
        self.progress = read_progress(folder, self.dtype)
        self.tokens: Counts = {split: self.progress.tokens(split) for split in SPLITS}
        self.checksums: Counts = dict.fromkeys(SPLITS, 0)
        self.pieces, self.documents = dict(self.progress.pieces), dict(self.progress.documents)
        self.text_bytes = dict(self.progress.text_bytes)
        self.byte_lengths = tokenizer.byte_lengths()
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

    def write(self, pieces: Counts, encoded: dict[Split, Encoded]) -> None:
        """Appends the tokens of each split, and counts the `pieces` that they were encoded from."""
        for split, count in pieces.items():
            self.pieces[split] += count
        for split, found in encoded.items():
            room = self.limits[split] - self.tokens[split]
            kept = found.first(room, self.byte_lengths)
            array = kept.tokens
            data = array.tobytes()
            try:
                self.files[split].write(data)
            except OSError as error:
                raise self._cannot_write(split, error) from error
            self.tokens[split] += len(array)
            self.documents[split] += len(kept.documents)
            self.text_bytes[split] += kept.text_bytes
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
        self.progress.text_bytes = dict(self.text_bytes)
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
        if found.keys() != asdict(Progress()).keys():
            raise ValueError
        every = (progress.pieces, progress.documents, progress.text_bytes)
        counts = [counts[split] for counts in every for split in SPLITS]
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
