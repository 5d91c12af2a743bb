"""Encodes a corpus: its documents are read in batches, which are encoded on all cores."""

import copy
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from headscope.data.corpus import HOLD_OUT, SPLITS, Corpus, Split
from headscope.data.machine import process_cores
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.nn.loss import Answers

BATCH = 2**20
"""Number of bytes of text that a thread encodes at a time."""


@dataclass
class TextBatch:
    """Text of one split to encode: pieces, each with whether a document begins with it. `size` is
    its number of bytes."""

    split: Split
    pieces: list[tuple[bool, str]] = field(default_factory=list)
    size: int = 0


Track = Callable[[Iterator[TextBatch], int | None], Generator[TextBatch, None, None]]
"""A function of (batches, size of all text in bytes) that yields the same batches and shows the
progress."""


@dataclass
class Count:
    """What one split has: at most `limit` tokens, the bytes of their text, the bytes of the tokens
    themselves (only in validation), and how often it has each document, by its digest, also if it
    was left out."""

    limit: float
    tokens: int = 0
    text_bytes: int = 0
    token_bytes: int = 0
    digests: Counter[bytes] = field(default_factory=Counter)

    @property
    def text_per_token_byte(self) -> float:
        """The bytes of the text per byte of its tokens: 1 unless the tokenizer loses text. If the
        tokens have no bytes, 1."""
        return self.text_bytes / self.token_bytes if self.token_bytes else 1.0

    def take(self, tokens: np.ndarray, text_bytes: int, byte_lengths: np.ndarray) -> np.ndarray:
        """Counts the tokens of a text of `text_bytes`, as far as the limit allows, and returns
        them. If only a part is taken and the tokenizer loses text, the number of bytes of this part
        is an estimate. `byte_lengths` (V,) are the bytes of each token in the vocabulary."""
        taken = tokens[: int(min(len(tokens), self.limit - self.tokens))]
        if len(taken) < len(tokens):
            kept, total = (int(byte_lengths[part].sum()) for part in (taken, tokens))
            text_bytes = text_bytes * kept // max(1, total)
        self.tokens += len(taken)
        self.text_bytes += text_bytes
        return taken


class EncodedCorpus:
    """The given splits of a corpus as tokens, and `counts` of what each split has. If the number of
    tokens is limited, the validation split gets at most a ninth of the tokens of the training
    split."""

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, splits: tuple[Split, ...] = SPLITS
    ) -> None:
        self.corpus, self.tokenizer, self.splits = corpus, tokenizer, splits
        limit, ninth = math.inf, math.inf
        if corpus.max_tokens is not None:
            limit, ninth = corpus.max_tokens, max(2, corpus.max_tokens // (HOLD_OUT - 1))
        self.counts: dict[Split, Count] = {"train": Count(limit), "validation": Count(ninth)}

    def parts(self, track: Track | None = None) -> Generator[tuple[Split, np.ndarray], None, None]:
        """Yields the tokens in parts (n,), in the order of the text, each with its split, and
        counts them. Raises UserError if the text cannot be read."""
        byte_lengths = self.tokenizer.byte_lengths()
        own = OwnTokenizer(self.tokenizer)
        batches = self._batches()
        if track:
            batches = track(batches, self.corpus.size())
        with closing(batches), ThreadPoolExecutor(process_cores()) as pool:
            for batch, tokens in encode_batches(pool, own, batches, ahead=2 * process_cores()):
                count = self.counts[batch.split]
                taken = count.take(tokens, batch.size, byte_lengths)
                if batch.split == "validation":  # for the training split, this would take long
                    count.token_bytes += int(byte_lengths[taken].sum())
                yield batch.split, taken

    def in_both_splits(self) -> int:
        """The number of validation documents that are also in the training split."""
        train, validation = (self.counts[split].digests for split in SPLITS)
        return sum(count for digest, count in validation.items() if digest in train)

    def _wants(self, split: Split) -> bool:
        return split in self.splits and self.counts[split].tokens < self.counts[split].limit

    def _batches(self) -> Generator[TextBatch, None, None]:
        """Reads the text in batches, until all tokens are counted that may be."""
        batches = {split: TextBatch(split) for split in self.splits}
        compares = self.corpus.deduplicate or self.splits == SPLITS
        for document in self.corpus.documents(self._wants):
            split = document.split
            if compares and document.digest:
                digest = document.digest()
                is_new = not any(digest in count.digests for count in self.counts.values())
                self.counts[split].digests[digest] += 1
                if self.corpus.deduplicate and not is_new:
                    continue
            if split not in batches:
                continue
            begins = True
            for piece in document.pieces:
                batches[split].pieces.append((begins, piece))
                batches[split].size += len(piece) if piece.isascii() else len(piece.encode())
                begins = False
                if batches[split].size >= BATCH:
                    yield batches[split]
                    batches[split] = TextBatch(split)
            if begins:  # a document without text
                batches[split].pieces.append((True, ""))
        yield from batches.values()


class OwnTokenizer(threading.local):
    """A copy of a tokenizer for each thread. Threads that share a `tiktoken.Encoding` wait for each
    other, which makes two threads about as slow as one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)

    def encode(self, batch: TextBatch) -> np.ndarray:
        """The tokens of a batch (n,). If the tokenizer has an end-of-text token, it comes before
        each document."""
        end_of_text = self.tokenizer.end_of_text
        dtype = token_dtype(self.tokenizer.vocab_size)
        parts = [np.empty(0, dtype)]
        for begins, piece in batch.pieces:
            if begins and end_of_text is not None:
                parts.append(np.array([end_of_text], dtype))
            parts.append(tokens := self.tokenizer.encode(piece))
            if len(tokens) and (largest := np.max(tokens)) >= self.tokenizer.vocab_size:
                name, size = type(self.tokenizer).__name__, self.tokenizer.vocab_size
                raise UserError(
                    f"{name} gives the token {largest}, but its vocab_size is {size}: correct it"
                )
        return np.concatenate(parts, dtype=dtype, casting="same_kind")


def encode_batches(
    pool: ThreadPoolExecutor, own: OwnTokenizer, batches: Iterator[TextBatch], *, ahead: int
) -> Iterator[tuple[TextBatch, np.ndarray]]:
    """Yields each batch with its tokens, in order. The pool works on up to `ahead` batches at a
    time."""
    waiting: deque[tuple[TextBatch, Future[np.ndarray]]] = deque()
    for batch in batches:
        waiting.append((batch, pool.submit(own.encode, batch)))
        if len(waiting) >= ahead:
            first, tokens = waiting.popleft()
            yield first, tokens.result()
    for batch, tokens in waiting:
        yield batch, tokens.result()


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def answers_of(corpus: Corpus, tokenizer: Tokenizer) -> Answers | None:
    """The tokens of `corpus.answer_after`. Raises UserError if it is not one token, or if no token
    begins a document."""
    after = corpus.answer_after
    if after is None:
        return None
    tokens = tokenizer.encode(after).tolist()
    if len(tokens) != 1 or tokenizer.end_of_text is None:
        raise UserError(
            f"data={corpus.name} needs a tokenizer in which {after!r} is one token, and which has "
            "an end-of-text token: choose tokenizer=char"
        )
    return Answers(after=tokens[0], begin=tokenizer.end_of_text)
