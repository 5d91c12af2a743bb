"""Types of the keys in conf/benchmark.yaml and in conf/suite/."""

from dataclasses import dataclass, make_dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from headscope.config.scripts import MoreThanTrainConfig


@dataclass
class SuiteConfig:
    pass


@dataclass
class BenchmarkConfig(MoreThanTrainConfig):
    suite: SuiteConfig = MISSING
    output: str = MISSING


def keys(**types: Any) -> type[SuiteConfig]:
    """The schema of a suite, from the types of its keys."""
    return make_dataclass("SuiteKeys", types.items(), bases=(SuiteConfig,))


SAMPLED_KEYS = ("vocab_size", "block_size", "embed_dim", "layers", "heads", "prompt", "tokens")
SAMPLED = keys(**dict.fromkeys(SAMPLED_KEYS, int))

SUITES: dict[str, type[SuiteConfig]] = {
    "training": keys(rounds=int, steps=int, warmup_steps=int, peers=bool),
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
    "memory": keys(rounds=int, peers=bool, changes=list[str]),
    "watching": keys(rounds=int),
    "viewer": keys(rounds=int, steps=int, shapes=list[list[int]]),
}
"""The suites, by the name of their module and of their file in conf/suite/."""


def register() -> None:
    """Registers the schemas in Hydra, in addition to those of headscope."""
    store = ConfigStore.instance()
    store.store(group="schema/script", name="benchmark", node=BenchmarkConfig)
    for name, schema in SUITES.items():
        store.store(group="schema/suite", name=name, node=schema)
