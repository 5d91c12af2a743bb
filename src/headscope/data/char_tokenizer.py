"""The tokenizer whose tokens are characters."""

import sys
from typing import Any

import numpy as np

from headscope.data.base_tokenizer import Tokenizer
from headscope.errors import UserError


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
        self.end_of_text = len(alphabet) + 1 if special_tokens else None
        self.vocab_size = len(alphabet) + 2 * special_tokens
        self._tokens = np.full(CODE_POINTS, self.unknown, dtype=np.uint32)
        self._tokens[code_points(alphabet)] = np.arange(len(alphabet))

    def encode(self, text: str) -> np.ndarray:
        tokens = self._tokens[code_points(text)]
        if not self.special_tokens:
            self._require_known(text, tokens)
        return tokens

    def encode_prompt(self, text: str) -> list[int]:
        tokens = self._tokens[code_points(text)]
        self._require_known(text, tokens)
        return tokens.tolist()

    def _require_known(self, text: str, tokens: np.ndarray) -> None:
        """Raises UserError if one of the `tokens` of a text is `unknown`."""
        unknown = np.flatnonzero(tokens == self.unknown)
        if len(unknown):
            raise UserError(
                f"the character {text[unknown[0]]!r} is not among the {len(self.alphabet)} "
                "characters of this model's training text: remove it, or train with "
                "tokenizer=byte or bpe"
            )

    def token_bytes(self, token: int) -> bytes:
        return self.alphabet[token].encode() if token < len(self.alphabet) else b""

    def first_token(self) -> int:
        """Without special tokens, the token of a line end, as in nanoGPT, or the first token."""
        newline = max(0, self.alphabet.find("\n"))
        return newline if self.end_of_text is None else self.end_of_text

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"kind": "char", "alphabet": self.alphabet}
        return state if self.special_tokens else state | {"special_tokens": False}


CODE_POINTS = sys.maxunicode + 1


def code_points(text: str) -> np.ndarray:
    """The Unicode code point of each character, uint32 (n,)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
