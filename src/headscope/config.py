"""Typed schemas of conf/, and nothing else: values stand in conf/, types stand here.

Every key is typed, so that a misspelt key or a word where a number belongs fails when the
configuration is composed. A schema with a `_target_` is what that target is called with; the
others are read key by key. conf/ refers to them as /schema/<group>/<name>.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

# --- model ---


@dataclass
class AttentionConfig:
    _target_: str = MISSING
    _partial_: bool = True
    scale: float | None = MISSING
    qk_norm: bool = MISSING
    out_proj: bool = MISSING


@dataclass
class SingleHeadConfig(AttentionConfig):
    _target_: str = "headscope.nn.single_head"


@dataclass
class MultiHeadConfig(AttentionConfig):
    _target_: str = "headscope.nn.multi_head"


@dataclass
class MultiQueryConfig(AttentionConfig):
    _target_: str = "headscope.nn.multi_query"


@dataclass
class GroupedQueryConfig(AttentionConfig):
    _target_: str = "headscope.nn.grouped_query"


@dataclass
class StackedHeadsConfig(AttentionConfig):
    _target_: str = "headscope.nn.StackedHeads"


@dataclass
class AdditiveConfig(AttentionConfig):
    _target_: str = "headscope.nn.AdditiveAttention"


@dataclass
class PositionConfig:
    _target_: str = MISSING
    _partial_: bool = True


@dataclass
class NoPositionConfig(PositionConfig):
    _target_: str = "headscope.nn.NoPosition"


@dataclass
class LearnedConfig(PositionConfig):
    _target_: str = "headscope.nn.Learned"


@dataclass
class SinusoidalConfig(PositionConfig):
    _target_: str = "headscope.nn.Sinusoidal"
    base: float = MISSING


@dataclass
class RotaryConfig(PositionConfig):
    _target_: str = "headscope.nn.Rotary"
    base: float = MISSING
    interleaved: bool = MISSING


@dataclass
class AlibiConfig(PositionConfig):
    _target_: str = "headscope.nn.Alibi"


@dataclass
class RelativeConfig(PositionConfig):
    _target_: str = "headscope.nn.Relative"
    buckets: int = MISSING
    max_distance: int = MISSING


@dataclass
class HeadBiasConfig(PositionConfig):
    _target_: str = "headscope.nn.HeadBias"


@dataclass
class IndexConfig(PositionConfig):
    _target_: str = "headscope.nn.Index"


@dataclass
class NormalizedConfig(PositionConfig):
    _target_: str = "headscope.nn.Normalized"


@dataclass
class DigitsConfig(PositionConfig):
    _target_: str = "headscope.nn.Digits"
    base: int = MISSING


@dataclass
class ModelConfig:
    _target_: str = "headscope.nn.GPT"
    block_size: int = MISSING
    embed_dim: int = MISSING
    layers: int = MISSING
    heads: int = MISSING
    kv_heads: int | None = MISSING
    head_dim: int | None = MISSING
    dropout: float = MISSING
    bias: bool = MISSING
    qkv_bias: bool = MISSING
    tied_head: bool = MISSING
    scale_embedding: bool = MISSING
    attention: AttentionConfig = MISSING
    position: PositionConfig = MISSING


# --- text ---


@dataclass
class TokenizerConfig:
    _target_: str = MISSING
    _partial_: bool = True


@dataclass
class ByteConfig(TokenizerConfig):
    _target_: str = "headscope.data.tokenizer.byte"


@dataclass
class CharConfig(TokenizerConfig):
    _target_: str = "headscope.data.tokenizer.char"


@dataclass
class BpeConfig(TokenizerConfig):
    _target_: str = "headscope.data.tokenizer.bpe"
    vocab_size: int = MISSING


@dataclass
class Gpt2Config(TokenizerConfig):
    _target_: str = "headscope.data.tokenizer.gpt2"
    path: str | None = MISSING


@dataclass
class CorpusConfig:
    _target_: str = MISSING


@dataclass
class SotuConfig(CorpusConfig):
    _target_: str = "headscope.data.corpus.Sotu"


@dataclass
class TinyShakespeareConfig(CorpusConfig):
    _target_: str = "headscope.data.corpus.TinyShakespeare"
    path: str | None = MISSING


@dataclass
class TextFilesConfig(CorpusConfig):
    _target_: str = "headscope.data.corpus.TextFiles"
    path: str = MISSING


@dataclass
class HubConfig(CorpusConfig):
    _target_: str = "headscope.data.corpus.Hub"
    name: str = MISSING
    subset: str | None = MISSING
    column: str = MISSING
    train_split: str = MISSING
    validation_split: str | None = MISSING
    revision: str | None = MISSING


# --- training ---


@dataclass
class OptimizerConfig:
    _target_: str = MISSING
    _partial_: bool = True
    lr: float = MISSING


@dataclass
class AdamWConfig(OptimizerConfig):
    _target_: str = "headscope.training.optimizer.adamw"
    weight_decay: float = MISSING
    beta1: float = MISSING
    beta2: float = MISSING


@dataclass
class ScheduleConfig:
    _target_: str = MISSING
    _partial_: bool = True


@dataclass
class WarmupCosineConfig(ScheduleConfig):
    _target_: str = "headscope.training.schedule.warmup_cosine"
    warmup_steps: int = MISSING
    final_fraction: float = MISSING


@dataclass
class TrainerConfig:
    max_steps: int = MISSING
    batch_size: int = MISSING
    accumulate: int = MISSING
    gradient_clip: float = MISSING
    val_every_steps: int = MISSING
    val_batch_size: int = MISSING
    log_every_steps: int = MISSING
    accelerator: str = MISSING
    devices: Any = MISSING
    precision: str = MISSING
    compile: Any = MISSING


@dataclass
class LoggerConfig:
    _target_: str = MISSING


@dataclass
class TensorBoardConfig(LoggerConfig):
    _target_: str = "lightning.pytorch.loggers.TensorBoardLogger"
    name: str = MISSING
    version: str = MISSING
    default_hp_metric: bool = MISSING


@dataclass
class AttentionMapsConfig:
    images: int = MISSING
    text: str | None = MISSING
    tokens: int = MISSING


@dataclass
class SamplesConfig:
    prompt: str = MISSING
    max_new_tokens: int = MISSING
    temperature: float = MISSING
    top_k: int | None = MISSING


@dataclass
class CallbacksConfig:
    attention: AttentionMapsConfig = field(default_factory=AttentionMapsConfig)
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    save_every_minutes: float = MISSING
    early_stopping_patience: int | None = MISSING


@dataclass
class TrainConfig:
    name: str = MISSING
    seed: int = MISSING
    resume: str | None = MISSING
    init_from: str | None = MISSING
    store_dir: str = MISSING
    model: ModelConfig = MISSING
    tokenizer: TokenizerConfig = MISSING
    data: CorpusConfig = MISSING
    optimizer: OptimizerConfig = MISSING
    schedule: ScheduleConfig = MISSING
    trainer: TrainerConfig = MISSING
    logger: LoggerConfig | None = None
    callbacks: CallbacksConfig = MISSING


# --- the other scripts ---


@dataclass
class MoreThanTrainConfig(TrainConfig):
    logger: LoggerConfig | None = MISSING  # a default here would undo what train.yaml chose


@dataclass
class SuiteConfig:
    rounds: int = MISSING


@dataclass
class TrainingSuiteConfig(SuiteConfig):
    steps: int = MISSING
    warmup_steps: int = MISSING


@dataclass
class AttentionSuiteConfig(SuiteConfig):
    shapes: list[list[int]] = MISSING
    batch_size: int = MISSING
    memory_gib: float = MISSING
    device: str = MISSING


@dataclass
class BenchmarkConfig(MoreThanTrainConfig):
    suite: SuiteConfig = MISSING
    output: str = MISSING


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


@dataclass
class EvaluateConfig:
    checkpoint: str | None = MISSING
    data: CorpusConfig | None = None
    batch_size: int = MISSING
    block_size: list[int] | None = MISSING
    device: str = MISSING


SCHEMAS: dict[str, dict[str, type]] = {
    "script": {
        "train": TrainConfig,
        "sample": SampleConfig,
        "evaluate": EvaluateConfig,
        "benchmark": BenchmarkConfig,
        "compare": CompareConfig,
    },
    "model": {"gpt": ModelConfig},
    "attention": {
        "single_head": SingleHeadConfig,
        "multi_head": MultiHeadConfig,
        "multi_query": MultiQueryConfig,
        "grouped_query": GroupedQueryConfig,
        "stacked_heads": StackedHeadsConfig,
        "additive": AdditiveConfig,
    },
    "position": {
        "none": NoPositionConfig,
        "learned": LearnedConfig,
        "sinusoidal": SinusoidalConfig,
        "rotary": RotaryConfig,
        "alibi": AlibiConfig,
        "relative": RelativeConfig,
        "head_bias": HeadBiasConfig,
        "index": IndexConfig,
        "normalized": NormalizedConfig,
        "digits": DigitsConfig,
    },
    "tokenizer": {"bpe": BpeConfig, "byte": ByteConfig, "char": CharConfig, "gpt2": Gpt2Config},
    "data": {
        "sotu": SotuConfig,
        "tinyshakespeare": TinyShakespeareConfig,
        "text": TextFilesConfig,
        "hub": HubConfig,
    },
    "optimizer": {"adamw": AdamWConfig},
    "schedule": {"cosine": WarmupCosineConfig},
    "trainer": {"default": TrainerConfig},
    "logger": {"tensorboard": TensorBoardConfig},
    "callbacks": {"default": CallbacksConfig},
    "suite": {"training": TrainingSuiteConfig, "attention": AttentionSuiteConfig},
    "compare": {"attention": ChoicesConfig, "positions": ChoicesConfig, "own": ChoicesConfig},
}


def register_schemas() -> None:
    """Make the schemas known to Hydra."""
    store = ConfigStore.instance()
    for group, schemas in SCHEMAS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)


def known_targets(*groups: str) -> set[str]:
    """Every `_target_` of our own in these groups: what a stranger's configuration may name."""
    schemas = [schema for group in groups for schema in SCHEMAS[group].values()]
    return {vars(schema)["_target_"] for schema in schemas if "_target_" in vars(schema)}
