"""Encodes a corpus: reads its documents in batches, and encodes the batches on all cores."""

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
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.machine import process_cores
from headscope.nn.loss import Answers

BATCH = 2**20
"""Minimum number of bytes of text that a thread encodes at a time, except for the last batch."""


@dataclass
class TextBatch:
    """Text of one split: `pieces`, with None where a document begins, and their bytes."""

    split: Split
    pieces: list[str | None] = field(default_factory=list)
    size: int = 0


Track = Callable[[Iterator[TextBatch], int | None], Generator[TextBatch, None, None]]
"""Shows the progress: gets the batches and the size of all text in bytes, and yields them."""


@dataclass
class Count:
    """Counts what one split contains.

    - `tokens`: the number of its tokens, at most `limit`.
    - `text_bytes`: the number of bytes of the text that was encoded to these tokens.
    - `token_bytes`: the number of bytes that these tokens stand for, counted only in validation.
    - `digests`: how often each document occurs, by its digest. Duplicates that are left out count.
    """

    limit: float
    tokens: int = 0
    text_bytes: int = 0
    token_bytes: int = 0
    digests: Counter[bytes] = field(default_factory=Counter)

    @property
    def text_per_token_byte(self) -> float:
        """Bytes of text per byte of its tokens: 1 unless the tokenizer loses text."""
        return self.text_bytes / self.token_bytes if self.token_bytes else 1.0

    def take(self, tokens: np.ndarray, text_bytes: int, byte_lengths: np.ndarray) -> np.ndarray:
        """Returns the first of these tokens, as many as the limit allows, and counts them. All
        `tokens` together encode a text of `text_bytes`. If not all are taken, the size of their
        text is computed from `byte_lengths` (V,), the bytes of each token of the vocabulary. This
        is an estimate if the tokenizer loses text."""
        taken = tokens[: int(min(len(tokens), self.limit - self.tokens))]
        if len(taken) < len(tokens):
            kept, total = (int(byte_lengths[counted].sum()) for counted in (taken, tokens))
            text_bytes = text_bytes * kept // max(1, total)
        self.tokens += len(taken)
        self.text_bytes += text_bytes
        return taken


class EncodedCorpus:
    """Encodes at least `splits` of a corpus. `counts` has a `Count` of each split, which
    `token_arrays` fills. If the corpus has `max_tokens`, this is the limit of the training split,
    and the validation split gets at most a ninth of it.

    With `deduplicate`, the training documents decide which validation documents are kept. So they
    are always read. With `max_tokens`, their tokens decide where they end, so both splits are
    encoded, whatever `splits` are.
    """

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, splits: tuple[Split, ...] = SPLITS
    ) -> None:
        self.corpus, self.tokenizer, self.splits = corpus, tokenizer, splits
        self.ahead = 2 * process_cores()
        limit, ninth = math.inf, math.inf
        if corpus.max_tokens is not None:
            if corpus.deduplicate:
                # One batch at a time: otherwise, the cores decide how many documents are read.
                self.splits, self.ahead = SPLITS, 1
            limit, ninth = corpus.max_tokens, max(2, corpus.max_tokens // (HOLD_OUT - 1))
        self.counts: dict[Split, Count] = {"train": Count(limit), "validation": Count(ninth)}

    def token_arrays(
        self, track: Track | None = None
    ) -> Generator[tuple[Split, np.ndarray], None, None]:
        """Yields pairs of a split and the next of its tokens (n,), in the order of the text, and
        counts them. Raises UserError if the text cannot be read."""
        byte_lengths = self.tokenizer.byte_lengths()
        own = OwnTokenizer(self.tokenizer)
        batches = self._batches()
        if track:
            batches = track(batches, self.corpus.size())
        with closing(batches), ThreadPoolExecutor(process_cores()) as pool:
            for batch, tokens in encode_batches(pool, own, batches, ahead=self.ahead):
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
        is_read = split in self.splits or self.corpus.deduplicate
        return is_read and self.counts[split].tokens < self.counts[split].limit

    def _batches(self) -> Generator[TextBatch, None, None]:
        """Reads the text in batches, until each split has as many tokens as its limit allows."""
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
            batches[split].pieces.append(None)
            for piece in document.pieces:
                batches[split].pieces.append(piece)
                batches[split].size += len(piece) if piece.isascii() else len(piece.encode())
                if batches[split].size >= BATCH:
                    yield batches[split]
                    batches[split] = TextBatch(split)
        yield from batches.values()


class OwnTokenizer(threading.local):
    """Gives each thread a tokenizer: those that share a `tiktoken.Encoding` wait for each other."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)

    def encode(self, batch: TextBatch) -> np.ndarray:
        """The tokens of a batch (n,). Each document begins with an end-of-text token, if any."""
        end_of_text, size = self.tokenizer.end_of_text, self.tokenizer.vocab_size
        dtype = token_dtype(size)
        arrays = [np.empty(0, dtype)]
        for piece in batch.pieces:
            if piece is None:
                arrays.append(np.array([] if end_of_text is None else [end_of_text], dtype))
                continue
            arrays.append(tokens := self.tokenizer.encode(piece))
            if len(tokens) and (largest := np.max(tokens)) >= size:
                problem = f"{type(self.tokenizer).__name__} gives the token {largest}"
                raise UserError(f"{problem}, but its vocab_size is {size}: correct it")
        return np.concatenate(arrays, dtype=dtype, casting="same_kind")


def encode_batches(
    pool: ThreadPoolExecutor, own: OwnTokenizer, batches: Iterator[TextBatch], *, ahead: int
) -> Iterator[tuple[TextBatch, np.ndarray]]:
    """Yields each batch with its tokens, in order. Up to `ahead` batches are in the pool."""
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
    """The answers that the losses count, or None for all tokens. Raises UserError if
    `corpus.answer_after` is not one token, or if no token begins a document."""
    after = corpus.answer_after
    if after is None:
        return None
    tokens = tokenizer.encode(after).tolist()
    if len(tokens) != 1 or tokenizer.end_of_text is None:
        needed = f"a tokenizer with an end-of-text token, in which {after!r} is one token"
        raise UserError(f"data={corpus.name} needs {needed}: choose tokenizer=char")
    return Answers(after=tokens[0], begin=tokenizer.end_of_text)


@dataclass(frozen=True)
class ValidationText:
    """The N tokens of a validation split.

    - `byte_lengths` (V,): the number of bytes of each token in the vocabulary.
    - `probe`: the `probe_text` of the corpus.
    - `text_per_token_byte`: bytes of text per byte of its tokens, 1 if the tokenizer is lossless.
    - `answers`: if it is not None, the losses count only these targets.
    """

    tokens: np.ndarray
    byte_lengths: np.ndarray
    probe: str | None = None
    text_per_token_byte: float = 1.0
    answers: Answers | None = None


def validation_text(corpus: Corpus, tokenizer: Tokenizer) -> ValidationText:
    """The validation split of `corpus`, encoded by `tokenizer`."""
    encoded = EncodedCorpus(corpus, tokenizer, ("validation",))
    arrays = [array for split, array in encoded.token_arrays() if split == "validation"]
    ratio = encoded.counts["validation"].text_per_token_byte
    answers = answers_of(corpus, tokenizer)
    tokens, lengths = np.concatenate(arrays), tokenizer.byte_lengths()
    return ValidationText(tokens, lengths, corpus.probe_text, ratio, answers)
