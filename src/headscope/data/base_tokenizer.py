"""The interface of all tokenizers, which convert text to tokens and back.

A tokenizer knows the bytes of every token. So a loss in nats per token can be converted to bits per
byte, which can be compared across tokenizers.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from headscope.data.labels import token_labels
from headscope.errors import UserError

END_OF_TEXT = "<|endoftext|>"


class Tokenizer(ABC):
    """Encodes text to tokens and decodes tokens to text.

    `end_of_text` is the id of the end-of-text token, which comes before every document and has no
    bytes. In headscope's own tokenizers it is the last token. In the tokenizer of an imported model
    it can be any token, or None if there is none.

    `vocab_size` is the number of rows of the model's embedding. The tokenizer of an imported model
    may have fewer tokens: the last rows then belong to no token, and have no bytes.
    """

    name: str
    """The name of the function in `headscope.data.tokenizer` that makes this tokenizer."""

    vocab_size: int
    end_of_text: int | None

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The tokens of any text, as a uint32 array (n,). The text <|endoftext|>, or the name of
        another special token, is encoded like any other text.

        Raises UserError if the vocabulary cannot represent the text and has no unknown token.
        """

    def encode_prompt(self, text: str) -> list[int]:
        """Like `encode`, for a prompt from the user. Raises UserError when the vocabulary cannot
        represent the text."""
        check_utf8(text)
        return self.encode(text).tolist()

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes that a token adds to a text. The bytes may be only a part of a character.
        Special tokens have no bytes."""

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

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """One readable label for each token of a text."""
        return token_labels(map(self.token_bytes, tokens))

    def first_token(self) -> int:
        """The token with which an empty text begins. Raises UserError if there is no end-of-text
        token."""
        if self.end_of_text is None:
            raise UserError("this model has no end-of-text token, so the prompt must not be empty")
        return self.end_of_text


def check_utf8(text: str) -> None:
    """Raises UserError if a prompt contains half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"the prompt is not valid UTF-8 at character {error.start}: "
            f"{text[error.start : error.end]!a}; remove this character"
        ) from None
