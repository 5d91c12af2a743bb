"""Samples tokens from a model, one at a time for each text.

Shapes: B texts, T tokens, V vocab_size.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headscope.errors import UserError
from headscope.generation.picking import check_sampling, draw, pick
from headscope.nn import GPT, Cache, make_cache
from headscope.nn.inputs import token_ids

Read = Callable[[Tensor, Cache], Tensor]
"""`GPT.next_logits` with a cache."""


class Context:
    """The tokens (B, T) that a model reads of B growing texts of equal length.

    When the context is full, the newest `block_size // 2` tokens become the new context. With
    `cached`, keys and values of earlier tokens are cached, so most steps read only the new token,
    by `read_one`. The logits are the same.
    """

    def __init__(
        self,
        model: GPT,
        tokens: Tensor,
        *,
        cached: bool = True,
        read_one: Read | None = None,
    ) -> None:
        self.model = model
        self.read_one = read_one or model.next_logits
        self.parts = [tokens]
        self.length = tokens.size(1)
        self.cache = make_cache(model, len(tokens)) if cached else None

    def next_logits(self) -> Tensor:
        """Logits (B, V) of the next token of each text."""
        if self.length > self.model.block_size:
            self.length = max(1, self.model.block_size // 2)
            self.parts = [torch.cat(self.parts, dim=1)[:, -self.length :]]
            if self.cache is not None:
                self.cache.length = 0
        if self.cache is None:
            return self.model.next_logits(torch.cat(self.parts, dim=1))
        read = self.read_one if self.cache.length else self.model.next_logits
        return read(self.parts[-1], self.cache)

    def append(self, tokens: Tensor) -> None:
        """Appends one token to each text: `tokens` (B,)."""
        self.parts.append(tokens[:, None])
        self.length += 1


@torch.no_grad()
def generate_tokens(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    seeds: Sequence[int],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    cached: bool = True,
    read_one: Read | None = None,
) -> Iterator[list[int]]:
    """Yields the next token of each text that starts with one of `prompts`, step by step.

    A text depends only on its prompt and its seed, not on the other texts. How far it depends on
    the device: see `pick`. Prompts of equal length form a batch. For `cached`, `read_one` and texts
    longer than the context, see `Context`. Each step copies only the new tokens from the device.

    Raises UserError when a prompt is empty or has a token outside the vocabulary, or when a setting
    is out of range.
    """
    check_sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p)
    by_length: dict[int, list[int]] = {}
    prompts = [token_ids(prompt, model.vocab_size) for prompt in prompts]
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise UserError("the prompt must have at least one token, such as the end of text")
        by_length.setdefault(len(prompt), []).append(number)
    contexts = [
        Context(
            model,
            torch.tensor([prompts[number] for number in numbers], device=model.device),
            cached=cached,
            read_one=read_one,
        )
        for numbers in by_length.values()
    ]
    draws = [
        draw([seeds[number] for number in numbers], model.device) for numbers in by_length.values()
    ]
    for _ in range(max_new_tokens):
        new = [0] * len(prompts)
        for numbers, context, chances in zip(by_length.values(), contexts, draws, strict=True):
            tokens = pick(
                context.next_logits(),
                chance=next(chances),
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
            )
            for number, token in zip(numbers, tokens.tolist(), strict=True):
                new[number] = token
            context.append(tokens)
        yield new
