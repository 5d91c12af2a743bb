"""Trains a byte-level byte-pair encoding with the library `tokenizers`."""

import json
import math
import re
from collections.abc import Iterable

from headscope.data.corpus import pieces
from headscope.errors import UserError

MAX_VOCAB_SIZE = 2**20

MAX_DISTINCT = 2**22
"""The most bytes of all different words of a sample. The library needs 100 times as many."""

PIECE = 2**14
"""Characters in a piece. The library reads 256 at once, and needs 60 times their size of memory."""


def train_bpe(
    texts: Iterable[str], *, vocab_size: int, sample_megabytes: float
) -> dict[bytes, int]:
    """Returns a dictionary from the bytes of each token to the token's id. The end-of-text token is
    not included. If `texts` have more than `sample_megabytes`, a sample of them is used. A short
    text gives fewer tokens than `vocab_size`, because no pairs are left to merge."""
    from tokenizers import Tokenizer as HuggingFaceTokenizer
    from tokenizers import models, pre_tokenizers, trainers

    if not 0 < sample_megabytes < math.inf:
        raise UserError(f"tokenizer.sample_megabytes={sample_megabytes} must be above 0 and finite")
    if not 257 <= vocab_size <= MAX_VOCAB_SIZE:
        limits = f"257 (the 256 bytes and the end-of-text token) and {MAX_VOCAB_SIZE:,}"
        raise UserError(f"tokenizer.vocab_size={vocab_size} must be between {limits}")
    hf_tokenizer = HuggingFaceTokenizer(models.BPE())
    hf_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # GPT-2's pattern
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    small = (piece for text in texts for piece in pieces([text], size=PIECE))
    kept = few_words(sample(small, int(sample_megabytes * 1e6)))
    runs = (run for piece in kept for run in split_long_runs(piece.decode()))
    hf_tokenizer.train_from_iterator(runs, trainer)
    byte_of = {symbol: value for value, symbol in enumerate(byte_symbols())}
    ranks = {bytes([value]): value for value in range(256)}
    for left, right in json.loads(hf_tokenizer.to_str())["model"]["merges"]:
        ranks.setdefault(bytes(byte_of[symbol] for symbol in left + right), len(ranks))
    return ranks


LONG_SPACE = re.compile(rb"\s{5,}")


def sample(texts: Iterable[str], limit: int) -> list[bytes]:
    """Up to `limit` bytes of the texts, in UTF-8: all texts, or every second, or every fourth, and
    so on. So the sample is spread over all texts, without counting them first."""
    kept: list[bytes] = []
    every, size = 1, 0
    for number, text in enumerate(texts):
        if number % every == 0:
            kept.append(text.encode())
            size += len(kept[-1])
        while size > limit and len(kept) > 1:
            kept, every = kept[::2], 2 * every
            size = sum(map(len, kept))
    return kept


def few_words(texts: list[bytes]) -> list[bytes]:
    """All texts, or every second, or every fourth, and so on, so that their different words have at
    most `MAX_DISTINCT` bytes. English is usually kept whole, Chinese is not."""
    # All texts have at most 8 times the different words of an eighth, which is faster to count.
    while 8 * distinct(texts[::8]) > MAX_DISTINCT and distinct(texts) > MAX_DISTINCT:
        texts = texts[::2]
    return texts


def distinct(texts: list[bytes]) -> int:
    """The number of bytes of all different words in the texts. Above `MAX_DISTINCT`, the rest is
    not counted. White space is a word too if there is much of it."""
    words: set[bytes] = set()
    size = 0
    for text in texts:
        new = {*text.split(), *LONG_SPACE.findall(text)} - words
        words |= new
        size += sum(map(len, new))
        if size > MAX_DISTINCT:
            break
    return size


LONG_RUN = re.compile(r"\w{10000}|\s{10000}|[^\w\s]{10000}")


def split_long_runs(text: str) -> list[str]:
    """Splits the text into pieces if it has a very long run of letters, spaces or punctuation.
    Otherwise, the time of BPE training would grow with the square of the length of the run."""
    if len(text) < 4 * PIECE and LONG_RUN.search(text) is None:
        return [text]
    return [text[start : start + 10_000] for start in range(0, len(text), 10_000)]


def byte_symbols() -> list[str]:
    """For each byte, the printable character that stands for it in GPT-2's byte-level BPE."""
    substitutes = iter(range(256, 512))
    return [
        chr(value) if chr(value).isprintable() and value != 32 else chr(next(substitutes))
        for value in range(256)
    ]
