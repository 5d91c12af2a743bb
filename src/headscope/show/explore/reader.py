"""Answers the requests of the page for a reading of a text, with some heads switched."""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from headscope.analysis.ablation import ablated_heads, halved_heads, mean_outputs
from headscope.analysis.activations import predict
from headscope.analysis.head_outputs import parse_head
from headscope.analysis.reading import Reading
from headscope.analysis.snapshot import snapshot
from headscope.data.labels import visible
from headscope.data.tokenizer import CharTokenizer, splits_characters
from headscope.errors import UserError
from headscope.machine import available_memory
from headscope.nn import GPT
from headscope.nn.checks import token_ids
from headscope.show.explore.models import Models, OpenModel
from headscope.show.explore.protocol import (
    VERSION,
    ExamplesRequest,
    OpenRequest,
    ReadRequest,
    Sampling,
    SwitchedText,
)
from headscope.show.reading_page import shown_run
from headscope.trained import TrainedModel
from headscope.trained.generation.choose_token import check_sampling, distribution, probabilities_of

TOP = 10
"""The number of tokens that are listed after a position."""
KEPT, KEPT_BYTES = 16, 128 * 2**20
"""Maximum number and total size of the forward passes of a model that are kept. The last one is
kept whatever its size."""

MAPS = 7
"""How much memory a reading uses at its peak: this number of copies of all attention weights."""


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text: `every` one, and `tokens`, the last `block_size`, which a model reads.
    `unknown` are the characters without a token, with their places in the text."""

    every: list[int]
    tokens: list[int]
    unknown: list[dict[str, Any]]


def encode(loaded: TrainedModel, request: SwitchedText) -> Encoded:
    """Encodes the text of a request, or takes its token ids. An empty text begins a new document.
    Raises UserError if both or neither are given, or if a token is not in the vocabulary."""
    text, tokens = request.text, request.tokens
    if (text is None) == (tokens is None):
        raise UserError("give either a text or tokens")
    tokenizer, unknown = loaded.tokenizer.typed(**request.typing()), []
    if isinstance(tokenizer, CharTokenizer) and text and not tokenizer.reads_special:
        known = set(tokenizer.alphabet)
        unknown = [
            {"at": at, "character": character, "label": visible(character)}
            for at, character in enumerate(text)
            if character not in known
        ]
        text = "".join(character for character in text if character in known)
    if text is not None:
        tokens = tokenizer.encode_prompt(text)
    every = token_ids(tokens or [tokenizer.first_token()], tokenizer.vocab_size)
    return Encoded(every, every[-loaded.model.block_size :], unknown)


class Switches:
    """The heads that a request switches off, to their mean output on a text, or to half."""

    def __init__(self, model: GPT, request: SwitchedText, tokens: list[int]) -> None:
        """`tokens` are the text for the mean. Raises UserError for unknown or repeated heads."""
        self.model = model
        self.zero, self.mean, self.half = (
            [parse_head(name[:80], model) for name in heads]
            for heads in request.switches().values()
        )
        heads = [*self.zero, *self.mean, *self.half]
        if len(set(heads)) < len(heads):
            raise UserError("a head is switched twice: name it once, in zero, mean or half")
        text = torch.tensor([tokens], device=model.device)
        self.means = mean_outputs(model, text) if self.mean else None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside this `with` block, the heads are switched."""
        at_mean = ablated_heads(self.model, self.mean, self.means)
        with ablated_heads(self.model, self.zero), at_mean, halved_heads(self.model, self.half):
            yield


class Reader:
    """Answers requests with the models that the page offers. The last forward passes of each model
    are kept, so that selecting another head or token needs no new one."""

    def __init__(self, models: Models) -> None:
        self.models = models

    def open(self, request: OpenRequest) -> dict[str, Any]:
        """The models that the page offers, and the description of one of them."""
        chosen = self.models.get(request.model)
        return {"protocol": VERSION, "models": self.models.listed, **chosen.describe()}

    def examples(self, request: ExamplesRequest) -> dict[str, Any]:
        """What a head does elsewhere, with all heads on. Raises UserError if there is no such head,
        or if the validation split of the model is not here."""
        chosen = self.models.get(request.model)
        layer, head = parse_head(request.head[:80], chosen.loaded.model)
        return chosen.examples[layer][head]

    @torch.no_grad()
    def read(self, request: ReadRequest) -> dict[str, Any]:
        """A model's reading of a text: attention, losses and predictions, as docs/explore.md
        explains, and the reading `against` which it is compared. Raises UserError if a model cannot
        answer the request."""
        check_sampling(max_new_tokens=0, **request.options())
        answer, *others = [self.side(side) for side in self.sides(request)]
        return {**answer, "against": others[0] if others else None}

    def sides(self, request: ReadRequest) -> list[ReadRequest]:
        """The request, and that for the reading `against` which it is compared, if there is one.
        Both list the likely tokens of either side, and are about the same token: the one that the
        model expects with all heads on. A model with another vocabulary reads the text, and says
        what it expects at its end."""
        against = request.against
        if against is None:
            return [request]
        chosen, other = (self.models.get(each.model) for each in (request, against))
        layers = [layer for layer in request.layers if layer < len(other.loaded.model.blocks)]
        _, text, plain = self.forward(replace(request, **SwitchedText().switches()))
        target = target_of(request, plain)
        same: Any = {"text": None, "tokens": text.every, "begin": None, "special": None}
        same |= {"model": other.name, "layers": layers, **against.switches()}
        compared = replace(request, **same)
        if other.labels != chosen.labels:
            asks = request.typing()["question"]
            written = request.text if asks else chosen.loaded.tokenizer.decode(text.every)
            asks = asks and other.loaded.tokenizer.chat_template is not None
            its: Any = {"text": written, "tokens": None, "question": asks, "position": -1}
            compared = replace(compared, **its, target=None, also=[])
            return [replace(request, target=target), compared]
        # Counted from the end, because the other model may read fewer of the last tokens.
        place = plain.position(request.position) - plain.tokens.size(-1)
        _, read, _ = self.forward(compared)
        compared = replace(compared, position=place if place + len(read.tokens) >= 0 else -1)
        likely = []
        for side in (compared, request):  # in this order, the last ones are kept
            _, _, reading = self.forward(side)
            likely += top(logits_after(reading, side.position))
        also = [*request.also, *likely, target]
        return [replace(side, target=target, also=also) for side in (request, compared)]

    def side(self, request: ReadRequest) -> dict[str, Any]:
        """The answer for one side."""
        chosen, text, reading = self.forward(request)
        model, position = reading.model, reading.position(request.position)
        logits, target = logits_after(reading, position), target_of(request, reading)
        token_ids([target, *request.also], model.vocab_size)
        if not set(request.layers) <= set(range(len(model.blocks))):
            raise UserError(f"layers: there is no such layer; name 0 to {len(model.blocks) - 1}")
        switched = [*request.zero, *request.mean, *request.half]
        header = {**reading.header(), **chosen.record.header(), "switched": switched}
        predictions = predict(reading, {position: target}, count=TOP, layers=request.layers)
        label_of = chosen.labels.__getitem__
        shown = snapshot(header, reading.weights(), predictions, label_of, request.layers)
        typing = request.typing()
        typing["special"] = typing.pop("question") or request.special
        typist = chosen.loaded.tokenizer.typed(**typing)
        written = typist.decode_prompt(text.every)
        run = shown_run("", [shown], [reading.loss()])
        return {
            "history": run["history"],
            "parts": {key: b64encode(part).decode() for key, part in run["parts"].items()},
            "text": written,
            "same": (typist.encode_prompt(written) or [typist.first_token()]) == text.every,
            "ids": text.every,
            "unknown": text.unknown,
            "split": splits_characters(chosen.loaded.tokenizer, written),
            "loss": reading.loss(),
            "position": position,
            "target": chosen.named(target),
            "deciders_seconds": chosen.deciders_seconds(len(text.tokens)),
            **likely(chosen, logits, request, request.also),
        }

    def forward(self, request: SwitchedText) -> tuple[OpenModel, Encoded, Reading]:
        """The model and the text of a request, and the reading with the switched heads."""
        chosen = self.models.get(request.model)
        text = encode(chosen.loaded, request)
        heads = [sorted(names) for names in request.switches().values()]
        whole, kept = len(text.tokens) == len(text.every), chosen.passes
        key = (*text.tokens,), whole, str(heads)
        if key in kept:
            kept.move_to_end(key)
            return chosen, text, kept[key]
        layers = chosen.loaded.model.attentions
        needed = MAPS * len(layers) * layers[0].heads * len(text.tokens) ** 2 * 4  # float32
        if needed > available_memory():
            problem = f"the attention of {len(text.tokens):,} tokens needs {needed / 1e9:.1f} GB"
            raise UserError(f"{problem} of memory, more than is left: shorten the text")
        with Switches(chosen.loaded.model, request, text.tokens).on():
            reading = chosen.loaded.read(text.tokens, begun=whole)
        if kept:
            reading.with_text = kept[next(reversed(kept))].with_text  # it is slow to compute
        if kept and not request.mean:  # the mean over a text depends on all of it
            before = next(reversed(kept))
            equal = takewhile(lambda pair: pair[0] == pair[1], zip(before[0], key[0], strict=False))
            if before[1:] == key[1:]:
                reading.known_losses = kept[before].losses[: max(0, len([*equal]) - 1)]
        kept[key] = reading
        while len(kept) > KEPT or (
            len(kept) > 1 and sum(reading.nbytes for reading in kept.values()) > KEPT_BYTES
        ):
            kept.popitem(last=False)
        return chosen, text, kept[key]


def logits_after(reading: Reading, position: int) -> Tensor:
    """The logits (V,) after the token at a position, in float64."""
    position = reading.position(position)
    return reading.model.unembed(reading.residual[-1, position : position + 1])[0].cpu().double()


def target_of(request: ReadRequest, reading: Reading) -> int:
    """The token that a request is about: by default the next one, or the most likely one."""
    if request.target is not None:
        return request.target
    following = reading.tokens[reading.position(request.position) + 1 :]
    return int(following[0] if len(following) else logits_after(reading, -1).argmax())


def top(logits: Tensor) -> list[int]:
    """The TOP most likely tokens by logits (V,)."""
    return logits.topk(min(TOP, len(logits))).indices.tolist()


def likely(chosen: OpenModel, logits: Tensor, asked: Sampling, also: list[int]) -> dict[str, Any]:
    """Two entries of an answer. `next`: the most likely tokens by logits (V,) and the tokens
    `also`, with their probabilities before and after temperature, top_k and top_p. `removed`: the
    total probability of the tokens that are never sampled, at this temperature, or at 1 if it is 0.
    """
    sampled = distribution(logits[None], **asked.options())[0]
    probabilities = logits.softmax(dim=-1)
    scaled = probabilities_of(logits, asked.temperature or 1.0)
    return {
        "next": chosen.listed([*top(logits), *also], probability=probabilities, sampled=sampled),
        "removed": float(scaled[sampled == 0].sum()),
    }
