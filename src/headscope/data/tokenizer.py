"""Tokenizers convert text to tokens and back. All except `CharTokenizer` use a `tiktoken.Encoding`.

A tokenizer knows the bytes of every token. So a loss in nats per token can be converted to bits per
byte, which can be compared across tokenizers.
"""

import base64
import binascii
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from headscope.data.bpe import train_bpe
from headscope.data.gpt2 import gpt2_ranks
from headscope.errors import UserError

END_OF_TEXT = "<|endoftext|>"

BYTE_PATTERN = r"(?s)."

PATTERNS = {"byte": BYTE_PATTERN, "bpe": r50k_pat_str, "gpt2": r50k_pat_str}
"""The regular expression with which each tokenizer splits text. `tokenizer_from_state` accepts no
other pattern, because matching a malicious pattern could take forever."""


class Tokenizer(ABC):
    """Encodes text to tokens and decodes tokens to text.

    `end_of_text` is the id of the end-of-text token, which comes before every document and has no
    bytes. It is always the last token of the vocabulary.
    """

    name: str
    """The name of the function in this module that makes this tokenizer."""

    vocab_size: int
    end_of_text: int

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The tokens of any text, as a uint32 array (n,). The text <|endoftext|> is encoded like
        any other text."""

    @abstractmethod
    def encode_prompt(self, text: str) -> list[int]:
        """Like `encode`, for a prompt from the user.

        Raises UserError when the vocabulary cannot represent the text.
        """

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes of a token. The bytes may be only a part of a character. Special tokens
        have no bytes."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The complete tokenizer as plain data, from which `tokenizer_from_state` creates it
        again."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a sequence of tokens. Bytes that are not valid UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(int(token)) for token in tokens).decode(errors="replace")

    def byte_lengths(self) -> np.ndarray:
        """The number of bytes of every token in the vocabulary, int64 (V,)."""
        return np.array([len(self.token_bytes(token)) for token in range(self.vocab_size)])


class TiktokenTokenizer(Tokenizer):
    """A tokenizer that uses a `tiktoken.Encoding`, with the end-of-text token as its only special
    token."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self.encoding = encoding
        self.name = encoding.name
        self.vocab_size = encoding.n_vocab
        self.end_of_text = encoding.eot_token
        # Without merges, a table is much faster than `encoding`.
        ranks = encoding._mergeable_ranks
        single = [ranks[bytes([value])] for value in range(256)] if len(ranks) == 256 else None
        self.token_of_byte = None if single is None else np.array(single, dtype=np.uint32)

    def encode(self, text: str) -> np.ndarray:
        if self.token_of_byte is not None:
            return self.token_of_byte[np.frombuffer(text.encode(), dtype=np.uint8)]
        return self.encoding.encode_to_numpy(text, disallowed_special=())

    def encode_prompt(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the prompt is not valid UTF-8 at character {error.start}: "
                f"{text[error.start : error.end]!a}; remove this character"
            ) from None
        return self.encoding.encode_ordinary(text)

    def token_bytes(self, token: int) -> bytes:
        if token == self.end_of_text:
            return b""
        return self.encoding.decode_single_token_bytes(token)

    def state(self) -> dict[str, Any]:
        return {
            "kind": "tiktoken",
            "name": self.encoding.name,
            "pattern": self.encoding._pat_str,
            "ranks": _ranks_to_text(self.encoding._mergeable_ranks),
            "end_of_text": self.end_of_text,
        }


class CharTokenizer(Tokenizer):
    """One token per character. The vocabulary consists of the characters of the training split.

    All other characters are encoded as the token `unknown`, which has no bytes. Bits per byte
    include the loss on `unknown`, but do not count the bytes of the unknown characters. An unknown
    character in a prompt raises UserError.
    """

    name = "char"

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self.unknown = len(alphabet)
        self.end_of_text = len(alphabet) + 1
        self.vocab_size = len(alphabet) + 2
        self._tokens = np.full(CODE_POINTS, self.unknown, dtype=np.uint32)
        self._tokens[code_points(alphabet)] = np.arange(len(alphabet))

    def encode(self, text: str) -> np.ndarray:
        return self._tokens[code_points(text)]

    def encode_prompt(self, text: str) -> list[int]:
        for char in text:
            if self._tokens[ord(char)] == self.unknown:
                raise UserError(
                    f"the character {char!r} is not among the {len(self.alphabet)} characters of "
                    "this model's training text: remove it, or train with tokenizer=byte or bpe"
                )
        return self.encode(text).tolist()

    def token_bytes(self, token: int) -> bytes:
        return self.alphabet[token].encode() if token < len(self.alphabet) else b""

    def state(self) -> dict[str, Any]:
        return {"kind": "char", "alphabet": self.alphabet}


CODE_POINTS = sys.maxunicode + 1


def code_points(text: str) -> np.ndarray:
    """The Unicode code point of each character, uint32 (n,)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def tokenizer_from_state(state: dict[str, Any]) -> Tokenizer:
    """Creates the tokenizer whose method `state` returned `state`. Raises UserError if `state` is
    not valid."""
    match state:
        case {"kind": "char", "alphabet": str(alphabet)}:
            surrogates = any("\ud800" <= char <= "\udfff" for char in alphabet)
            if len(set(alphabet)) == len(alphabet) and not surrogates:
                return CharTokenizer(alphabet)
        case {
            "kind": "tiktoken",
            "name": str(name),
            "pattern": str(pattern),
            "ranks": str(ranks),
            "end_of_text": int(end_of_text),
        }:
            if PATTERNS.get(name) == pattern:
                token_of = _ranks_from_text(ranks)
                # tiktoken crashes if one of the 256 bytes or one of the ranks is missing.
                if (
                    {bytes([value]) for value in range(256)} <= token_of.keys()
                    and end_of_text == len(token_of)
                    and sorted(token_of.values()) == list(range(len(token_of)))
                ):
                    return _tiktoken(name, pattern, token_of)
    raise UserError("this is not a tokenizer that headscope saved")


def byte(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer with 257 tokens: one token for each byte, and the end-of-text token. Does not
    read `texts`."""
    return _tiktoken("byte", BYTE_PATTERN, {bytes([value]): value for value in range(256)})


def char(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer with one token for each different character in `texts`, in the order of code
    points."""
    seen = np.zeros(CODE_POINTS, dtype=bool)
    for text in texts:
        seen[code_points(text)] = True
    return CharTokenizer("".join(map(chr, np.flatnonzero(seen).tolist())))


def bpe(texts: Iterable[str], *, vocab_size: int, sample_megabytes: float = 100.0) -> Tokenizer:
    """Trains a byte-level byte-pair encoding (Sennrich 2016) on `texts`, split by GPT-2's pattern.
    If the texts have more than `sample_megabytes`, it is trained on a sample spread over them.

    The vocabulary is the 256 bytes, then the merges in the order in which they were learned, then
    the end-of-text token. Raises UserError if `texts` contain too little text for a vocabulary of
    `vocab_size` tokens.
    """
    ranks = train_bpe(texts, vocab_size=vocab_size, sample_megabytes=sample_megabytes)
    return _tiktoken("bpe", r50k_pat_str, ranks)


def stored(texts: Iterable[str], *, state: dict[str, Any]) -> Tokenizer:
    """The tokenizer that is stored in a checkpoint. Does not read `texts`."""
    return tokenizer_from_state(state)


def gpt2(texts: Iterable[str], *, path: str | None = None) -> Tokenizer:
    """GPT-2's own encoding, with 50257 tokens. Does not read `texts`. For `path`, see
    `gpt2_ranks`."""
    return _tiktoken("gpt2", r50k_pat_str, gpt2_ranks(path))


def _tiktoken(name: str, pattern: str, ranks: dict[bytes, int]) -> TiktokenTokenizer:
    end_of_text = {END_OF_TEXT: len(ranks)}
    return TiktokenTokenizer(
        tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=end_of_text)
    )


def _ranks_to_text(ranks: dict[bytes, int]) -> str:
    """The ranks in the .tiktoken file format: one line per token, with the token's bytes in base64
    and its rank."""
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())


def _ranks_from_text(text: str) -> dict[bytes, int]:
    try:
        lines = (line.split() for line in text.splitlines())
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (ValueError, binascii.Error) as error:
        raise UserError(f"the tokenizer's ranks are not in .tiktoken format: {error}") from None
