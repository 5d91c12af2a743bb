"""Schemas of the configurations of all scripts except train.py and benchmark.py, and of their
groups."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from headscope.config.text import CorpusConfig
from headscope.config.training import LoggerConfig, ThresholdsConfig, TrainConfig


@dataclass
class MoreThanTrainConfig(TrainConfig):
    logger: LoggerConfig | None = MISSING  # a default here would override train.yaml


@dataclass
class PlanConfig:
    vocab_size: int | None = MISSING
    tokens: float | None = MISSING
    gpu_gib: float | None = MISSING
    devices: int = MISSING
    strategy: str = MISSING
    tflops: float | None = MISSING
    mfu: float = MISSING


@dataclass
class EstimateConfig(MoreThanTrainConfig):
    estimate: PlanConfig = field(default_factory=PlanConfig)


@dataclass
class ChoicesConfig:
    choices: list[str] = MISSING
    block_sizes: list[int] = MISSING


@dataclass
class CompareConfig(MoreThanTrainConfig):
    compare: ChoicesConfig = MISSING
    seeds: list[int] = MISSING
    speed_rounds: int = MISSING


@dataclass
class SampleConfig:
    checkpoint: str | None = MISSING
    prompt: str = MISSING
    max_new_tokens: int = MISSING
    temperature: float = MISSING
    top_k: int | None = MISSING
    top_p: float | None = MISSING
    num_samples: int = MISSING
    stop: list[str] = MISSING
    seed: int = MISSING
    device: str = MISSING
    precision: str = MISSING
    compile: bool = MISSING


@dataclass
class EvaluateConfig:
    checkpoint: str | None = MISSING
    data: CorpusConfig | None = None
    batch_size: int = MISSING
    block_size: list[int] | None = MISSING
    device: str = MISSING
    precision: str = MISSING


@dataclass
class ConvertConfig:
    source: str | None = MISSING
    text: str | None = MISSING
    block_size: int | None = MISSING
    checkpoint: str | None = MISSING
    to: str | None = MISSING
    output: str | None = MISSING


@dataclass
class PatchConfig:
    clean: str | None = MISSING
    corrupted: str | None = MISSING
    answers: list[str] | None = MISSING
    continuation: str | None = MISSING
    position: int | None = MISSING


@dataclass
class AnalyzeConfig:
    checkpoint: str | None = MISSING
    text: str | None = MISSING
    output_dir: str | None = MISSING
    windows: int = MISSING
    ablation: bool = MISSING
    gradients: bool = MISSING
    replace_by: str = MISSING
    ablation_windows: int = MISSING
    patch: PatchConfig = field(default_factory=PatchConfig)
    difference: list[str] | None = MISSING
    other: str | None = MISSING
    checkpoints: list[str] | None = MISSING
    tensorboard: bool = MISSING
    thresholds: ThresholdsConfig = field(default_factory=ThresholdsConfig)
    device: str = MISSING


SCHEMAS: dict[str, dict[str, type]] = {
    "script": {
        "train": TrainConfig,
        "sample": SampleConfig,
        "estimate": EstimateConfig,
        "evaluate": EvaluateConfig,
        "analyze": AnalyzeConfig,
        "convert": ConvertConfig,
        "compare": CompareConfig,
    },
    "compare": {
        "attention": ChoicesConfig,
        "positions": ChoicesConfig,
        "own": ChoicesConfig,
    },
}
