"""The keys of all scripts except train.py and benchmark.py."""

from dataclasses import dataclass
from typing import Annotated, Literal

from headscope.config.parse import Count, NonNegative, Positive
from headscope.config.parts import Part
from headscope.config.thresholds import Thresholds
from headscope.config.training import TrainConfig


@dataclass(kw_only=True)
class ChoicesConfig:
    choices: list[str]
    block_sizes: list[Positive]


@dataclass(kw_only=True)
class CompareConfig(TrainConfig):
    compare: ChoicesConfig
    seeds: list[int]
    speed_rounds: Count


@dataclass(kw_only=True)
class SampleConfig:
    parts: str | list[str] | None
    checkpoint: str | None
    prompt: str
    max_new_tokens: Count
    temperature: NonNegative
    top_k: Positive | None
    top_p: float | None
    num_samples: Positive
    stop: list[str]
    seed: int
    device: str
    precision: Literal["auto", "fp32", "bf16", "int8"]
    compile: bool


@dataclass(kw_only=True)
class EvaluateConfig:
    parts: str | list[str] | None
    checkpoint: str | None
    data: Part | None = None
    batch_size: Positive
    block_size: list[Positive] | None
    device: str
    precision: Literal["auto", "fp32", "bf16-mixed", "bf16", "int8"]


@dataclass(kw_only=True)
class ConvertConfig:
    parts: str | list[str] | None
    source: str | None
    text: str | None
    block_size: int | None
    checkpoint: str | None
    to: Literal["huggingface", "nanogpt", "safetensors", "gguf"] | None
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
    parts: str | list[str] | None
    checkpoint: str | None
    text: str | None
    output_dir: str | None
    windows: Positive
    ablation: bool
    gradients: bool
    replace_by: Literal["zero", "mean"]
    ablation_windows: Annotated[int, 2]  # for a standard error
    patch: PatchConfig
    difference: list[str] | None
    other: str | None
    checkpoints: list[str] | None
    tensorboard: bool
    thresholds: Thresholds
    device: str


@dataclass(kw_only=True)
class ExploreConfig:
    parts: str | list[str] | None
    checkpoint: str | None
    other: str | None
    host: str
    port: Count
    allowed_hosts: list[str]
    open_browser: bool
    device: str


SCRIPTS: dict[str, type] = {
    "train": TrainConfig,
    "sample": SampleConfig,
    "evaluate": EvaluateConfig,
    "analyze": AnalyzeConfig,
    "convert": ConvertConfig,
    "compare": CompareConfig,
    "explore": ExploreConfig,
}
