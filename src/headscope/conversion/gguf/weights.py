"""The weights of our model with the names and the layout of llama.cpp.

Shapes: C embed_dim, H heads, K kv heads, D head_dim, V vocab_size.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from headscope.nn import GPT, MultiHeadAttention, Rotary, StackedHeads
from headscope.nn.position.rotary import rotate_interleaved

PAIRS_ADJACENT = ("llama", "arcee")
"""Architectures that rotate the pairs of dimensions (2i, 2i + 1). The others rotate (i, i + D / 2),
as our models do by default."""

FUSED = ("gpt2", "gptneox", "mpt")
"""Architectures with LayerNorm, and with one matrix for queries, keys and values."""


def gguf_weights(gpt: GPT, architecture: str) -> dict[str, Tensor]:
    """The tensors of a GGUF file, {name: float32 tensor}, of a model on the CPU. Axes are in
    PyTorch's order."""
    fused = architecture in FUSED
    embedding = gpt.embedding.weight * gpt.embedding_scale
    weights = {"token_embd.weight": embedding, **norm("output_norm", gpt.norm, fused)}
    tied = gpt.head.weight is gpt.embedding.weight and gpt.embedding_scale == 1
    if not tied or architecture == "gptneox":
        weights["output.weight"] = gpt.head.weight
    if architecture == "gpt2":
        nothing = torch.zeros(1, gpt.block_size, embedding.size(1))
        weights["position_embd.weight"] = gpt.position(nothing)[0]
    blocks: Any = gpt.blocks
    for number, block in enumerate(blocks):
        layer = {
            **norm("attn_norm", block.attention_norm, fused),
            **norm("ffn_norm", block.feed_forward_norm, fused),
            **attention(block.attention, gpt.position, architecture),
        }
        names = {"up_proj": "ffn_up", "gate_proj": "ffn_gate", "down_proj": "ffn_down"}
        for name, part in block.feed_forward.named_children():
            layer |= linear(names[name], part, fused)
        weights |= {f"blk.{number}.{name}": weight for name, weight in layer.items()}
    return {name: weight.detach().float().contiguous() for name, weight in weights.items()}


def norm(name: str, part: nn.Module, with_bias: bool) -> dict[str, Tensor]:
    """The gain and, `with_bias`, the shift of a normalization. If it has none, ones and zeros."""
    weight: Any = part.weight
    width: Any = part.normalized_shape
    found = {f"{name}.weight": torch.ones(width) if weight is None else weight}
    if with_bias:
        bias: Any = getattr(part, "bias", None)
        found[f"{name}.bias"] = torch.zeros(width) if bias is None else bias
    return found


def linear(name: str, part: nn.Linear, with_bias: bool) -> dict[str, Tensor]:
    """The weight and the bias of a linear layer. Without a bias, zeros if `with_bias`."""
    found = {f"{name}.weight": part.weight}
    if part.bias is not None or with_bias:
        rows = part.weight.size(0)
        found[f"{name}.bias"] = torch.zeros(rows) if part.bias is None else part.bias
    return found


def attention(
    layer: MultiHeadAttention, position: nn.Module, architecture: str
) -> dict[str, Tensor]:
    """The projections of an attention layer. llama.cpp divides the scores by sqrt(D): another scale
    becomes a factor of the queries."""
    q, k, v, biases = projections(layer)
    factor = layer.scale * math.sqrt(layer.head_dim)
    order = rows_order(layer.head_dim, position, architecture)
    found: dict[str, Tensor] = {}
    if layer.qk_norm:
        q_norm: Any = layer.q_norm
        k_norm: Any = layer.k_norm
        found["attn_q_norm.weight"] = q_norm.weight[order] * factor
        found["attn_k_norm.weight"] = k_norm.weight[order]
        factor = 1.0
    parts = {"q": reordered(q, order) * factor, "k": reordered(k, order), "v": v}
    if biases is not None:
        b, c, d = biases
        bias_of = {"q": reordered(b, order) * factor, "k": reordered(c, order), "v": d}
    if architecture in FUSED:
        found["attn_qkv.weight"] = torch.cat(list(parts.values()))
        rows = found["attn_qkv.weight"].size(0)
        bias = torch.zeros(rows) if biases is None else torch.cat(list(bias_of.values()))
        found["attn_qkv.bias"] = bias
    else:
        found |= {f"attn_{name}.weight": weight for name, weight in parts.items()}
        if biases is not None:
            found |= {f"attn_{name}.bias": bias for name, bias in bias_of.items()}
    if isinstance(layer.out_proj, nn.Linear):
        return found | linear("attn_output", layer.out_proj, architecture in FUSED)
    identity = nn.Linear(layer.out_dim, layer.out_dim, bias=False)
    identity.weight = nn.Parameter(torch.eye(layer.out_dim))
    return found | linear("attn_output", identity, architecture in FUSED)


Biases = tuple[Tensor, Tensor, Tensor]


def projections(layer: MultiHeadAttention) -> tuple[Tensor, Tensor, Tensor, Biases | None]:
    """The matrices (H D, C), (K D, C) and (K D, C) for queries, keys and values, and their
    biases."""
    if isinstance(layer, StackedHeads):
        groups = [(head.query, head.key, head.value) for head in layer.stack]
        columns = list(zip(*groups, strict=True))
        q, k, v = (torch.cat([part.weight for part in column]) for column in columns)
        if not layer.qkv_bias:
            return q, k, v, None
        b, c, d = (torch.cat([part.bias for part in column]) for column in columns)
        return q, k, v, (b, c, d)
    q, k, v = layer.qkv.weight.split(layer.widths)
    if layer.qkv.bias is None:
        return q, k, v, None
    b, c, d = layer.qkv.bias.split(layer.widths)
    return q, k, v, (b, c, d)


def rows_order(head_dim: int, position: nn.Module, architecture: str) -> Tensor:
    """The order of the dimensions of a head (D,) in which the pairs that are rotated together stand
    where llama.cpp expects them."""
    order = torch.arange(head_dim)
    if not isinstance(position, Rotary):
        return order
    adjacent = position.rotate_pairs is rotate_interleaved
    if adjacent == (architecture in PAIRS_ADJACENT):
        return order
    return order.view(-1, 2).T.flatten() if adjacent else order.view(2, -1).T.flatten()


def reordered(x: Tensor, order: Tensor) -> Tensor:
    """x (H D, ...) with the dimensions of each head in another order."""
    return x.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)
