"""Answers to the requests of the page: what a model reads, writes, and does with patched heads.

Shapes: L layers, H heads, T tokens, C embed_dim, V vocab_size.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.ablation import ablated_heads, halved_heads, mean_outputs
from headscope.analysis.direct_effects import attribution, fold_into, norm_scale
from headscope.analysis.head_outputs import (
    MAX_BATCH,
    head_outputs,
    measure_replacements,
    parse_head,
    replaced_heads,
)
from headscope.analysis.patching import LogitDifference
from headscope.analysis.trace import Trace
from headscope.conversion.loaded import Loaded
from headscope.data.labels import visible
from headscope.data.tokenizer import CharTokenizer
from headscope.errors import UserError
from headscope.explore.models import Models, OpenModel
from headscope.explore.protocol import VERSION, Open, Patch, Read, Reading, Sampling, Write
from headscope.generation import check_sampling
from headscope.generation.choose_token import (
    check_chosen,
    choose_tokens,
    distribution,
    probabilities_of,
    uniform_numbers,
)
from headscope.generation.texts import Text
from headscope.generation.tokens import Context
from headscope.nn import GPT
from headscope.nn.checks import check_finite, token_ids
from headscope.nn.loss import IGNORED, next_token_loss
from headscope.viewer.snapshot import shares, thumbnails

TOP = 10
"""The number of tokens that are listed after a position."""
RAISED = 5
KEPT, KEPT_BYTES = 16, 128 * 2**20
"""Maximum number and size of the forward passes of a model that are kept. The last one is always
kept."""


@dataclass(frozen=True)
class Encoded:
    """The tokens `every` of a text, and those that a model reads: the last `block_size` of them.
    `unknown` are the characters that the vocabulary lacks, with their places in the text. They are
    left out."""

    every: list[int]
    tokens: list[int]
    unknown: list[dict[str, Any]]


def encode(loaded: Loaded, text: str | None, tokens: Sequence[int] | None) -> Encoded:
    """The tokens of a text, or token ids. An empty text is a new document. Raises UserError if both
    or neither are given, or if a token is not in the vocabulary."""
    if (text is None) == (tokens is None):
        raise UserError("give either a text or tokens")
    tokenizer, unknown = loaded.tokenizer, []
    if isinstance(tokenizer, CharTokenizer) and text is not None:
        known = set(tokenizer.alphabet)
        unknown = [
            {"at": at, "character": each, "label": visible(each)}
            for at, each in enumerate(text)
            if each not in known
        ]
        text = "".join(each for each in text if each in known)
    if text is not None:
        tokens = tokenizer.encode_prompt(text)
    every = token_ids(tokens or [tokenizer.first_token()], tokenizer.vocab_size)
    return Encoded(every, every[-loaded.model.block_size :], unknown)


class Switches:
    """The heads that a request switches off, to their mean output on the text, or to half."""

    def __init__(self, model: GPT, request: Reading, tokens: list[int]) -> None:
        """Raises UserError if there is no such head, or if a head is named twice."""
        self.model = model
        self.zero, self.mean, self.half = (
            [parse_head(name[:80], model) for name in heads]
            for heads in (request.zero, request.mean, request.half)
        )
        heads = [*self.zero, *self.mean, *self.half]
        if len(set(heads)) < len(heads):
            raise UserError("a head is switched twice: name it once, in zero, mean or half")
        text = torch.tensor([tokens], device=model.device)
        self.means = mean_outputs(model, text, 1) if self.mean else None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside this `with` block, the heads are switched."""
        with ExitStack() as stack:
            stack.enter_context(ablated_heads(self.model, self.zero))
            stack.enter_context(ablated_heads(self.model, self.mean, self.means))
            stack.enter_context(halved_heads(self.model, self.half))
            yield


Forward = tuple[OpenModel, Encoded, Trace, list[float]]


class Explorer:
    """Answers requests with the models that the page offers. The last forward passes of each model
    are kept, so that a click on another head or token needs no new one."""

    def __init__(self, models: Models) -> None:
        self.models = models

    def open(self, request: Open) -> dict[str, Any]:
        """The models that the page offers, and the description of one of them."""
        chosen = self.models.get(request.model)
        return {"protocol": VERSION, "models": self.models.listed, **chosen.describe()}

    @torch.no_grad()
    def read(self, request: Read) -> dict[str, Any]:
        """What a model makes of a text, as docs/explore.md explains. Raises UserError if the
        request does not fit the model."""
        check(request)
        chosen, text, found, losses = self.forward(request)
        loaded, model = chosen.loaded, chosen.loaded.model
        length = len(text.tokens)
        if not -length <= request.position < length:
            raise UserError(f"position={request.position}: the text has {length} tokens")
        position = request.position % length
        logits = model.unembed(found.residual[:, position]).cpu().double()  # (L + 1, V)
        check_finite(logits)
        following = (*text.tokens, None)[position + 1]
        target = request.target
        if target is None:
            target = int(logits[-1].argmax()) if following is None else following
        token_ids([target, *request.also], model.vocab_size)
        scaled = found.heads[:, :, position] * norm_scale(model.norm, found.residual[-1, position])
        weight = model.head.weight.float()
        raised = fold_into(model.norm, scaled).float()  # (L, H, C)
        mean = raised @ weight.mean(dim=0)  # of what each head adds to all logits
        pushes = raised @ weight[target] - mean
        written = loaded.tokenizer.decode(text.every)
        answer: dict[str, Any] = {
            "text": written,
            "same": encode(loaded, written, None).every == text.every,
            "ids": text.every,
            "unknown": text.unknown,
            "tokens": [
                {"id": token, "label": label, "loss": loss}
                for token, label, loss in zip(
                    text.tokens, loaded.tokenizer.labels(text.tokens), [None, *losses], strict=True
                )
            ],
            "loss": mean_loss(loaded, text, losses),
            "position": position,
            "target": chosen.named(target),
            **likely(chosen, logits[-1], request, request.also),
            "lens": [
                chosen.named(
                    int(row.argmax()), probability=float(row.max()), target=float(row[target])
                )
                for row in logits.softmax(dim=-1)
            ],
            "attribution": {
                name: float(share)
                for name, share in attribution(model, found, position, target).items()
            },
            "pushes": pushes.flatten().tolist(),
        }
        if request.head is not None:
            layer, head = parse_head(request.head[:80], model)
            added = weight @ raised[layer, head] - mean[layer, head]
            values, tokens = added.topk(min(RAISED, model.vocab_size))
            pairs = zip(tokens.tolist(), values.tolist(), strict=True)
            answer["raised"] = [chosen.named(token, push=value) for token, value in pairs]
        layers = range(len(model.blocks))
        if not set(request.attention) <= set(layers):
            raise UserError(f"attention: there is no such layer; name 0 to {layers[-1]}")
        answer["attention"] = {
            layer: packed(past(found.attention[layer].float().cpu().numpy()).astype("<f4"))
            for layer in {*request.attention}
        }
        if request.thumbnails:
            weights = found.attention.float().cpu().numpy()
            small = np.stack([thumbnails(weights), thumbnails(shares(weights))])
            answer["thumbnails"] = packed(np.rint(255 * small).astype(np.uint8))
        return answer

    def forward(self, request: Reading) -> Forward:
        """The model and the text of a request, the forward pass with the switched heads, and the
        loss of each token after the first one. Its logits are left out, because they are large."""
        chosen = self.models.get(request.model)
        text = encode(chosen.loaded, request.text, request.tokens)
        heads = [sorted(each) for each in (request.zero, request.mean, request.half)]
        key, kept = str((text.tokens, heads)), chosen.passes
        if key in kept:
            kept.move_to_end(key)
            found, losses, _ = kept[key]
            return chosen, text, found, losses
        with Switches(chosen.loaded.model, request, text.tokens).on():
            found = chosen.loaded.trace(text.tokens)
        check_finite(found.logits)
        losses = next_token_loss(found.logits[:-1], found.tokens[1:], reduction="none").tolist()
        found = replace(found, logits=found.logits[:0].clone(), of_layers={})
        tensors = (found.attention, found.residual, found.heads, found.feed_forward, found.rest)
        kept[key] = found, losses, sum(tensor.nbytes for tensor in tensors)
        while len(kept) > 1 and (
            len(kept) > KEPT or sum(size for *_, size in kept.values()) > KEPT_BYTES
        ):
            kept.popitem(last=False)
        return chosen, text, found, losses

    def write(self, request: Write) -> Iterator[dict[str, Any]]:
        """Yields one entry for each token that the model adds to a text. It chooses the same tokens
        as `generate`. With `skip`, it goes on where the model has already added this number of
        tokens. The text ends with the end-of-text token. Raises UserError if the request does not
        fit the model."""
        check(request)
        chosen = self.models.get(request.model)
        loaded, model = chosen.loaded, chosen.loaded.model
        every = encode(loaded, request.text, request.tokens).every
        start = length = prompt_length(every, request)
        for _ in every[start:]:  # as `Context` does
            length = 1 + (length if length <= model.block_size else max(1, model.block_size // 2))
        tokens = every[-length:]
        switches = Switches(model, request, every[:start][-model.block_size :])
        context = Context(model, torch.tensor([tokens], device=model.device))
        options, writer = sampling_of(request), Text(loaded.tokenizer, stop=())
        stream = islice(uniform_numbers([request.seed], model.device), request.skip, None)
        for more in reversed(range(request.max_new_tokens)):
            # The heads are switched during each step only: between two steps, the model answers
            # other requests.
            with torch.no_grad(), switches.on():
                logits = context.next_logits()
            new = choose_tokens(logits, uniform=next(stream), **options)
            check_chosen(new.tolist())
            context.append(new)
            token, probabilities = int(new), logits[0].cpu().double().softmax(dim=-1)
            text, probability = writer.take(token), float(probabilities[token])
            text += "" if more else writer.rest()
            yield chosen.named(token, text=text, probability=probability)
            if token == loaded.tokenizer.end_of_text:
                return

    @torch.no_grad()
    def patch(self, request: Patch) -> dict[str, Any]:
        """What the model predicts after a text, after the other text, and after the text with the
        outputs of some heads copied from the other text. If the texts differ in their number of
        tokens, the answer is this `problem`. Raises UserError if the request does not fit the
        model."""
        chosen = self.models.get(request.model)
        loaded, model = chosen.loaded, chosen.loaded.model
        encoded = [
            encode(loaded, request.text, request.tokens),
            encode(loaded, request.other, request.other_tokens),
        ]
        texts = [each.tokens for each in encoded]
        shown = {
            "tokens": [loaded.tokenizer.labels(tokens) for tokens in texts],
            "unknown": [each.unknown for each in encoded],
        }
        lengths = [len(tokens) for tokens in texts]
        if lengths[0] != lengths[1]:
            problem = (
                f"the texts have {lengths[0]} and {lengths[1]} tokens: change one of them until "
                "both have the same number"
            )
            return {**shown, "problem": problem}
        both = torch.tensor(texts, device=model.device)
        with Switches(model, request, texts[0]).on():
            before, other = model.next_logits(both).cpu().double()
            outputs = head_outputs(model, both[1:])
            with ExitStack() as stack:
                for copy in request.copies:
                    layer, head = parse_head(copy.head[:80], model)
                    at = slice(None)
                    if copy.position is not None:
                        if copy.position >= lengths[0]:
                            raise UserError(
                                f"position={copy.position}: the texts have {lengths[0]} tokens"
                            )
                        at = slice(copy.position, copy.position + 1)
                    new = outputs[layer][:, :, head]
                    every = torch.tensor([head], device=model.device)
                    stack.enter_context(replaced_heads(model.attentions[layer], every, new, at))
                after = model.next_logits(both[:1])[0].cpu().double()
            check_finite(torch.stack([before, other, after]))
            gain = other.softmax(dim=-1) - before.softmax(dim=-1)
            right = int(gain.argmax()) if request.right is None else request.right
            wrong = int(gain.argmin()) if request.wrong is None else request.wrong
            token_ids([right, wrong], model.vocab_size)
            effects = None
            if request.every_head:
                _, changed = measure_replacements(
                    model,
                    both[:1],
                    lambda x: LogitDifference(right, wrong)(model.unembed(x[:, -1:])),
                    lambda layer, heads: outputs[layer][0, :, heads].transpose(0, 1)[:, None],
                    max_batch=MAX_BATCH,
                )
                effects = changed.flatten().tolist()
        cases = {"before": before, "other": other, "after": after}
        listed = dict.fromkeys([right, wrong, *(n for each in cases.values() for n in top(each))])
        shares = {name: each.softmax(dim=-1) for name, each in cases.items()}
        return {
            **shown,
            "right": chosen.named(right),
            "wrong": chosen.named(wrong),
            "next": [
                chosen.named(token, **{name: float(each[token]) for name, each in shares.items()})
                for token in listed
            ],
            "difference": {name: float(each[right] - each[wrong]) for name, each in cases.items()},
            "every_head": effects,
        }


def top(logits: Tensor) -> list[int]:
    """The TOP most likely tokens by logits (V,)."""
    return logits.topk(min(TOP, len(logits))).indices.tolist()


def likely(
    chosen: OpenModel, logits: Tensor, sampling: Sampling, also: Sequence[int]
) -> dict[str, Any]:
    """`next`: the most likely tokens by logits (V,) and the tokens `also`, with their probabilities
    before and after temperature, top_k and top_p. `removed` is the probability of all tokens that
    these remove, at this temperature, or at 1 if it is 0."""
    sampled = distribution(logits[None], **sampling_of(sampling))[0]
    probabilities = logits.softmax(dim=-1)
    scaled = probabilities_of(logits, sampling.temperature or 1.0)
    return {
        "next": [
            chosen.named(
                token, probability=float(probabilities[token]), sampled=float(sampled[token])
            )
            for token in dict.fromkeys([*top(logits), *also])
        ],
        "removed": float(scaled[sampled == 0].sum()),
    }


def mean_loss(loaded: Loaded, text: Encoded, losses: Sequence[float]) -> float | None:
    """The mean of the `losses` of the tokens of a text after the first one, as far as the losses of
    the run count them. None if they count none."""
    tokens, whole = torch.tensor([text.tokens]), len(text.tokens) == len(text.every)
    counts = (loaded.targets(tokens, begun=whole)[0] != IGNORED).tolist()
    counted = [loss for loss, each in zip(losses, counts, strict=True) if each]
    return sum(counted) / len(counted) if counted else None


def prompt_length(every: list[int], request: Write) -> int:
    """The number of tokens before those that the model has written."""
    if request.skip >= len(every):
        raise UserError(f"skip={request.skip}: the text has {len(every)} tokens")
    return len(every) - request.skip


def sampling_of(request: Sampling) -> dict[str, Any]:
    return {"temperature": request.temperature, "top_k": request.top_k, "top_p": request.top_p}


def check(request: Sampling) -> None:
    check_sampling(max_new_tokens=0, **sampling_of(request))


def past(weights: np.ndarray) -> np.ndarray:
    """The weights (H, T (T + 1) / 2) of each query on the tokens up to its own, row by row."""
    queries, keys = np.tril_indices(weights.shape[-1])
    return weights[:, queries, keys]


def packed(values: np.ndarray) -> str:
    return b64encode(values.tobytes()).decode()
