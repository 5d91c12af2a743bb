"""Which architecture of llama.cpp computes the same function as a model of ours.

llama.cpp computes GELU with tanh, so `model/activation=gelu` does not fit. Its LayerNorm and its
linear layers may have biases where ours have none: then the file contains zeros.
"""

from headscope.config.model import ModelConfig

TABLES = ("Learned", "Sinusoidal", "Index", "Normalized", "Digits")
"""Position encodings that add a table to the embeddings."""

QK_EPS = 1e-6
"""The epsilon of our norms of queries and keys. llama.cpp uses that of the other norms."""


def name_of(part: object) -> str:
    """The last word of the `_target_` of a part, such as Rotary."""
    return str(getattr(part, "_target_", "")).rpartition(".")[2]


def architecture(model: ModelConfig) -> tuple[str | None, str]:
    """The name of the architecture in llama.cpp, or None and the reason why there is none."""
    if reason := never(model):
        return None, reason
    position, rms = name_of(model.position), name_of(model.norm) == "rms_norm"
    swiglu = name_of(model.feed_forward) == "SwiGLU"
    activation = "swiglu" if swiglu else name_of(model.activation)
    if rms:
        return with_rms_norm(model, position, activation)
    if activation != "gelu_tanh":
        return None, f"with LayerNorm, llama.cpp has model/activation=gelu_tanh, not {activation}"
    if model.attention.qk_norm:
        return None, "with LayerNorm, llama.cpp has no model.attention.qk_norm"
    if model.head_dim not in (None, model.embed_dim // model.heads):
        return None, "with LayerNorm, llama.cpp needs heads x head_dim = embed_dim"
    return ("gpt2" if position in TABLES else "gptneox" if position == "Rotary" else "mpt"), ""


def with_rms_norm(model: ModelConfig, position: str, activation: str) -> tuple[str | None, str]:
    """Like `architecture`, for models with RMSNorm."""
    if position != "Rotary":
        return None, "with RMSNorm, llama.cpp has model/position=rotary"
    if activation not in ("swiglu", "relu_squared"):
        return None, "with RMSNorm, llama.cpp has model/feed_forward=swiglu or relu_squared"
    if not model.attention.qk_norm:
        if activation == "relu_squared" and model.bias:
            return None, "with relu_squared, llama.cpp has no model.bias"
        return ("llama" if activation == "swiglu" else "arcee"), ""
    if activation == "relu_squared":
        return None, "with relu_squared, llama.cpp has no model.attention.qk_norm"
    if model.bias:
        return None, "with model.attention.qk_norm, llama.cpp has no model.bias"
    if getattr(model.norm, "eps", None) != QK_EPS:
        return None, f"with model.attention.qk_norm, llama.cpp needs model.norm.eps={QK_EPS}"
    return "qwen3", ""


def never(model: ModelConfig) -> str:
    """Why no architecture of llama.cpp fits, or an empty text."""
    attention, position = name_of(model.attention), name_of(model.position)
    if attention == "AdditiveAttention":
        return "llama.cpp has no additive attention"
    if attention == "StackedHeads" and model.attention.qk_norm:
        return "in stacked_heads, each head has other gains of model.attention.qk_norm"
    if position in ("Relative", "HeadBias"):
        return "llama.cpp has no learned bias of scores"
    if model.ngrams > 1:
        return "llama.cpp has no embeddings of n-grams"
    if model.document_mask:
        return "llama.cpp has no model.document_mask"
    if model.logit_cap is not None:
        return "these architectures of llama.cpp have no model.logit_cap"
    return ""
