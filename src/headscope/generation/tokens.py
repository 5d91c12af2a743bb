"""Tokens from a model, one at a time for each text.

Shapes: B texts at once, T tokens, V vocab_size.
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
    """What a model sees of B texts of one length, (B, T), while they grow token by token.

    When the context is full, its newest `block_size // 2` tokens are kept and read anew as the
    context, and so on. With `cached`, keys and values of what was read are kept, and of most tokens
    only the new one is read, by `read_one`; the logits are the same.
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
        """Let the texts go on with these tokens (B,)."""
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
    """New tokens after each of `prompts`, one for each at a time.

    A text depends on its prompt and its seed alone, not on the others; `pick` says how far it
    depends on the device. Texts of one length are read together, others apart. `Context` says what
    is read of a long one, and what `cached` and `read_one` are. Of every step, only the new tokens
    leave the device.

    Raises UserError when a prompt is empty, has a token that is not in the vocabulary, or a setting
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
