"""The types of the keys in conf/suite/."""

from dataclasses import make_dataclass
from typing import Any

from headscope.config.parse import Positive


def keys(**types: Any) -> type:
    """The schema of a suite, from the types of its keys."""
    return make_dataclass("SuiteKeys", types.items())


SAMPLED_KEYS = ("vocab_size", "block_size", "embed_dim", "layers", "heads", "prompt", "tokens")
SAMPLED = keys(**dict.fromkeys(SAMPLED_KEYS, Positive))
Shapes = list[tuple[Positive, Positive, Positive]]

SUITES = {
    "training": keys(
        rounds=Positive,
        steps=Positive,
        warmup_steps=Positive,
        busy_loops=Positive | None,
    ),
    "race": keys(
        against=str | None,
        nanogpt=str | None,
        seeds=list[Positive],
        target=float | None,
        every_steps=Positive,
        max_steps=Positive | None,
    ),
    "sampling": keys(rounds=Positive, device=str, small=SAMPLED, large=SAMPLED),
    "attention": keys(rounds=Positive, shapes=Shapes, batch_size=Positive, device=str),
    "encoding": keys(rounds=Positive, megabytes=list[Positive]),
    "watching": keys(rounds=Positive),
    "viewer": keys(rounds=Positive, steps=Positive, shapes=Shapes),
}
"""The suites, by the name of their module and of their file in conf/suite/."""
