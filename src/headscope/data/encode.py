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

CHUNK = 2**24
"""Number of tokens that are checked or counted at a time, to limit memory use."""


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
    """What one split has: at most `limit` tokens, the bytes of their text, and how often it has
    each document, by its digest, also if it was left out."""

    limit: float
    tokens: int = 0
    text_bytes: int = 0
    digests: Counter[bytes] = field(default_factory=Counter)

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


def new_counts(corpus: Corpus) -> dict[Split, Count]:
    """Counts of nothing. If the number of tokens is limited, the validation split gets at most a
    ninth of the tokens of the training split."""
    limit = corpus.max_tokens
    limits = (math.inf, math.inf) if limit is None else (limit, max(2, limit // (HOLD_OUT - 1)))
    return {split: Count(limit) for split, limit in zip(SPLITS, limits, strict=True)}


def encode_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    counts: dict[Split, Count],
    *,
    splits: tuple[Split, ...] = SPLITS,
    track: Track | None = None,
) -> Generator[tuple[Split, np.ndarray], None, None]:
    """Yields the tokens of the given splits in parts (n,), in the order of the text, each with its
    split, and keeps `counts` up to date. Raises UserError if the text cannot be read."""
    byte_lengths = tokenizer.byte_lengths()
    own = OwnTokenizer(tokenizer)
    batches = read_batches(corpus, counts, splits)
    if track:
        batches = track(batches, corpus.size())
    with closing(batches), ThreadPoolExecutor(process_cores()) as pool:
        for batch, tokens in encode_batches(pool, own, batches, ahead=2 * process_cores()):
            yield batch.split, counts[batch.split].take(tokens, batch.size, byte_lengths)


def encode_validation(corpus: Corpus, tokenizer: Tokenizer) -> tuple[np.ndarray, int]:
    """The tokens of the validation split, as a token store has them, and the number of bytes of
    their text."""
    counts = new_counts(corpus)
    encoded = encode_corpus(corpus, tokenizer, counts, splits=("validation",))
    parts = [tokens for _, tokens in encoded]
    return np.concatenate(parts), counts["validation"].text_bytes


def read_batches(
    corpus: Corpus, counts: dict[Split, Count], splits: tuple[Split, ...]
) -> Generator[TextBatch, None, None]:
    """Reads the given splits of a corpus in batches, until `counts` have all tokens that they may.
    Documents are compared by their digests, in `counts`."""
    batches = {split: TextBatch(split) for split in splits}
    compares = corpus.deduplicate or splits == SPLITS
    for document in corpus.documents(
        lambda split: split in splits and counts[split].tokens < counts[split].limit
    ):
        split = document.split
        if compares and document.digest:
            digest = document.digest()
            is_new = not any(digest in count.digests for count in counts.values())
            counts[split].digests[digest] += 1
            if corpus.deduplicate and not is_new:
                continue
        if split not in splits:
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
    """`tokenizer` is a copy for each thread. Threads that share a `tiktoken.Encoding` wait for each
    other, which makes two threads about as slow as one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)


def encode_batches(
    pool: ThreadPoolExecutor, own: OwnTokenizer, batches: Iterator[TextBatch], *, ahead: int
) -> Iterator[tuple[TextBatch, np.ndarray]]:
    """Yields each batch with its tokens, in order. The pool works on up to `ahead` batches at a
    time."""
    waiting: deque[tuple[TextBatch, Future[np.ndarray]]] = deque()
    for batch in batches:
        waiting.append((batch, pool.submit(encode_batch, own, batch)))
        if len(waiting) >= ahead:
            first, tokens = waiting.popleft()
            yield first, tokens.result()
    for batch, tokens in waiting:
        yield batch, tokens.result()


def encode_batch(own: OwnTokenizer, batch: TextBatch) -> np.ndarray:
    """The tokens of a batch (n,). If the tokenizer has an end-of-text token, it comes before each
    document."""
    tokenizer = own.tokenizer
    dtype = token_dtype(tokenizer.vocab_size)
    parts = [np.empty(0, dtype)]
    for begins, piece in batch.pieces:
        if begins and tokenizer.end_of_text is not None:
            parts.append(np.array([tokenizer.end_of_text], dtype))
        parts.append(tokenizer.encode(piece))
    return np.concatenate(parts, dtype=dtype, casting="same_kind")


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


def text_per_token_byte(text_bytes: int, tokens: np.ndarray, byte_lengths: np.ndarray) -> float:
    """The bytes of a text per byte of its tokens: 1 unless the tokenizer loses text. If the tokens
    have no bytes, 1. `byte_lengths` (V,) are the bytes of each token in the vocabulary."""
    starts = range(0, len(tokens), CHUNK)
    token_bytes = sum(int(byte_lengths[tokens[start : start + CHUNK]].sum()) for start in starts)
    return text_bytes / token_bytes if token_bytes else 1.0
