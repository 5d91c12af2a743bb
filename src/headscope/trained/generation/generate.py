"""Generates tokens for several texts at once, and their text piece by piece. Each step adds one
token to every text.

Shapes: B number of texts, T tokens, V vocab_size.
"""

import codecs
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.nn import GPT, Cache
from headscope.nn.checks import token_ids
from headscope.trained.generation.choose_token import (
    check_chosen,
    check_sampling,
    choose_tokens,
    uniform_numbers,
)

DecodeStep = Callable[[Tensor, Cache], Tensor]
"""A function with the arguments and the result of `GPT.next_logits`: it takes tokens and a cache,
and returns the logits of the next tokens."""


class Context:
    """The tokens (B, T) of B texts of equal length. Each step adds one token to every text.

    When T exceeds `block_size`, only the last `block_size // 2` tokens are kept, and the model
    processes them again. With `cached`, a key-value cache is used, and most steps process only the
    new token. These steps use `decode_one`, by default `model.next_logits`. The logits are the same
    with and without the cache.
    """

    def __init__(
        self,
        model: GPT,
        tokens: Tensor,
        *,
        cached: bool = True,
        decode_one: DecodeStep | None = None,
    ) -> None:
        self.model = model
        self.decode_one = decode_one or model.next_logits
        self.pieces = [tokens]
        self.length = tokens.size(1)
        self.cache = Cache(model, len(tokens)) if cached else None

    def next_logits(self) -> Tensor:
        """Logits (B, V) of the next token of each text."""
        if self.length > self.model.block_size:
            self.length = max(1, self.model.block_size // 2)
            self.pieces = [torch.cat(self.pieces, dim=1)[:, -self.length :]]
            if self.cache is not None:
                self.cache.length = 0
        if self.cache is None:
            return self.model.next_logits(torch.cat(self.pieces, dim=1))
        read = self.decode_one if self.cache.length else self.model.next_logits
        return read(self.pieces[-1], self.cache)

    def append(self, tokens: Tensor) -> None:
        """Appends one token to each text. `tokens` has the shape (B,)."""
        self.pieces.append(tokens[:, None])
        self.length += 1


@torch.no_grad()
def generate_tokens(
    model: GPT,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    seeds: Sequence[int],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    cached: bool = True,
    decode_one: DecodeStep | None = None,
) -> Iterator[list[int]]:
    """Continues `prompt` once for each of `seeds`. Yields lists with one new token of each text.

    Each text depends only on the prompt and its own seed, not on the other texts. `choose_tokens`
    describes differences between devices. All texts are processed as one batch. `Context` explains
    `cached`, `decode_one` and what happens to texts longer than `block_size`.

    Raises UserError when the prompt is empty, when one of its tokens is not in the vocabulary, when
    a setting is out of range, or when logits are not finite.
    """
    sampling: Any = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    check_sampling(max_new_tokens=max_new_tokens, **sampling)
    prompt = token_ids(prompt, model.vocab_size)
    if not prompt:
        raise UserError("the prompt must have at least one token, such as end_of_text")
    tokens = torch.tensor([prompt] * len(seeds), device=model.device)
    context = Context(model, tokens, cached=cached, decode_one=decode_one)
    stream = uniform_numbers(seeds, model.device)
    for _ in range(max_new_tokens):
        tokens = choose_tokens(context.next_logits(), uniform=next(stream), **sampling)
        context.append(tokens)
        new_tokens = tokens.tolist()
        check_chosen(new_tokens)
        yield new_tokens


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
