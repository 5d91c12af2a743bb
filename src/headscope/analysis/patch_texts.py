"""Activation patching with texts: encodes and checks the two texts and the metric.

The keys in the error messages are the keys `patch.*` of scripts/analyze.py.

Shapes: T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from headscope.analysis.patching import (
    ContinuationLoss,
    LogitDifference,
    PatchingResult,
    patch_heads,
)
from headscope.data.labels import token_labels
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError

if TYPE_CHECKING:
    from headscope.trained import TrainedModel


@dataclass(frozen=True)
class PatchTexts:
    """Two texts of T tokens, and the metric that compares them.

    - `clean`, `corrupted`: the tokens of the texts, including the continuation if there is one.
    - `clean_labels`, `corrupted_labels`: printable texts of these tokens.
    - `metric` and its description `metric_name`.
    - `position`: the token at which heads are replaced, from 0, or None for all tokens.
    """

    clean: list[int]
    corrupted: list[int]
    clean_labels: list[str]
    corrupted_labels: list[str]
    metric: LogitDifference | ContinuationLoss
    metric_name: str
    position: int | None

    def run(self, loaded: "TrainedModel") -> PatchingResult:
        """Exchange each head between the two texts. Raises UserError if the metric is the same on
        both texts, because there is nothing to restore."""
        result = patch_heads(
            loaded.model,
            torch.tensor(self.clean),
            torch.tensor(self.corrupted),
            self.metric,
            position=self.position,
        )
        if result.clean == result.corrupted:
            raise UserError(
                f"patch.clean and patch.corrupted: {self.metric_name} is {result.clean:.4f} on "
                "both, so there is no difference that a head could carry: change the corrupted "
                "text or the answers"
            )
        return result


def patch_texts(
    loaded: "TrainedModel",
    *,
    clean: str | None,
    corrupted: str | None,
    answers: Sequence[str] | None = None,
    continuation: str | None = None,
    position: int | None = None,
) -> PatchTexts:
    """Encode two texts for activation patching. The metric is one of these:

    - with `answers`: the logit of the first answer minus the logit of the second answer, at the
      last token. Each answer must be a single token.
    - with `continuation`: the mean loss on the tokens of this text, which follow both texts.

    Raises UserError if a text is missing or does not fit in `block_size`, if the two texts are
    equal or have different numbers of tokens, if an answer is not a single token, or if `position`
    is not a token of the texts.
    """
    tokenizer = loaded.tokenizer
    for key, text in (("clean", clean), ("corrupted", corrupted)):
        if not text:
            raise UserError(f"patch.{key} is missing: give both patch.clean= and patch.corrupted=")
    assert clean
    assert corrupted
    tokens = [tokenizer.encode_prompt(text) for text in (clean, corrupted)]
    check_lengths(*(labels_of(tokenizer, each) for each in tokens))
    if tokens[0] == tokens[1]:
        raise UserError(
            "patch.clean and patch.corrupted are the same text: change a token of one of them"
        )
    if (answers is None) == (continuation is None):
        raise UserError(
            "patch.answers and patch.continuation: give one of them, as the metric of the patching"
        )
    metric: LogitDifference | ContinuationLoss
    if answers is not None:
        metric = LogitDifference(*answer_tokens(tokenizer, answers))
        right, wrong = labels_of(tokenizer, [metric.right, metric.wrong])
        name = f"the logit of {right} minus the logit of {wrong} at the last token"
    else:
        following = tokenizer.encode_prompt(continuation or "")
        if not following:
            raise UserError("patch.continuation is empty: give at least one token")
        metric = ContinuationLoss(tuple(following))
        tokens = [[*each, *following] for each in tokens]
        name = f"the loss in nats per token on {''.join(labels_of(tokenizer, following))}"
    length = len(tokens[0])
    if length > loaded.model.block_size:
        more = " with patch.continuation" if answers is None else ""
        raise UserError(
            f"patch.clean has {length} tokens{more}, more than the model's block_size="
            f"{loaded.model.block_size}: shorten both texts"
        )
    if position is not None and not 0 <= position < length:
        raise UserError(
            f"patch.position={position} is not a token of the texts: give 0 to {length - 1}, or "
            "null for all tokens"
        )
    return PatchTexts(
        clean=tokens[0],
        corrupted=tokens[1],
        clean_labels=labels_of(tokenizer, tokens[0]),
        corrupted_labels=labels_of(tokenizer, tokens[1]),
        metric=metric,
        metric_name=name,
        position=position,
    )


def labels_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    return token_labels(map(tokenizer.token_bytes, tokens))


def check_lengths(clean: Sequence[str], corrupted: Sequence[str]) -> None:
    """Raises UserError if two texts, given as labels of their tokens, do not have the same number
    of tokens."""
    if len(clean) != len(corrupted):
        same = next(
            (n for n, pair in enumerate(zip(clean, corrupted, strict=False)) if len(set(pair)) > 1),
            min(len(clean), len(corrupted)),
        )
        raise UserError(
            f"patch.clean and patch.corrupted have {len(clean)} and {len(corrupted)} tokens: "
            "change a text until both have the same number; from the first difference, clean has "
            f"{list(clean[same : same + 8])} and corrupted {list(corrupted[same : same + 8])}"
        )


def answer_tokens(tokenizer: Tokenizer, answers: Sequence[str]) -> list[int]:
    """The tokens of the two answers. Raises UserError if there are not two answers, or if one of
    them is not a single token."""
    if len(answers) != 2 or answers[0] == answers[1]:
        raise UserError(
            f"patch.answers={list(answers)} must be two different texts: the answer to the clean "
            'text and another one, such as patch.answers=\'[" Mary"," John"]\''
        )
    tokens = []
    for answer in answers:
        encoded = tokenizer.encode_prompt(answer)
        if len(encoded) != 1:
            parts = f" ({', '.join(labels_of(tokenizer, encoded[:8]))})" if encoded else ""
            raise UserError(
                f"patch.answers: {answer!r} has {len(encoded)} tokens{parts} and must have one: "
                "choose another answer; a space before a word is often a part of its token"
            )
        tokens += encoded
    return tokens
