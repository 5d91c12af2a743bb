"""What a head is called: a word for what it does, from its figures.

A figure counts by how far it is from what a head gives that looks at all alike, as an untrained
one nearly does: its excess is 0 there, and 1 at the most that is possible. Names and thresholds are
ours; the kinds are those of Voita (2019: positional), Xiao (2023: first token) and Olsson (2022:
induction).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.metrics import head_figures, uniform
from headscope.analysis.repeats import uniform_induction
from headscope.errors import UserError


@dataclass(frozen=True)
class Thresholds:
    """The least excess that gives a head its name, from 0 to 1; of `spread`, the least
    `global_strength` itself. A head whose `unevenness` is below `even` has no name."""

    self: float = 0.4
    previous: float = 0.4
    next: float = 0.4
    first: float = 0.4
    induction: float = 0.3
    adjacent: float = 0.5
    local: float = 0.5
    backward: float = 0.6
    forward: float = 0.6
    spread: float = 0.5
    even: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise UserError(f"thresholds.{name}={value} must be from 0 to 1")


NAMES = {
    "self": "self",
    "previous": "previous-token",
    "next": "next-token",
    "first": "first-token",
    "induction": "induction",
    "adjacent": "adjacent",
    "local": "local",
    "backward": "backward",
    "forward": "forward",
}
"""The names, the narrow ones first."""

NARROW = ("self", "previous", "next", "first", "induction", "adjacent")
GLOBAL, MIXED, NONE = "global", "mixed", "-"


def head_types(
    figures: Mapping[str, Tensor],
    *,
    tokens: int,
    period: int | None = None,
    causal: bool = True,
    thresholds: Thresholds | None = None,
) -> list[str]:
    """A word for every head, in the order of the figures' numbers.

    `figures` are those of `head_figures`, of a text of `tokens` tokens, and perhaps `induction`, of
    texts of this `period`. A head that looks at nearly all alike has none: "-". Otherwise, of self,
    previous-token, next-token, first-token, induction and adjacent (previous and next alike) the
    one that is furthest above its threshold; then local, backward, forward; then global (it looks
    nearly everywhere); then mixed. Next, adjacent, backward and forward are only of heads that see
    both ways.
    """
    thresholds = thresholds or Thresholds()
    even = torch.ones(tokens, tokens)
    baseline = head_figures(uniform(even, causal=causal), causal=causal)
    found = {name: value.flatten() for name, value in figures.items()}
    if "induction" in figures and period is not None:
        baseline["induction"] = torch.tensor(uniform_induction(period))
    if causal:  # all that is not itself is backward
        found.pop("backward", None)
    else:
        for of in (found, baseline):
            of["adjacent"] = 2 * torch.minimum(of["previous"], of["next"])  # on both alike
    margins = {
        name: excess(found[name], baseline[name]) / getattr(thresholds, name)
        for name in NAMES
        if name in found and name in baseline
    }
    return [
        _name(
            {name: float(margin[head]) for name, margin in margins.items()},
            uneven=float(found["unevenness"][head]) >= thresholds.even,
            spread=float(found["global"][head]) >= thresholds.spread,
        )
        for head in range(len(found["unevenness"]))
    ]


def excess(figure: Tensor, baseline: Tensor) -> Tensor:
    """How far a mass is above that of even attention: 0 there, 1 where it is all there is."""
    return (figure - baseline) / (1 - baseline).clamp(min=1e-6)


def _name(margins: Mapping[str, float], *, uneven: bool, spread: bool) -> str:
    if not uneven:
        return NONE
    narrow = max((name for name in NARROW if name in margins), key=lambda name: margins[name])
    for name in (narrow, *(name for name in NAMES if name not in NARROW)):
        if margins.get(name, 0.0) >= 1:
            return NAMES[name]
    return GLOBAL if spread else MIXED
