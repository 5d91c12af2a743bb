"""Models in standard form. Some models of ours compute the same function as a simpler model with
other weights, so more classes of other tools can express them.

Shapes: C embed_dim, H heads, K kv heads, D head_dim, T block_size.
"""

import math
import re

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
    separate = re.compile(r"\.stack\.\d+\.(query|key|value)\.")  # become one matrix below
    weights = {name: each for name, each in gpt.state_dict().items() if not separate.search(name)}
    if type(gpt.position) in ADDED:
        zeros = torch.zeros(1, gpt.block_size, gpt.embedding.embedding_dim, device=gpt.device)
        weights["position.table.weight"] = gpt.position(zeros)[0]  # (T, C)
        config = Part(config, position=Part(_target_="headscope.Learned"))
    if gpt.embedding_scale != 1:
        weights["embedding.weight"] = gpt.embedding.weight * gpt.embedding_scale
        config = Part(config, tied_head=False)
    for number, layer in enumerate(gpt.attentions):
        prefix = f"blocks.{number}.attention."
        interleaved = getattr(gpt.position, "rotate_pairs", None) is rotate_interleaved
        standard_projections(weights, prefix, layer, interleaved=interleaved)
        if not layer.has_out_proj:
            weights[f"{prefix}out_proj.weight"] = torch.eye(layer.out_dim, device=gpt.device)
    if config.tied_head:
        del weights["head.weight"]
    return config, weights


def standard_projections(
    weights: dict[str, Tensor], prefix: str, layer: MultiHeadAttention, *, interleaved: bool
) -> None:
    """Replaces the projections to queries, keys and values by one matrix (H D + 2 K D, C) in
    standard form, and the gains of their norms. If pairs of dimensions are `interleaved`, moves
    dimension 2i of each query and key to i, and 2i + 1 to i + D / 2."""
    order, factor = torch.arange(layer.head_dim), layer.scale * math.sqrt(layer.head_dim)
    if interleaved:
        order = order.view(-1, 2).T.flatten()  # 0, 2, 4, ..., 1, 3, 5, ...
    for name, scale in (("q_norm", factor), ("k_norm", 1.0)):
        if (gain := f"{prefix}{name}.weight") in weights:
            weights[gain] = weights[gain][order] * scale
            factor = 1.0
    for kind in ("weight", "bias") if layer.qkv_bias else ("weight",):
        q, k, v = layer.projections(kind)  # (H, D, C), (K, D, C), or without C
        standard = torch.cat([q[:, order] * factor, k[:, order], v])
        weights[f"{prefix}qkv.{kind}"] = standard.flatten(0, 1)
