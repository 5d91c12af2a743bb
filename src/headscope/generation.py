"""Sampling text from a model. Prints nothing, opens nothing.

Shapes: B batch, T tokens, V vocab_size.
"""

import codecs
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headscope.nn import GPT

if TYPE_CHECKING:
    from headscope.data.tokenizer import Tokenizer


@torch.no_grad()
def generate_tokens(
    model: GPT,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    generator: torch.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Iterator[int]:
    """New tokens after `prompt`, one by one.

    When the context is full, its newest `block_size // 2` tokens are kept and read anew as the
    context, and so on.

    Raises ValueError when the prompt is empty or a setting is out of range.
    """
    check_sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p)
    if not prompt:
        raise ValueError("the prompt must have at least one token, such as the end of text")
    context = list(prompt)
    for _ in range(max_new_tokens):
        if len(context) > model.block_size:
            context = context[-max(1, model.block_size // 2) :]
        logits = model.forward(torch.tensor([context], device=model.device))[0, -1]
        token = pick(logits, generator=generator, temperature=temperature, top_k=top_k, top_p=top_p)
        context.append(token)
        yield token


def pick(
    logits: Tensor,
    *,
    generator: torch.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> int:
    """One token drawn from softmax(logits / temperature), logits (V,).

    `temperature` 0 takes the likeliest. `top_k` keeps the k likeliest; `top_p` then keeps the
    fewest of them that together have that probability (Holtzman 2020). The draw is made on the
    CPU in float64, so that the same seed gives the same text on every device that computes the
    same logits.
    """
    logits = logits.cpu().double()
    if temperature == 0:
        return int(logits.argmax())
    logits, tokens = logits.sort(descending=True, stable=True)
    if top_k is not None:
        logits = logits[:top_k]
    probabilities = ((logits - logits[0]) / temperature).softmax(dim=0)
    if top_p is not None:
        before = probabilities.cumsum(dim=0) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    return int(tokens[torch.multinomial(probabilities, 1, generator=generator)])


def generate_text(
    model: GPT,
    tokenizer: "Tokenizer",
    prompt: str,
    *,
    max_new_tokens: int,
    seed: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Sequence[str] = (),
) -> Iterator[str]:
    """The text that follows `prompt`, in pieces that are never half a character.

    An empty prompt starts a document. It ends at `max_new_tokens`, at the end of the document, or
    before the first of the `stop` texts. Bytes that are not UTF-8 become U+FFFD.

    Raises ValueError when the vocabulary cannot say the prompt, a stop text is empty, or a setting
    is out of range.
    """
    if "" in stop:
        raise ValueError("stop='' is empty: it would end every text before it begins")
    tokens = tokenizer.encode_prompt(prompt) or [tokenizer.end_of_text]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    # What may turn out to be the beginning of a stop text is held back.
    held = max((len(text) for text in stop), default=1) - 1
    pending = ""
    for token in generate_tokens(
        model,
        tokens,
        max_new_tokens=max_new_tokens,
        generator=torch.Generator().manual_seed(seed),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    ):
        if token == tokenizer.end_of_text:
            break
        pending += decoder.decode(tokenizer.token_bytes(token))
        found = [(pending.find(text), text) for text in stop if text in pending]
        if found:
            # The one that is complete first, however the text falls into tokens.
            _, start = min((start + len(text), start) for start, text in found)
            yield pending[:start]
            return
        ready = len(pending) - held
        if ready > 0:
            yield pending[:ready]
            pending = pending[ready:]
    yield pending + decoder.decode(b"", final=True)


def check_sampling(
    *, max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Raises ValueError when a setting of sampling is out of range."""
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be 0 or more")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature={temperature} must be a number of 0 (greedy) or more")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be 1 or more, or null for all tokens")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 and at most 1, or null for all tokens")
