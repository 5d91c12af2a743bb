"""Schemas of conf/model: the model and its parts."""

from dataclasses import dataclass, field

from omegaconf import MISSING


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
class NormConfig:
    _target_: str = MISSING
    _partial_: bool = True


@dataclass
class LayerNormConfig(NormConfig):
    _target_: str = "headscope.nn.layer_norm"
    # These keys, and those below with a value, are newer than some checkpoints.
    eps: float = 1e-5


@dataclass
class RmsNormConfig(NormConfig):
    _target_: str = "headscope.nn.rms_norm"
    eps: float = 2.0**-23
    gain: bool = MISSING


@dataclass
class ActivationConfig:
    _target_: str = MISSING
    _partial_: bool = True


@dataclass
class GeluConfig(ActivationConfig):
    _target_: str = "headscope.nn.gelu"


@dataclass
class GeluTanhConfig(ActivationConfig):
    _target_: str = "headscope.nn.gelu_tanh"


@dataclass
class ReluSquaredConfig(ActivationConfig):
    _target_: str = "headscope.nn.relu_squared"


@dataclass
class MlpConfig:
    _target_: str = "headscope.nn.FeedForward"
    _partial_: bool = True


@dataclass
class SwiGluConfig(MlpConfig):
    _target_: str = "headscope.nn.SwiGLU"


@dataclass
class ModelConfig:
    _target_: str = "headscope.nn.GPT"
    block_size: int = MISSING
    embed_dim: int = MISSING
    layers: int = MISSING
    heads: int = MISSING
    kv_heads: int | None = MISSING
    head_dim: int | None = MISSING
    ff_dim: int | None = None
    dropout: float = MISSING
    bias: bool = MISSING
    qkv_bias: bool = MISSING
    tied_head: bool = MISSING
    scale_embedding: bool = MISSING
    ngrams: int = MISSING
    ngram_buckets: int = MISSING
    logit_cap: float | None = MISSING
    document_mask: bool = False
    attention: AttentionConfig = MISSING
    position: PositionConfig = MISSING
    norm: NormConfig = MISSING
    activation: ActivationConfig = MISSING
    feed_forward: MlpConfig = field(default_factory=MlpConfig)


SCHEMAS: dict[str, dict[str, type]] = {
    "model": {"gpt": ModelConfig, "gpt2": ModelConfig, "modern": ModelConfig},
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
    "norm": {"layer": LayerNormConfig, "rms": RmsNormConfig},
    "activation": {
        "gelu": GeluConfig,
        "gelu_tanh": GeluTanhConfig,
        "relu_squared": ReluSquaredConfig,
    },
    "feed_forward": {"mlp": MlpConfig, "swiglu": SwiGluConfig},
}
