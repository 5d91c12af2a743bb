"""Answers the requests of the page for text that a model writes, and for patched heads."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from time import perf_counter
from typing import Any

import torch

from headscope.analysis.ablation import parts_of
from headscope.analysis.head_outputs import (
    head_outputs,
    measure_replacements,
    parse_head,
    replaced_heads,
)
from headscope.analysis.patching import LogitDifference
from headscope.analysis.why import explanation
from headscope.errors import UserError
from headscope.nn.checks import token_ids
from headscope.nn.loss import check_finite
from headscope.show.explore.protocol import DecidersRequest, PatchRequest, WhyRequest, WriteRequest
from headscope.show.explore.reader import Reader, Switches, encode, top
from headscope.trained.generation.choose_token import (
    check_chosen,
    check_sampling,
    choose_tokens,
    uniform_numbers,
)
from headscope.trained.generation.generate import Context, Text

PAUSE = 0.05
"""Seconds after which a long computation lets other requests be answered."""


class Explorer(Reader):
    """A `Reader` that also writes and patches."""

    def write(self, request: WriteRequest) -> Iterator[dict[str, Any]]:
        """Yields one entry for each token that the model adds to a text, the same tokens as those
        of `generate`. With `skip`, the last `skip` tokens of the text were already written by the
        model, and it continues with the next random number. The text ends with the end-of-text
        token. Raises UserError if the model cannot answer the request."""
        check_sampling(max_new_tokens=0, **request.options())
        chosen = self.models.get(request.model)
        loaded, model = chosen.loaded, chosen.loaded.model
        every = encode(loaded, request).every
        start = length = prompt_length(every, request)
        for _ in every[start:]:  # as `Context` does
            length = 1 + (length if length <= model.block_size else max(1, model.block_size // 2))
        tokens = every[-length:]
        switches = Switches(model, request, every[:start][-model.block_size :])
        context = Context(model, torch.tensor([tokens], device=model.device))
        options, writer = request.options(), Text(loaded.tokenizer, stop=())
        stream = islice(uniform_numbers([request.seed], model.device), request.skip, None)
        for more in reversed(range(request.max_new_tokens)):
            # Heads are switched during a step only: between steps, it answers other requests.
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
    def deciders(self, request: DecidersRequest) -> Iterator[dict[str, Any]]:
        """Yields entries whose `rows` say how likely the token `target`, by default the most likely
        one, is without some of the parts (see `Reading.deciders_so_far`), and whose `share` of the
        parts has been measured. Raises UserError if the request does not fit the model."""
        _, _, reading = self.forward(request)
        every, done, last = len(parts_of(reading.model)), 0, perf_counter()
        for rows in reading.deciders_so_far(request.position, request.target, by=request.by):
            done += len(rows)
            if rows or perf_counter() - last > PAUSE:  # other requests are answered between two
                yield {"rows": rows, "share": done / every}
                last = perf_counter()

    def why(self, request: WhyRequest) -> dict[str, Any]:
        """How a head computes a weight, and why (see `headscope.analysis.why.explanation`). Raises
        UserError if the request does not fit the model."""
        _, _, reading = self.forward(request)
        return explanation(reading, request.head[:80], request.query, request.key)

    @torch.no_grad()
    def patch(self, request: PatchRequest) -> dict[str, Any]:
        """What the model predicts after a text, after the other text, and after the text with the
        outputs of some heads copied from the other text. If the texts have different numbers of
        tokens, the answer has only the entry `problem`, which says so, and the tokens. Raises
        UserError if the model cannot answer the request."""
        chosen = self.models.get(request.model)
        loaded, model = chosen.loaded, chosen.loaded.model
        other = replace(request, text=request.other, tokens=request.other_tokens)
        encoded = [encode(loaded, each) for each in (request, other)]
        texts = [text.tokens for text in encoded]
        shown = {
            "tokens": [loaded.tokenizer.labels(tokens) for tokens in texts],
            "unknown": [text.unknown for text in encoded],
        }
        lengths = [len(tokens) for tokens in texts]
        if lengths[0] != lengths[1]:
            sizes = f"the texts have {lengths[0]} and {lengths[1]} tokens"
            problem = f"{sizes}: change one of them until both have the same number"
            return {**shown, "problem": problem}
        both = torch.tensor(texts, device=model.device)
        with Switches(model, request, texts[0]).on():
            before, after_other = model.next_logits(both).cpu().double()
            outputs = head_outputs(model, both[1:])
            with ExitStack() as stack:
                for copy in request.copies:
                    layer, head = parse_head(copy.head[:80], model)
                    place = copy.position
                    if place is not None and place >= lengths[0]:
                        raise UserError(f"position={place}: the texts have {lengths[0]} tokens")
                    at = slice(None) if place is None else slice(place, place + 1)
                    new = outputs[layer][:, :, head]
                    stack.enter_context(replaced_heads(model.attentions[layer], head, new, at))
                after = model.next_logits(both[:1])[0].cpu().double()
            cases = {"before": before, "other": after_other, "after": after}
            check_finite(torch.stack([*cases.values()]))
            gain = after_other.softmax(dim=-1) - before.softmax(dim=-1)
            right = int(gain.argmax()) if request.right is None else request.right
            wrong = int(gain.argmin()) if request.wrong is None else request.wrong
            token_ids([right, wrong], model.vocab_size)
            effects = None
            if request.every_head:
                _, changed = measure_replacements(
                    model,
                    both[:1],
                    lambda x: LogitDifference(right, wrong)(model.unembed(x[:, -1:])),
                    [of_layer[0] for of_layer in outputs],
                )
                effects = changed.flatten().tolist()
        likely = [token for logits in cases.values() for token in top(logits)]
        shares = {name: logits.softmax(dim=-1) for name, logits in cases.items()}
        return {
            **shown,
            "right": chosen.named(right),
            "wrong": chosen.named(wrong),
            "next": chosen.listed([right, wrong, *likely], **shares),
            "difference": {name: float(row[right] - row[wrong]) for name, row in cases.items()},
            "every_head": effects,
        }


def prompt_length(every: list[int], request: WriteRequest) -> int:
    """The number of tokens before those that the model has written."""
    if request.skip >= len(every):
        raise UserError(f"skip={request.skip}: the text has {len(every)} tokens")
    return len(every) - request.skip
