"""The texts of activation patching, from the keys of the command analyze.

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

    def run(self, loaded: TrainedModel) -> PatchingResult:
        """Exchange each head between the two texts. Raises UserError if the metric is the same on
        both texts, because there is nothing to restore."""
        clean, corrupted = torch.tensor(self.clean), torch.tensor(self.corrupted)
        result = patch_heads(loaded.model, clean, corrupted, self.metric, position=self.position)
        if result.clean == result.corrupted:
            both = f"{self.metric_name} is {result.clean:.4f} on both"
            problem = f"{both}: there is no difference that a head could carry"
            advice = "change the corrupted text or the answers"
            raise UserError(f"patch.clean and patch.corrupted: {problem}; {advice}")
        return result


def patch_texts(
    loaded: TrainedModel,
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

    Raises UserError if a text is missing or longer than `block_size`, if the two texts are equal or
    have different numbers of tokens, or if an answer is not a single token.
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
        following = tokenizer.encode_prompt(continuation or "")
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
    clean_labels, corrupted_labels = map(tokenizer.labels, tokens)
    return PatchTexts(tokens[0], tokens[1], clean_labels, corrupted_labels, metric, name, position)
