"""What a head is called: a word for what it does, from its figures.

A figure counts by its excess over uniform attention: 0 for a head that looks at all it sees alike,
as an untrained one nearly does, and 1 at the most that is possible. The thresholds are ours. The
kinds are those of Voita 2019 (positional, rare tokens), Clark 2019 (punctuation), Xiao 2023 (first
token, other sinks), Olsson 2022 (induction), Wang 2022 (duplicate token) and Vig 2019 (distance).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.errors import UserError


@dataclass(frozen=True)
class Thresholds:
    """The least excess that gives a head its name, from 0 to 1; of `spread`, the least
    `global_strength` itself. A head whose `unevenness` is below `even` has no name.

    `frequent` and `rare` are a third: with half of the text frequent, such a head puts two thirds
    of its weight on that half, or on the other.
    """

    self: float = 0.4
    previous: float = 0.4
    next: float = 0.4
    first: float = 0.4
    induction: float = 0.3
    same_token: float = 0.3
    punctuation: float = 0.4
    single_key: float = 0.4
    adjacent: float = 0.5
    local: float = 0.5
    backward: float = 0.6
    forward: float = 0.6
    frequent: float = 0.33
    rare: float = 0.33
    short_range: float = 0.5
    spread: float = 0.5
    even: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise UserError(f"thresholds.{name}={value} must be from 0 to 1")


NARROW = {
    "self": "self",
    "previous": "previous-token",
    "next": "next-token",
    "first": "first-token",
    "induction": "induction",
    "same_token": "same-token",
    "punctuation": "punctuation",
    "single_key": "single-key",
    "adjacent": "adjacent",
}
"""Names of heads that look at few keys: the one furthest above its threshold is taken."""

BROAD = {
    "local": "local",
    "backward": "backward",
    "forward": "forward",
    "frequent": "frequent-token",
    "rare": "rare-token",
    "short_range": "short-range",
}
"""Names for where most of the weight lies: the first one above its threshold is taken."""

GLOBAL, MIXED, NONE = "global", "mixed", "-"


def head_types(
    figures: Mapping[str, Tensor],
    uniform: Mapping[str, float],
    *,
    causal: bool = True,
    thresholds: Thresholds | None = None,
) -> list[str]:
    """A word for every head, in the order of the figures' numbers.

    `figures` are those of `head_figures` and perhaps of `targets_in` and `repeat_figures`;
    `uniform` has the value that each takes for uniform attention. In this order:

    - "-": the weights are nearly uniform (`unevenness` below `even`);
    - a narrow name: self, previous-token, next-token, first-token, induction, same-token,
      punctuation, single-key (a sink other than the first token) or adjacent (previous and next
      alike), whichever is furthest above its threshold;
    - local (at most `LOCAL_WIDTH` tokens away), backward, forward;
    - frequent-token, rare-token: the weight is on the frequent half of the text, or on the other;
    - short-range: the mean distance is at most half of that of uniform attention;
    - global: nearly everywhere (`global` at least `spread`); otherwise mixed.

    Next, adjacent, backward and forward are only of heads that see both ways.
    """
    thresholds = thresholds or Thresholds()
    found = {name: value.flatten() for name, value in figures.items()}
    excesses = {
        name: excess(found[name], uniform[name])
        for name in (*NARROW, *BROAD)
        if name in found and name in uniform
    }
    excesses["short_range"] = 1 - found["distance"] / max(uniform["distance"], 1e-6)
    if "frequent" in found:
        excesses["rare"] = excess(1 - found["frequent"], 1 - uniform["frequent"])
    if causal:  # all that is not itself is backward
        excesses.pop("backward", None)
    else:  # on both alike
        both, even = (2 * least(of["previous"], of["next"]) for of in (found, uniform))
        excesses["adjacent"] = excess(both, even)
    margins = {name: value / getattr(thresholds, name) for name, value in excesses.items()}
    return [
        _name(
            {name: float(margin[head]) for name, margin in margins.items()},
            uneven=float(found["unevenness"][head]) >= thresholds.even,
            spread=float(found["global"][head]) >= thresholds.spread,
        )
        for head in range(len(found["unevenness"]))
    ]


def least(first: Tensor | float, second: Tensor | float) -> Tensor:
    return torch.minimum(torch.as_tensor(first), torch.as_tensor(second))


def excess(figure: Tensor, uniform: Tensor | float) -> Tensor:
    """How far a share is above that of uniform attention: 0 there, 1 where it is everything."""
    return (figure - uniform) / max(1 - float(uniform), 1e-6)


def _name(margins: Mapping[str, float], *, uneven: bool, spread: bool) -> str:
    if not uneven:
        return NONE
    narrow = max((name for name in NARROW if name in margins), key=lambda name: margins[name])
    if margins[narrow] >= 1:
        return NARROW[narrow]
    for name, word in BROAD.items():
        if margins.get(name, 0.0) >= 1:
            return word
    return GLOBAL if spread else MIXED
