"""Models in standard form. Some models of ours compute the same function as a simpler model with
other weights, so more classes of other tools can express them.

Shapes: C embed_dim, H heads, K kv heads, D head_dim, T block_size.
"""

import math

import torch
from torch import Tensor

from headscope.config.parts import Part
from headscope.nn import (
    GPT,
    Digits,
    Index,
    Learned,
    MultiHeadAttention,
    NoPosition,
    Normalized,
    Sinusoidal,
    StackedHeads,
)
from headscope.nn.position.rotary import rotate_interleaved

ADDED = (NoPosition, Learned, Sinusoidal, Index, Normalized, Digits)
"""Position encodings that add a table, which does not depend on the tokens, to the embeddings."""


@torch.no_grad()
def standard_form(gpt: GPT, config: Part) -> tuple[Part, dict[str, Tensor]]:
    """The configuration and the weights of `gpt` in standard form:

    - stacked heads share one matrix;
    - rotary positions rotate the pairs of dimensions (i, i + D / 2);
    - scores are divided by sqrt(D), and another scale becomes a factor of the queries;
    - a missing output projection is the identity matrix;
    - scaled embeddings are stored, and the output head does not share them;
    - positions that are added to the embeddings, or none, are a learned table.
    """
    weights = dict(gpt.state_dict())
    if type(gpt.position) in ADDED:
        zeros = torch.zeros(1, gpt.block_size, gpt.embedding.embedding_dim, device=gpt.device)
        weights["position.table.weight"] = gpt.position(zeros)[0]  # (T, C)
        config = Part(config, position=Part(_target_="headscope.Learned"))
    if gpt.embedding_scale != 1:
        weights["embedding.weight"] = gpt.embedding.weight * gpt.embedding_scale
        config = Part(config, tied_head=False)
    for number, layer in enumerate(gpt.attentions):
        prefix = f"blocks.{number}.attention."
        if isinstance(layer, StackedHeads):
            fuse(weights, prefix, layer.heads)
        if getattr(gpt.position, "rotate_pairs", None) is rotate_interleaved:
            reorder(weights, prefix, layer)
        scale_queries(weights, prefix, layer)
        if not layer.has_out_proj:
            weights[f"{prefix}out_proj.weight"] = torch.eye(layer.out_dim, device=gpt.device)
    if config.tied_head:
        del weights["head.weight"]
    return config, weights


def fuse(weights: dict[str, Tensor], prefix: str, heads: int) -> None:
    """Replaces the projections of each head by one matrix (3 H D, C), and their biases by one
    vector."""
    for kind in ("weight", "bias"):
        parts = ("query", "key", "value")
        names = [f"{prefix}stack.{head}.{part}.{kind}" for part in parts for head in range(heads)]
        if names[0] in weights:
            weights[f"{prefix}qkv.{kind}"] = torch.cat([weights.pop(name) for name in names])


def reorder(weights: dict[str, Tensor], prefix: str, layer: MultiHeadAttention) -> None:
    """Moves dimension 2i of each query and key to i, and 2i + 1 to i + D / 2."""
    order = torch.arange(layer.head_dim).view(-1, 2).T.flatten()  # 0, 2, 4, ..., 1, 3, 5, ...
    rotated = (layer.heads + layer.kv_heads) * layer.head_dim
    for kind in ("weight", "bias"):
        name = f"{prefix}qkv.{kind}"
        if name in weights:
            rows, values = weights[name].tensor_split([rotated])
            moved = rows.unflatten(0, (-1, layer.head_dim))[:, order].flatten(0, 1)
            weights[name] = torch.cat([moved, values])
    for name in (f"{prefix}q_norm.weight", f"{prefix}k_norm.weight"):
        if name in weights:
            weights[name] = weights[name][order]


def scale_queries(weights: dict[str, Tensor], prefix: str, layer: MultiHeadAttention) -> None:
    """Multiplies the queries so that their scores are divided by sqrt(D)."""
    factor = layer.scale * math.sqrt(layer.head_dim)
    if math.isclose(factor, 1.0, rel_tol=1e-12):
        return
    normed = f"{prefix}q_norm.weight"
    for name in [normed] if normed in weights else [f"{prefix}qkv.weight", f"{prefix}qkv.bias"]:
        if name in weights:
            rows = weights[name].size(0) if name == normed else layer.heads * layer.head_dim
            weights[name] = weights[name].clone()
            weights[name][:rows] *= factor
