"""Text from a model, as it comes."""

import codecs
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headscope.generation.picking import check_stop
from headscope.generation.tokens import Read, generate_tokens
from headscope.nn import GPT

if TYPE_CHECKING:
    from headscope.data.tokenizer import Tokenizer


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

    Raises UserError when the vocabulary cannot say the prompt, a stop text is empty, or a setting
    is out of range.
    """
    check_stop(stop)
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
