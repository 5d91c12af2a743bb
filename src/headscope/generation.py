"""Sampling text from a model. Prints nothing, opens nothing.

Shapes: B texts at once, T tokens, V vocab_size.
"""

import codecs
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headscope.nn import GPT, Cache

if TYPE_CHECKING:
    from headscope.data.tokenizer import Tokenizer


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
        self.cache = model.make_cache(len(tokens)) if cached else None

    def next_logits(self) -> Tensor:
        """Logits (B, V) of the next token of each text."""
        if self.length > self.model.block_size:
            self.length = max(1, self.model.block_size // 2)
            self.parts = [torch.cat(self.parts, dim=1)[:, -self.length :]]
            if self.cache is not None:
                self.cache.length = 0
        if self.cache is None:
            return self.model.next_logits(torch.cat(self.parts, dim=1))
        read = self.read_one if self.parts[-1].size(1) == 1 else self.model.next_logits
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

    What a text becomes is of its prompt and its seed alone, not of the others. Texts of one length
    are read together, others apart. `Context` says what is read of a long one, and what `cached`
    and `read_one` are.

    Raises ValueError when a prompt is empty or a setting is out of range.
    """
    check_sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p)
    by_length: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError("the prompt must have at least one token, such as the end of text")
        by_length.setdefault(len(prompt), []).append(number)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    contexts = [
        Context(
            model,
            torch.tensor([list(prompts[number]) for number in numbers], device=model.device),
            cached=cached,
            read_one=read_one,
        )
        for numbers in by_length.values()
    ]
    for _ in range(max_new_tokens):
        new = [0] * len(prompts)
        for numbers, context in zip(by_length.values(), contexts, strict=True):
            tokens = pick(
                context.next_logits(),
                chance=draw([generators[number] for number in numbers]),
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
            )
            for number, token in zip(numbers, tokens.tolist(), strict=True):
                new[number] = token
            context.append(tokens.to(model.device))
        yield new


def draw(generators: Sequence[torch.Generator]) -> Tensor:
    """A number in [0, 1) of each, (B,)."""
    return torch.stack(
        [torch.rand((), dtype=torch.float64, generator=generator) for generator in generators]
    )


def pick(
    logits: Tensor,
    *,
    chance: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """A token (B,) for each row of logits (B, V): the one in whose share of softmax(logits /
    temperature) `chance` (B,) falls, the likeliest first.

    `temperature` 0 takes the likeliest. `top_k` keeps the k likeliest; `top_p` then keeps the
    fewest of them that together have that probability (Holtzman 2020). It is done on the CPU in
    float64, so that the same seed gives the same text on every device that computes the same
    logits.
    """
    logits = logits.cpu().double()
    if temperature == 0:
        return logits.argmax(dim=-1)
    if top_k is None and top_p is None:  # the order is all the same
        return place_of(chance, (logits / temperature).softmax(dim=-1).cumsum(dim=-1))[:, 0]
    logits, tokens = logits.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        logits = logits[:, :top_k]
    probabilities = (logits / temperature).softmax(dim=-1)
    up_to = probabilities.cumsum(dim=-1)
    if top_p is not None:
        up_to = up_to.masked_fill(up_to - probabilities >= top_p, 0.0)
    return tokens.gather(1, place_of(chance, up_to))[:, 0]


def place_of(chance: Tensor, up_to: Tensor) -> Tensor:
    """Of rows of growing sums (B, V), zeros after their end, the first place (B, 1) at which one is
    above `chance` (B,), a share of the largest."""
    limit = chance[:, None] * up_to.amax(dim=-1, keepdim=True)
    return (up_to > limit).to(torch.uint8).argmax(dim=-1, keepdim=True)


def generate_text(
    model: GPT, tokenizer: "Tokenizer", prompt: str, *, seed: int, **options: Any
) -> Iterator[str]:
    """The text that follows `prompt`: `generate_texts` of one."""
    for (piece,) in generate_texts(model, tokenizer, prompt, seeds=[seed], **options):
        yield piece


def generate_texts(
    model: GPT,
    tokenizer: "Tokenizer",
    prompt: str,
    *,
    max_new_tokens: int,
    seeds: Sequence[int],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Sequence[str] = (),
    read_one: Read | None = None,
) -> Iterator[list[str]]:
    """The texts that follow `prompt`, one for each of `seeds`, in pieces that are never half a
    character: what each has got more, every time that one has.

    An empty prompt starts a document. A text ends at `max_new_tokens`, at the end of the document,
    or before the first of the `stop` texts. Bytes that are not UTF-8 become U+FFFD.

    Raises ValueError when the vocabulary cannot say the prompt, a stop text is empty, or a setting
    is out of range.
    """
    if "" in stop:
        raise ValueError("stop='' is empty: it would end every text before it begins")
    start = tokenizer.encode_prompt(prompt) or [tokenizer.end_of_text]
    texts = [Text(tokenizer, stop) for _ in seeds]
    for tokens in generate_tokens(
        model,
        [start] * len(seeds),
        max_new_tokens=max_new_tokens,
        seeds=seeds,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        read_one=read_one,
    ):
        pieces = [text.take(token) for text, token in zip(texts, tokens, strict=True)]
        if any(pieces):
            yield pieces
        if all(text.ended for text in texts):
            return
    yield [text.rest() for text in texts]


class Text:
    """Tokens as they come, as text that is never half a character, up to the end of the document or
    to the first of the `stop` texts."""

    def __init__(self, tokenizer: "Tokenizer", stop: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stop = stop
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # What may turn out to be the beginning of a stop text is held back.
        self.held = max((len(text) for text in stop), default=1) - 1
        self.pending = ""
        self.ended = False

    def take(self, token: int) -> str:
        """What can be told now."""
        if self.ended:
            return ""
        if token == self.tokenizer.end_of_text:
            return self.rest()
        self.pending += self.decoder.decode(self.tokenizer.token_bytes(token))
        found = [(self.pending.find(text), text) for text in self.stop if text in self.pending]
        if found:
            # The one that is complete first, however the text falls into tokens.
            _, start = min((start + len(text), start) for start, text in found)
            self.ended = True
            return self.pending[:start]
        ready = max(0, len(self.pending) - self.held)
        piece, self.pending = self.pending[:ready], self.pending[ready:]
        return piece

    def rest(self) -> str:
        """What was held back, and the end."""
        if self.ended:
            return ""
        self.ended = True
        return self.pending + self.decoder.decode(b"", final=True)


@torch.no_grad()
def compile_reading(model: GPT) -> Read:
    """`model.next_logits` compiled for single tokens, at any place of a text.

    It takes tens of seconds on a CPU. Raises ValueError when it cannot be done here.
    """
    from torch._dynamo.exc import TorchDynamoException  # takes a second to import

    read = torch.compile(model.next_logits, dynamic=True)
    cache = model.make_cache(1)
    try:
        for _ in range(min(3, model.block_size)):  # the first two places are special
            read(torch.zeros(1, 1, dtype=torch.long, device=model.device), cache)
    except (TorchDynamoException, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"compile=true: the model cannot be compiled ({reason})") from error
    return read


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
