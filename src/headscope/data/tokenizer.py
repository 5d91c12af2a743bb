"""Tokenizers convert text to tokens and back. conf/tokenizer names the functions that make them.

Most tokenizers use a `tiktoken.Encoding`. The others are `CharTokenizer`, and `TokenizersTokenizer`
for the tokenizers of imported models that tiktoken cannot express.
"""

import copy
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from headscope.data.bpe import MAX_VOCAB_SIZE, train_bpe
from headscope.data.chat import texts_around_question
from headscope.data.labels import EMPTY, token_labels, visible
from headscope.data.ranks import gpt2_ranks, ranks_to_text
from headscope.errors import UserError
from headscope.files import is_plain
from headscope.nn.checks import token_ids

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<|unknown|>"

PATTERNS = {"byte": r"(?s).", "bpe": r50k_pat_str, "gpt2": r50k_pat_str}
"""The regular expression with which each tokenizer splits text. `tokenizer_from_state` accepts no
other pattern, because matching a malicious pattern could take forever."""

CODE_POINTS = sys.maxunicode + 1


class Tokenizer(ABC):
    """Encodes text to tokens and decodes tokens to text.

    `end_of_text` is the id of the end-of-text token, which comes before every document and has no
    bytes. In headscope's own tokenizers it is the last token. In the tokenizer of an imported model
    it can be any token, or None if there is none.

    `special` maps the ids of special tokens to their names, which are their labels.

    `vocab_size` is the number of rows of the model's embedding. The tokenizer of an imported model
    may have fewer tokens: the last rows then belong to no token, and have no bytes.

    The other attributes say how typed texts are read (see `encode_prompt`); texts of a corpus are
    not affected. `adds_begin`: a text begins with `begin_token`. `reads_special`: the name of a
    special token is this token. `as_question`: it is a question in a chat, as `chat_template`, a
    template of jinja2, writes it. `typed` changes them.

    A tokenizer of your own is a subclass whose constructor takes `texts`, an iterator over the
    training texts. Its attributes are saved: plain data, on which alone its methods depend.
    """

    name: str
    vocab_size: int
    end_of_text: int | None
    special: Mapping[int, str] = {}
    begin_token: int | None = None
    chat_template: str | None = None
    adds_begin = reads_special = as_question = False

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The tokens of any text, as a uint32 array (n,). The text <|endoftext|>, or the name of
        another special token, is encoded like any other text.

        Raises UserError if the vocabulary cannot represent the text and has no unknown token.
        """

    def encode_prompt(self, text: str) -> list[int]:
        """The tokens of a text that a person types, as the attributes say. Its line ends become
        `\\n`, as those of files. Raises UserError if the vocabulary lacks a character, or if it
        is half of a surrogate pair."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            wrong = f"character {error.start}, {text[error.start : error.end]!a}"
            raise UserError(f"the prompt is not valid UTF-8: remove {wrong}") from None
        text = unix_lines(text)
        if self.as_question:
            assert self.chat_template is not None
            ends = (self.begin_token, self.end_of_text)
            names = ["" if token is None else self.special.get(token, "") for token in ends]
            before, after = texts_around_question(self.chat_template, *names)
            text = text.strip()  # as most templates do
            if not any(name in text for name in self.special.values()):
                return self.encode_special(before + text + after)
            tokens = self.encode_special(before)
            return tokens + self.encode_piece(text) + self.encode_special(after)
        tokens = self.encode_special(text) if self.reads_special else self.encode_piece(text)
        begin = [self.begin_token] if self.adds_begin and self.begin_token is not None else []
        return tokens if begin == tokens[:1] else begin + tokens

    def encode_piece(self, text: str) -> list[int]:
        """Like `encode_prompt`, for a part of a text, in which the names of tokens are text."""
        return self.encode(text).tolist()

    def encode_special(self, text: str) -> list[int]:
        """Like `encode_piece`, but the name of a special token is this token."""
        ids = {name: token for token, name in self.special.items()}
        longest_first = sorted(map(re.escape, ids), key=len, reverse=True)
        tokens: list[int] = []
        for piece in re.split(f"({'|'.join(longest_first)})", text) if ids else [text]:
            tokens += [ids[piece]] if piece in ids else self.encode_piece(piece)
        return tokens

    def decode_prompt(self, tokens: Sequence[int]) -> str:
        """The text that a person would type for these tokens."""
        if self.adds_begin and tokens[:1] == [self.begin_token]:
            tokens = tokens[1:]
        parts = groupby(tokens, key=self.special.get if self.reads_special else lambda _: None)
        return "".join(name * len([*run]) if name else self.decode(run) for name, run in parts)

    def typed(
        self, *, begin: bool | None = None, special: bool | None = None, question: bool = False
    ) -> "Tokenizer":
        """A copy with other settings for typed texts: None keeps a setting. Raises UserError if it
        has no begin-of-text token, or no template for a question."""
        made = copy.copy(self)
        chosen = {"adds_begin": begin, "reads_special": special, "as_question": question}
        for name, value in chosen.items():
            if value is not None and value != getattr(self, name):
                setattr(made, name, value)
        if begin and self.begin_token is None:
            raise UserError("begin=true: this model has no token that begins a text")
        if question and self.chat_template is None:
            raise UserError(
                "question=true: this model has no chat template; it only continues texts"
            )
        return made

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes that a token adds to a text, perhaps an incomplete character."""

    def state(self) -> dict[str, Any]:
        """The complete tokenizer as plain data, for `tokenizer_from_state`."""
        attributes, name = vars(self), type(self).__name__
        if not is_plain(attributes):
            raise UserError(f"the attributes of {name} must be plain data to save it")
        return {"kind": "own", "attributes": attributes}

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a sequence of tokens. Bytes that are not valid UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(int(token)) for token in tokens).decode(errors="replace")

    def byte_lengths(self) -> np.ndarray:
        """The number of bytes of every token in the vocabulary, int64 (V,)."""
        return np.array([len(self.token_bytes(token)) for token in range(self.vocab_size)])

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """One readable label for each token of a text."""
        special = self.special
        labels = zip(tokens, token_labels(map(self.token_bytes, tokens)), strict=True)
        return [
            visible(special[token]) if label == EMPTY and token in special else label
            for token, label in labels
        ]

    def label(self, token: int) -> str:
        """A readable label for a token of the vocabulary."""
        return self.labels([token])[0]

    def vocabulary_labels(self) -> list[str]:
        """The label of each token of the vocabulary, by its id."""
        return [self.label(token) for token in range(self.vocab_size)]

    def tokens_of(self, text: str | Sequence[int]) -> list[int]:
        """The tokens of a text, or token ids as they are. Raises UserError for unknown ones."""
        if isinstance(text, str):
            return self.encode_prompt(text)
        if isinstance(text, bytes) or not isinstance(text, Iterable):
            raise UserError(f"text={text!r}: give a text, or a list of token ids")
        return token_ids(text, self.vocab_size)

    def only_token(self, text: str | int, *, key: str = "token") -> int:
        """The token that `text` is, or a token id as it is. `key` begins the message. Raises
        UserError if the text does not have exactly one token, or for an unknown id."""
        plain = self.typed(begin=False)
        tokens = plain.tokens_of(text if isinstance(text, str) else [text])
        if len(tokens) != 1:
            listed = f" ({', '.join(self.labels(tokens[:8]))})" if tokens else ""
            problem = f"{key}={text!r} has {len(tokens)} tokens{listed} and must have one"
            advice = "choose another; a space before a word is often a part of its token"
            raise UserError(f"{problem}: {advice}")
        return tokens[0]

    def first_token(self) -> int:
        """The token that begins an empty text. Raises UserError without an end-of-text token."""
        if self.end_of_text is None:
            raise UserError("this model has no end-of-text token, so the prompt must not be empty")
        return self.end_of_text


def bpe(texts: Iterable[str], *, vocab_size: int, sample_megabytes: float = 100.0) -> Tokenizer:
    """Trains a byte-level byte-pair encoding (Sennrich 2016) on `texts`, split by GPT-2's pattern.
    If the texts have more than `sample_megabytes`, it is trained on a sample spread over them.

    The vocabulary is the 256 bytes, then the merges in the order in which they were learned, then
    the end-of-text token. A short text gives fewer than `vocab_size` tokens.
    """
    ranks = train_bpe(texts, vocab_size=vocab_size, sample_megabytes=sample_megabytes)
    return TiktokenTokenizer("bpe", ranks)


def byte(texts: Iterable[str]) -> Tokenizer:
    """A token for each of the 256 bytes, and the end-of-text token. Does not read `texts`."""
    return TiktokenTokenizer("byte", {bytes([value]): value for value in range(256)})


def char(texts: Iterable[str]) -> Tokenizer:
    """A token for each different character in `texts`, in the order of code points."""
    seen = np.zeros(CODE_POINTS, dtype=bool)
    for text in texts:
        seen[code_points(text)] = True
    return CharTokenizer("".join(map(chr, np.flatnonzero(seen).tolist())))


def gpt2(texts: Iterable[str], *, path: str | None = None) -> Tokenizer:
    """GPT-2's encoding, with 50257 tokens. Does not read `texts`. `path`: see `gpt2_ranks`."""
    return TiktokenTokenizer("gpt2", gpt2_ranks(path))


class TiktokenTokenizer(Tokenizer):
    """A tokenizer that uses a `tiktoken.Encoding` with these `ranks`, and the end-of-text token as
    its only special token. It splits text as the tokenizer `name` in `PATTERNS`."""

    end_of_text: int

    def __init__(self, name: str, ranks: dict[bytes, int]) -> None:
        self.name = name
        self.end_of_text = self.begin_token = len(ranks)
        self.special = {self.end_of_text: END_OF_TEXT}
        self.vocab_size = len(ranks) + 1
        self.encoding = tiktoken.Encoding(
            name,
            pat_str=PATTERNS[name],
            mergeable_ranks=ranks,
            special_tokens={END_OF_TEXT: self.end_of_text},
        )
        # Without merges, an array is much faster than `encoding`.
        single = [ranks[bytes([value])] for value in range(256)] if len(ranks) == 256 else None
        self.token_of_byte = None if single is None else np.array(single, dtype=np.uint32)

    @property
    def ranks(self) -> dict[bytes, int]:
        """Maps the bytes of each token, except the end-of-text token, to the token's id."""
        return self.encoding._mergeable_ranks

    def encode(self, text: str) -> np.ndarray:
        if self.token_of_byte is not None:
            return self.token_of_byte[np.frombuffer(text.encode(), dtype=np.uint8)]
        return self.encoding.encode_to_numpy(text, disallowed_special=())

    def token_bytes(self, token: int) -> bytes:
        if token >= self.end_of_text:
            return b""
        return self.encoding.decode_single_token_bytes(token)

    def state(self) -> dict[str, Any]:
        return {
            "kind": "tiktoken",
            "name": self.name,
            "pattern": PATTERNS[self.name],
            "ranks": ranks_to_text(self.ranks),
            "end_of_text": self.end_of_text,
            "vocab_size": self.vocab_size,
            "adds_begin": self.adds_begin,
        }


class CharTokenizer(Tokenizer):
    """One token per character. The vocabulary consists of the characters of the training split.

    All other characters are encoded as the token `unknown`, which has no bytes. An unknown
    character in a prompt raises UserError.

    Without `special_tokens`, as in nanoGPT, the characters are the whole vocabulary. Then there is
    no end-of-text token, and an unknown character in any text raises UserError.
    """

    name = "char"

    def __init__(self, alphabet: str, *, special_tokens: bool = True) -> None:
        self.alphabet = alphabet
        self.special_tokens = special_tokens
        self.unknown = len(alphabet)
        self.end_of_text = self.begin_token = len(alphabet) + 1 if special_tokens else None
        names = {len(alphabet): UNKNOWN, len(alphabet) + 1: END_OF_TEXT}
        self.special = names if special_tokens else {}
        self.vocab_size = len(alphabet) + 2 * special_tokens
        self._tokens = np.full(CODE_POINTS, self.unknown, dtype=np.uint32)
        self._tokens[code_points(alphabet)] = np.arange(len(alphabet))

    def encode(self, text: str) -> np.ndarray:
        return self._encode(text, unknown_allowed=self.special_tokens)

    def encode_piece(self, text: str) -> list[int]:
        return self._encode(text, unknown_allowed=False).tolist()

    def _encode(self, text: str, *, unknown_allowed: bool) -> np.ndarray:
        tokens = self._tokens[code_points(text)]
        if not unknown_allowed and (unknown := np.flatnonzero(tokens == self.unknown)).size:
            known = f"the {len(self.alphabet)} characters of this model's training text"
            problem = f"the character {text[unknown[0]]!r} is not among {known}"
            raise UserError(f"{problem}: remove it, or train with tokenizer=byte or bpe")
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return self.alphabet[token].encode() if token < len(self.alphabet) else b""

    def first_token(self) -> int:
        """Without special tokens, the token of a line end, as in nanoGPT, or the first token."""
        newline = max(0, self.alphabet.find("\n"))
        return newline if self.end_of_text is None else self.end_of_text

    def state(self) -> dict[str, Any]:
        state = {"kind": "char", "alphabet": self.alphabet, "adds_begin": self.adds_begin}
        return state if self.special_tokens else state | {"special_tokens": False}


def unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def splits_characters(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the tokenizer has clearly more tokens than characters for the beginning of a text, as
    a BPE trained on English has for Chinese. Never for `byte`, which is chosen for that."""
    text = text[:4096]
    # A single accented letter or emoji does not count.
    return tokenizer.name != "byte" and len(tokenizer.encode(text)) > 1.2 * len(text) + 3


def code_points(text: str) -> np.ndarray:
    """The Unicode code point of each character, uint32 (n,)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def with_vocab_size(tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    """A copy of the tokenizer of an imported model, for an embedding with `vocab_size` rows. Raises
    UserError if it has more tokens, or if its kind cannot have rows without tokens."""
    tokens = tokenizer.vocab_size
    if vocab_size == tokens:
        return tokenizer
    most = tokens if isinstance(tokenizer, CharTokenizer) else MAX_VOCAB_SIZE
    if type(vocab_size) is not int or not tokens < vocab_size <= most:
        size = f"a vocabulary of {str(vocab_size)[:80]}: the files do not belong together"
        raise UserError(f"the tokenizer has {tokens} tokens, which do not fit in {size}")
    made = copy.copy(tokenizer)
    made.vocab_size = vocab_size
    return made
