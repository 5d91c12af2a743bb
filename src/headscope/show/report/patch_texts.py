"""Activation patching between two texts, from the keys of the command analyze.

Shapes: T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch

from headscope.analysis.patching import (
    ContinuationLoss,
    LogitDifference,
    PatchingResult,
    patch_heads,
)
from headscope.errors import UserError
from headscope.trained import TrainedModel


@dataclass(frozen=True)
class PatchedTexts:
    """Two texts of T tokens, and what exchanging each head between them does.

    - `clean`, `corrupted`: printable texts of the tokens, including the continuation if there is
      one.
    - `metric`: a description of the metric that compares them.
    - `position`: the token at which heads are replaced, from 0, or None for all tokens.
    """

    clean: list[str]
    corrupted: list[str]
    metric: str
    position: int | None
    result: PatchingResult


def patch_texts(
    loaded: TrainedModel,
    *,
    clean: str | None,
    corrupted: str | None,
    answers: Sequence[str] | None = None,
    continuation: str | None = None,
    position: int | None = None,
) -> PatchedTexts:
    """Exchange each head between two texts. The metric is one of these:

    - with `answers`: the logit of the first answer minus the logit of the second answer, at the
      last token. Each answer must be a single token.
    - with `continuation`: the mean loss on the tokens of this text, which follow both texts.

    Raises UserError if a text is missing or longer than `block_size`, if the two texts are equal or
    have different numbers of tokens, if an answer is not a single token, or if the metric is the
    same on both texts, because there is nothing to restore.
    """
    tokenizer = loaded.tokenizer
    if not clean or not corrupted:
        raise UserError("patch.clean= and patch.corrupted=: one is missing; give both texts")
    tokens = [tokenizer.encode_prompt(text) for text in (clean, corrupted)]
    if len(tokens[0]) != len(tokens[1]):
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(*tokens, strict=False))
        same = len([*alike])
        first, second = (tokenizer.labels(of_text[same : same + 8]) for of_text in tokens)
        raise UserError(
            f"patch.clean and patch.corrupted have {len(tokens[0])} and {len(tokens[1])} tokens: "
            "change a text until both have the same number; from the first difference, clean has "
            f"{first} and corrupted {second}"
        )
    if tokens[0] == tokens[1]:
        raise UserError("patch.clean and patch.corrupted are the same text: change a token of one")
    if (answers is None) == (continuation is None):
        raise UserError("patch.answers and patch.continuation: give one of them, as the metric")
    metric: LogitDifference | ContinuationLoss
    if answers is not None:
        if len(answers) != 2 or answers[0] == answers[1]:
            advice = 'give the answer to the clean text and another one, such as [" Mary"," John"]'
            raise UserError(f"patch.answers={list(answers)} must be two different texts: {advice}")
        pair = [tokenizer.only_token(answer, key="patch.answers") for answer in answers]
        metric = LogitDifference(*pair)
        right, wrong = tokenizer.labels(pair)
        name = f"the logit of {right} minus the logit of {wrong} at the last token"
    else:
        following = tokenizer.typed(begin=False).encode_prompt(continuation or "")
        if not following:
            raise UserError("patch.continuation is empty: give at least one token")
        metric = ContinuationLoss(tuple(following))
        tokens = [[*of_text, *following] for of_text in tokens]
        name = f"the loss in nats per token on {''.join(tokenizer.labels(following))}"
    length = len(tokens[0])
    if length > loaded.model.block_size:
        more = " with patch.continuation" if answers is None else ""
        limit = f"more than the model's block_size={loaded.model.block_size}"
        raise UserError(f"patch.clean has {length} tokens{more}, {limit}: shorten both texts")
    texts = [torch.tensor(of_text) for of_text in tokens]
    result = patch_heads(loaded.model, texts[0], texts[1], metric, position=position)
    if result.clean == result.corrupted:
        problem = f"{name} is {result.clean:.4f} on both"
        advice = "there is no difference that a head could carry; change the corrupted text or the"
        raise UserError(f"patch.clean and patch.corrupted: {problem}: {advice} answers")
    first_labels, second_labels = map(tokenizer.labels, tokens)
    return PatchedTexts(first_labels, second_labels, name, position, result)
