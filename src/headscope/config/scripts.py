"""Schemas of the configurations of all scripts except train.py and benchmark.py, and of their
groups."""

from dataclasses import dataclass

from headscope.config.parse import Choice
from headscope.config.text import CorpusConfig
from headscope.config.training import ThresholdsConfig, TrainConfig


@dataclass(kw_only=True)
class PlanConfig:
    vocab_size: int | None
    tokens: float | None
    gpu_gib: float | None
    devices: int
    strategy: Choice
    tflops: float | None
    mfu: float


@dataclass(kw_only=True)
class EstimateConfig(TrainConfig):
    estimate: PlanConfig


@dataclass(kw_only=True)
class ChoicesConfig:
    choices: list[str]
    block_sizes: list[int]


@dataclass(kw_only=True)
class CompareConfig(TrainConfig):
    compare: ChoicesConfig
    seeds: list[int]
    speed_rounds: int


@dataclass(kw_only=True)
class SampleConfig:
    checkpoint: str | None
    prompt: str
    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    num_samples: int
    stop: list[str]
    seed: int
    device: Choice
    precision: Choice
    compile: bool


@dataclass(kw_only=True)
class EvaluateConfig:
    checkpoint: str | None
    data: CorpusConfig | None = None
    batch_size: int
    block_size: list[int] | None
    device: Choice
    precision: Choice


@dataclass(kw_only=True)
class ConvertConfig:
    source: str | None
    text: str | None
    block_size: int | None
    checkpoint: str | None
    to: Choice | None
    output: str | None


@dataclass(kw_only=True)
class PatchConfig:
    clean: str | None
    corrupted: str | None
    answers: list[str] | None
    continuation: str | None
    position: int | None


@dataclass(kw_only=True)
class AnalyzeConfig:
    checkpoint: str | None
    text: str | None
    output_dir: str | None
    windows: int
    ablation: bool
    gradients: bool
    replace_by: Choice
    ablation_windows: int
    patch: PatchConfig
    difference: list[Choice] | None
    other: str | None
    checkpoints: list[str] | None
    tensorboard: bool
    thresholds: ThresholdsConfig
    device: Choice


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
