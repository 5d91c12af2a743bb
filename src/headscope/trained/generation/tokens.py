"""Generates tokens for several texts at once. Each step adds one token to every text.

Shapes: B number of texts, T tokens, V vocab_size.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

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
