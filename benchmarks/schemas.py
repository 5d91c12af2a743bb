"""Types of the keys in conf/benchmark.yaml and in conf/suite/."""

from dataclasses import dataclass, field

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


@dataclass
class RaceConfig(SuiteConfig):
    against: str | None = MISSING
    nanogpt: str | None = MISSING
    seeds: list[int] = MISSING
    target: float | None = MISSING
    every_steps: int = MISSING
    max_steps: int | None = MISSING


@dataclass
class TrainingConfig(SuiteConfig):
    rounds: int = MISSING
    steps: int = MISSING
    warmup_steps: int = MISSING
    peers: bool = MISSING


@dataclass
class AttentionConfig(SuiteConfig):
    rounds: int = MISSING
    shapes: list[list[int]] = MISSING
    batch_size: int = MISSING
    device: str = MISSING


@dataclass
class SampledConfig:
    vocab_size: int = MISSING
    block_size: int = MISSING
    embed_dim: int = MISSING
    layers: int = MISSING
    heads: int = MISSING
    prompt: int = MISSING
    tokens: int = MISSING


@dataclass
class SamplingConfig(SuiteConfig):
    rounds: int = MISSING
    device: str = MISSING
    small: SampledConfig = field(default_factory=SampledConfig)
    large: SampledConfig = field(default_factory=SampledConfig)


@dataclass
class EncodingConfig(SuiteConfig):
    rounds: int = MISSING
    megabytes: list[int] = MISSING


@dataclass
class MemoryConfig(SuiteConfig):
    rounds: int = MISSING
    peers: bool = MISSING
    changes: list[str] = MISSING


@dataclass
class WatchingConfig(SuiteConfig):
    rounds: int = MISSING


@dataclass
class ViewerConfig(SuiteConfig):
    rounds: int = MISSING
    steps: int = MISSING
    shapes: list[list[int]] = MISSING


SUITES: dict[str, type[SuiteConfig]] = {
    "training": TrainingConfig,
    "race": RaceConfig,
    "sampling": SamplingConfig,
    "attention": AttentionConfig,
    "encoding": EncodingConfig,
    "memory": MemoryConfig,
    "watching": WatchingConfig,
    "viewer": ViewerConfig,
}
"""The suites, by the name of their module and of their file in conf/suite/."""


def register() -> None:
    """Registers the schemas in Hydra, in addition to those of headscope."""
    store = ConfigStore.instance()
    store.store(group="schema/script", name="benchmark", node=BenchmarkConfig)
    for name, schema in SUITES.items():
        store.store(group="schema/suite", name=name, node=schema)
