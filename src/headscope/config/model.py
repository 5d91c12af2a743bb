"""The registry of conf/model: the parts of a model, and the types of all keys."""

from dataclasses import dataclass, field

from headscope.config.parts import Part, part


@dataclass(kw_only=True)
class AttentionConfig(Part):
    scale: float | None
    qk_norm: bool
    out_proj: bool


class PositionConfig(Part):
    pass


class NormConfig(Part):
    pass


class ActivationConfig(Part):
    pass


class FeedForwardConfig(Part):
    pass


ATTENTIONS = {
    "single_head": part(AttentionConfig, "headscope.nn.single_head"),
    "multi_head": part(AttentionConfig, "headscope.nn.multi_head"),
    "multi_query": part(AttentionConfig, "headscope.nn.multi_query"),
    "grouped_query": part(AttentionConfig, "headscope.nn.grouped_query"),
    "stacked_heads": part(AttentionConfig, "headscope.nn.StackedHeads"),
    "additive": part(AttentionConfig, "headscope.nn.AdditiveAttention"),
}

POSITIONS = {
    "none": part(PositionConfig, "headscope.nn.NoPosition"),
    "learned": part(PositionConfig, "headscope.nn.Learned"),
    "sinusoidal": part(PositionConfig, "headscope.nn.Sinusoidal", base=float),
    "rotary": part(PositionConfig, "headscope.nn.Rotary", base=float, interleaved=bool),
    "alibi": part(PositionConfig, "headscope.nn.Alibi"),
    "relative": part(PositionConfig, "headscope.nn.Relative", buckets=int, max_distance=int),
    "head_bias": part(PositionConfig, "headscope.nn.HeadBias"),
    "index": part(PositionConfig, "headscope.nn.Index"),
    "normalized": part(PositionConfig, "headscope.nn.Normalized"),
    "digits": part(PositionConfig, "headscope.nn.Digits", base=int),
}

NORMS = {
    "layer": part(NormConfig, "headscope.nn.layer_norm", eps=(float, 1e-5)),
    "none": part(NormConfig, "headscope.nn.no_norm"),
    "rms": part(NormConfig, "headscope.nn.rms_norm", eps=(float, 2.0**-23), gain=bool),
}

ACTIVATIONS = {
    "gelu": part(ActivationConfig, "headscope.nn.gelu"),
    "gelu_tanh": part(ActivationConfig, "headscope.nn.gelu_tanh"),
    "relu_squared": part(ActivationConfig, "headscope.nn.relu_squared"),
}

FEED_FORWARDS = {
    "mlp": part(FeedForwardConfig, "headscope.nn.FeedForward"),
    "none": part(FeedForwardConfig, "headscope.nn.no_feed_forward"),
    "swiglu": part(FeedForwardConfig, "headscope.nn.SwiGLU"),
}

MultiQueryConfig = ATTENTIONS["multi_query"]
LearnedConfig = POSITIONS["learned"]
RotaryConfig = POSITIONS["rotary"]
GeluConfig = ACTIVATIONS["gelu"]


@dataclass(kw_only=True)
class ModelConfig:
    """The keys of a model. Those with a default are newer than some checkpoints."""

    _target_: str = "headscope.nn.GPT"
    block_size: int
    embed_dim: int
    layers: int
    heads: int
    kv_heads: int | None
    head_dim: int | None
    ff_dim: int | None = None
    dropout: float
    bias: bool
    qkv_bias: bool
    tied_head: bool
    scale_embedding: bool
    ngrams: int
    ngram_buckets: int
    logit_cap: float | None
    document_mask: bool = False
    attention: AttentionConfig
    position: PositionConfig
    norm: NormConfig
    activation: ActivationConfig
    feed_forward: FeedForwardConfig = field(default_factory=FEED_FORWARDS["mlp"])


SCHEMAS: dict[str, dict[str, type]] = {
    "model": {"gpt": ModelConfig, "gpt2": ModelConfig, "modern": ModelConfig},
    "attention": ATTENTIONS,
    "position": POSITIONS,
    "norm": NORMS,
    "activation": ACTIVATIONS,
    "feed_forward": FEED_FORWARDS,
}
