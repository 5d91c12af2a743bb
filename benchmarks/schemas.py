"""Types of the keys in conf/benchmark.yaml and in conf/suite/."""

from dataclasses import dataclass, make_dataclass
from typing import Any

from headscope.config.training import TrainConfig


@dataclass
class SuiteConfig:
    pass


@dataclass(kw_only=True)
class BenchmarkConfig(TrainConfig):
    suite: SuiteConfig
    output: str


def keys(**types: Any) -> type[SuiteConfig]:
    """The schema of a suite, from the types of its keys."""
    return make_dataclass("SuiteKeys", types.items(), bases=(SuiteConfig,))


SAMPLED_KEYS = ("vocab_size", "block_size", "embed_dim", "layers", "heads", "prompt", "tokens")
SAMPLED = keys(**dict.fromkeys(SAMPLED_KEYS, int))

SUITES: dict[str, type[SuiteConfig]] = {
    "training": keys(rounds=int, steps=int, warmup_steps=int, peers=bool, busy_loops=int | None),
    "race": keys(
        against=str | None,
        nanogpt=str | None,
        seeds=list[int],
        target=float | None,
        every_steps=int,
        max_steps=int | None,
    ),
    "sampling": keys(rounds=int, device=str, small=SAMPLED, large=SAMPLED),
    "attention": keys(rounds=int, shapes=list[list[int]], batch_size=int, device=str),
    "encoding": keys(rounds=int, megabytes=list[int]),
    "watching": keys(rounds=int),
    "viewer": keys(rounds=int, steps=int, shapes=list[list[int]]),
}
"""The suites, by the name of their module and of their file in conf/suite/."""
