"""Generates text from a model, piece by piece."""

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.trained.generation.tokens import generate_tokens


def generate_text(
    model: GPT, tokenizer: Tokenizer, prompt: str, *, seed: int, **options: Any
) -> Iterator[str]:
    """Yields one continuation of `prompt` in pieces. See `generate_texts` for the options."""
    for (piece,) in generate_texts(model, tokenizer, prompt, seeds=[seed], **options):
        yield piece


def generate_texts(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    seeds: Sequence[int],
    stop: Sequence[str] = (),
    **options: Any,
) -> Iterator[list[str]]:
    """Continues `prompt` once for each of `seeds`, with the `options` of `generate_tokens`.

    Yields lists with the next piece of each text. A piece consists of whole characters. It is empty
    if the text has no new characters. With an empty prompt, the model starts a new document. A text
    ends after `max_new_tokens` tokens, at the end-of-text token, or before the first of the `stop`
    texts. Bytes that are not valid UTF-8 become U+FFFD.

    Raises UserError if the prompt cannot be encoded, a stop text is empty, or a setting is wrong.
    """
    if "" in stop:
        raise UserError("stop='' is empty: every generated text would be empty")
    start = tokenizer.encode_prompt(prompt) or [tokenizer.first_token()]
    texts = [Text(tokenizer, stop) for _ in seeds]
    for tokens in generate_tokens(model, start, seeds=seeds, **options):
        pieces = [text.take(token) for text, token in zip(texts, tokens, strict=True)]
        if any(pieces):
            yield pieces
        if all(text.ended for text in texts):
            return
    yield [text.rest() for text in texts]


class Text:
    """Decodes a stream of tokens to text in pieces of whole characters. The text ends at the
    end-of-text token, or before the first of the `stop` texts."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stop = stop
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # This number of characters is held back at the end, because they may begin a stop text.
        self.held = max((len(text) for text in stop), default=1) - 1
        self.pending = ""
        self.ended = False

    def take(self, token: int) -> str:
        """Decodes the next token. Returns the new characters that cannot belong to a stop text."""
        if self.ended:
            return ""
        if token == self.tokenizer.end_of_text:
            return self.rest()
        self.pending += self.decoder.decode(self.tokenizer.token_bytes(token))
        stops = [(self.pending.find(text), text) for text in self.stop if text in self.pending]
        if stops:
            # If there are several stop texts, use the one that ends first. Then the result does not
            # depend on how the text is divided into tokens.
            _, start = min((start + len(text), start) for start, text in stops)
            self.ended = True
            return self.pending[:start]
        ready = max(0, len(self.pending) - self.held)
        piece, self.pending = self.pending[:ready], self.pending[ready:]
        return piece

    def rest(self) -> str:
        """Ends the text. Returns all characters that have not been returned yet."""
        if self.ended:
            return ""
        self.ended = True
        return self.pending + self.decoder.decode(b"", final=True)
