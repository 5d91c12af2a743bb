"""A tokenizer that uses the library `tokenizers`: the tokenizer of an imported model."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Library

from headscope.data.bpe import MAX_VOCAB_SIZE, byte_symbols
from headscope.data.labels import visible
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError, library_errors


class TokenizersTokenizer(Tokenizer):
    """A tokenizer from the text of a `tokenizer.json`, such as WordPiece, Unigram or BPE.

    It encodes like the library, without adding special tokens, and with `encode_special_tokens`: in
    a text, the name of a special token is text, except in Unigram and WordLevel, which encode the
    name of any token as this token. `decode` is the library's, without special tokens.

    Such a tokenizer may lose text. For example, WordPiece drops the kind of white space, and often
    upper case. So the bytes of the tokens may differ from those of the text.

    Raises UserError if the library refuses the text.
    """

    name = "stored"

    def __init__(
        self,
        text: str,
        *,
        end_of_text: int | None = None,
        begin_token: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        with library_errors("tokenizer.json cannot be used"):
            content = json.loads(text) | {"truncation": None, "padding": None}
            self.json = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
            # The second one takes the name of a special token for this token.
            self.library, self._with_special = (Library.from_str(self.json) for _ in range(2))
        check_ids(self.library)
        self.ids = self.library.get_vocab()
        self.vocab_size = self.tokens = max(self.ids.values()) + 1
        self.names = [self.library.id_to_token(number) or "" for number in range(self.tokens)]
        self.end_of_text = end_of_text
        self.begin_token = end_of_text if begin_token is None else begin_token
        self.chat_template = chat_template
        added = self.library.get_added_tokens_decoder()
        special = {number: token.content for number, token in added.items() if token.special}
        ends = {number: name for number, name in enumerate(self.names) if number == end_of_text}
        self.special = special | ends
        decoders = steps_of(content.get("decoder"))
        write = writer(self.library, decoders)
        self._bytes = [
            b"" if number in special or not name else write(name)
            for number, name in enumerate(self.names)
        ]
        self._word_piece = any(step["type"] == "WordPiece" for step in decoders)

    def encode_special(self, text: str) -> list[int]:
        with library_errors("the tokenizer cannot encode this text"):
            [encoded] = self._with_special.encode_batch_fast([text], add_special_tokens=False)
        return encoded.ids

    def encode(self, text: str) -> np.ndarray:
        self.library.encode_special_tokens = True  # a copy of the library does not keep this
        with library_errors("the tokenizer cannot encode this text"):
            [encoded] = self.library.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoded.ids, dtype=np.uint32)

    def token_bytes(self, token: int) -> bytes:
        return b"" if token >= self.tokens or token == self.end_of_text else self._bytes[token]

    def decode(self, tokens: Iterable[int]) -> str:
        known = [number for token in tokens if self.token_bytes(number := int(token))]
        with library_errors("the tokenizer cannot decode its tokens"):
            return self.library.decode(known)

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """The labels of WordPiece are names, such as ##ing: most tokens begin with a space."""
        if not self._word_piece:
            return super().labels(tokens)
        return [visible(self.names[token] if token < self.tokens else "") for token in tokens]

    def state(self) -> dict[str, Any]:
        return {
            "kind": "tokenizers",
            "json": self.json,
            "end_of_text": self.end_of_text,
            "begin_token": self.begin_token,
            "chat_template": self.chat_template,
            "vocab_size": self.vocab_size,
            "adds_begin": self.adds_begin,
        }


def check_ids(library: Library) -> None:
    """Raises UserError if the id of a token is too large: writing such a tokenizer as JSON takes
    the library minutes."""
    if not 0 <= max(library.get_vocab().values(), default=-1) < MAX_VOCAB_SIZE:
        problem = f"its tokens are not numbered below {MAX_VOCAB_SIZE:,}"
        raise UserError(f"tokenizer.json cannot be used: {problem}")


def steps_of(decoder: Any) -> list[dict[str, Any]]:
    """The decoder of a `tokenizer.json`, or those of a `Sequence`. The library has verified it."""
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for item in decoder["decoders"] for step in steps_of(item)]


def writer(library: Library, decoders: list[dict[str, Any]]) -> Callable[[str], bytes]:
    """A function that maps a token's name to the bytes that the decoder writes within a text."""
    kinds = [step["type"] for step in decoders]
    if "ByteLevel" in kinds:
        byte_of = {symbol: value for value, symbol in enumerate(byte_symbols())}
        # The name of an added token is not written in symbols.
        return lambda name: (
            bytes(byte_of[symbol] for symbol in name)
            if byte_of.keys() >= set(name)
            else name.encode()
        )
    if kinds == ["BPEDecoder"]:  # it does not write the space after the last token
        suffix = str(decoders[0].get("suffix", "</w>"))
        return lambda name: name.replace(suffix, " ").encode()

    def after_a_token(name: str) -> bytes:
        if "ByteFallback" in kinds and re.fullmatch("<0x[0-9A-Fa-f]{2}>", name):
            return bytes.fromhex(name[3:5])
        if library.decoder is None:  # the library joins the tokens with spaces
            return f" {name}".encode()
        with library_errors(f"the decoder of tokenizer.json cannot write {name[:80]!r}"):
            return library.decoder.decode(["a", name]).removeprefix("a").encode()

    return after_a_token
