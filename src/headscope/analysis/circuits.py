"""What heads do by their weights alone, without a text (Elhage 2021): whether a head copies tokens,
and how strongly it reads what earlier heads write.

Shapes: L layers, H heads, D head_dim, C embed_dim, V vocab_size.

The gains of norms are folded into the matrices that read from the residual stream, and so is the
subtraction of the mean in LayerNorm. Biases, scales of norms, and rotations are left out.
"""

import torch
from torch import Tensor, nn

from headscope.analysis.direct_effects import fold_norm, is_scaling
from headscope.analysis.head_outputs import output_matrices
from headscope.errors import UserError
from headscope.nn import GPT, AdditiveAttention, MultiHeadAttention, StackedHeads
from headscope.nn.block import Block
from headscope.nn.dot_product import one_per_query_head

KINDS = ("q", "k", "v")
"""The three ways in which a head reads: with its queries, its keys and its values."""
WEIGHT_METRICS = ("copying", "composition")


def has_matrices(model: GPT) -> bool:
    """Whether the queries, keys and values of all layers are linear in the residual stream, except
    for scales. In an attention or a norm of the user, they may be anything."""
    return is_scaling(model.norm) and all(map(is_linear, model.blocks))


def is_linear(block: Block) -> bool:
    projects = type(block.attention).project
    ours = projects in (MultiHeadAttention.project, StackedHeads.project)
    return ours and is_scaling(block.attention_norm)


def head_matrices(block: Block) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The matrices of the heads of a block: those of queries, keys and values (H, D, C) read from
    the residual stream, and those of outputs (H, C, D) write to it. They have the gains of the norm
    before the layer and of `qk_norm`. Keys and values that several heads share are repeated. Raises
    UserError if there are no such matrices."""
    layer = block.attention
    if not is_linear(block):
        names = " or ".join(type(part).__name__ for part in (layer, block.attention_norm))
        raise UserError(f"{names} has no matrices to compare: it reads in its own way")
    query, key, value = (
        one_per_query_head(fold_norm(block.attention_norm, matrix)[None], layer.heads)[0]
        for matrix in layer.projections()
    )
    if layer.qk_norm:
        query, key = fold_qk_norm(layer, "q", query), fold_qk_norm(layer, "k", key)
    return query, key, value, output_matrices(layer)


def fold_qk_norm(layer: nn.Module, name: str, matrix: Tensor) -> Tensor:
    """The matrix (H, D, C) with the gains of the norms of queries ("q") or keys ("k")."""
    owners = getattr(layer, "stack", [layer])  # separate heads have separate norms
    gains = torch.stack([owner.get_parameter(f"{name}_norm.weight") for owner in owners])
    return matrix * gains[..., None]


@torch.no_grad()
def copying_scores(model: GPT) -> Tensor:
    """The copying score (L, H), from -1 to 1: the sum of the eigenvalues of W_U W_O W_V W_E divided
    by the sum of their absolute values (Elhage 2021, "copying"). W_E embeds tokens, and W_U is the
    output head. Near 1, a head raises the logits of tokens it attends to; near -1, it lowers them.

    The matrix (V, V) has the same eigenvalues, except zeros, as W_V W_E W_U W_O (D, D)."""
    through_vocabulary = fold_norm(model.norm, model.embedding.weight.T @ model.head.weight)
    scores = []
    for _, _, value, output in map(head_matrices, model.blocks):
        small = value @ through_vocabulary @ output  # (H, D, D)
        values = torch.linalg.eigvals(small.float().nan_to_num())  # it refuses NaN
        score = values.real.sum(-1) / values.abs().sum(-1).clamp(min=1e-30)
        scores.append(score.where(small.isfinite().all(-1).all(-1), torch.nan))
    return torch.stack(scores)


@torch.no_grad()
def compositions(model: GPT) -> dict[str, Tensor]:
    """Q-, K- and V-composition of every pair of heads (Elhage 2021, "composition"), from 0 to 1.
    The result has a tensor (L, H, L, H) for each of q, k and v: `result["k"][l2, h2, l1, h1]` is
    high if the keys of head h2 in layer l2 read what head h1 in the earlier layer l1 writes. It is
    zero unless l1 is below l2.

    The value is |A B| / (|A| |B|) with Frobenius norms. B = W_O W_V is the matrix of the earlier
    head. A is W_K^T W_Q for queries, W_Q^T W_K for keys and W_O W_V for values. In additive
    attention, A is W_Q or W_K alone. `random_composition` gives the value for random matrices.
    """
    queries, keys, values, outputs = zip(*map(head_matrices, model.blocks), strict=True)
    shape = (len(queries), len(queries[0])) * 2
    strengths = {kind: torch.zeros(shape, device=model.device) for kind in KINDS}
    for late, query in enumerate(queries[1:], start=1):
        key, earlier = keys[late], (torch.cat(values[:late]), torch.cat(outputs[:late]))
        ways = {"q": (key, query), "k": (query, key), "v": (outputs[late].mT, values[late])}
        if isinstance(model.attentions[late], AdditiveAttention):
            alone = torch.eye(query.size(1)).to(query).expand(len(query), -1, -1)
            ways |= {"q": (alone, query), "k": (alone, key)}
        for kind, (outer, inner) in ways.items():
            ratios = norm_ratio(outer, inner, *earlier)  # (H, l1 H)
            strengths[kind][late, :, :late] = ratios.unflatten(1, (late, -1))
    return strengths


def norm_ratio(outer: Tensor, inner: Tensor, values: Tensor, outputs: Tensor) -> Tensor:
    """|A B| / (|A| |B|) of every pair of a head and an earlier head, (H, N), for A = outer^T inner
    with outer (H, D, E) and inner (H, D, C), and B = W_O W_V of the earlier heads, with W_V
    (N, D, C) and W_O (N, C, D). It is computed from matrices (D, D), because |X^T M Y|^2 is the sum
    of (X X^T M Y Y^T) * M."""
    outside, before = outer @ outer.mT, values @ values.mT
    middle = torch.einsum("hdc,nce->hnde", inner, outputs)
    product = (torch.einsum("hxd,hnde,nef->hnxf", outside, middle, before) * middle).sum((-2, -1))
    first = (outside @ (inner @ inner.mT)).diagonal(dim1=-2, dim2=-1).sum(-1)
    second = (before @ (outputs.mT @ outputs)).diagonal(dim1=-2, dim2=-1).sum(-1)
    return (product / (first[:, None] * second).clamp(min=1e-30)).clamp(min=0).sqrt()


def random_composition(model: GPT) -> float:
    """The composition of heads whose matrix W_O is random: 1 / sqrt(C). With independent entries of
    mean 0 and variance s, the mean of |A W_O W_V|^2 is s |A|^2 |W_V|^2, and that of |W_O W_V|^2 is
    s C |W_V|^2, for all A and W_V."""
    return model.attentions[0].embed_dim ** -0.5


@torch.no_grad()
def weight_metrics(model: GPT) -> dict[str, Tensor]:
    """The metrics (L, H) of `copying_scores`, and of the strongest composition with any earlier
    head: the largest of the three kinds, 0 in the first layer. Empty if heads have no matrices."""
    if not has_matrices(model):
        return {}
    kinds = compositions(model).values()
    strongest = torch.stack([strengths.flatten(2).amax(-1) for strengths in kinds]).amax(0)
    return {"copying": copying_scores(model), "composition": strongest}
