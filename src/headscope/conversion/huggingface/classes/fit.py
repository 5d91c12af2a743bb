"""Says whether a class of transformers computes exactly the function of one of our models."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headscope.config.model import (
    SCHEMAS,
    ActivationConfig,
    AdditiveConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    PositionConfig,
    StackedHeadsConfig,
    SwiGluConfig,
)
from headscope.conversion.huggingface.classes.sizes import Sizes

HEAD_NORM_EPS = 1e-6
"""The `eps` of our norm of queries and keys (`headscope.nn.norm.HeadNorm`)."""


@dataclass(frozen=True)
class Abilities:
    """What a class of transformers can compute.

    - `position`, `norm` and `feed_forward` are the only choices that it has.
    - `activations` maps our activation functions to its names of them. A gated network has none.
    - `bias` and `qkv_bias`: it has biases where our keys of the same name add some.
    - `grouped`: query heads may share keys. `any_head_dim`: `head_dim` may be any number.
    - `divides`: `heads` must divide `embed_dim`, whatever `head_dim` is.
    - `ff_dim`: the feed-forward network may have any width, otherwise 4 `embed_dim`.
    - `qk_norm`: it normalizes queries and keys with learned gains. It then has one `eps` for all
      norms.
    - `any_scale`: the factor of the scores may be any number, otherwise 1 / sqrt(head_dim).
    """

    position: type[PositionConfig]
    norm: type[NormConfig]
    activations: Mapping[type[ActivationConfig], str] = field(default_factory=dict)
    feed_forward: type[MlpConfig] = MlpConfig
    bias: bool = True
    qkv_bias: bool = True
    grouped: bool = False
    any_head_dim: bool = False
    divides: bool = True
    ff_dim: bool = True
    qk_norm: bool = False
    any_scale: bool = False


def reason(model: ModelConfig, can: Abilities, name: str) -> str | None:
    """None if a class with the abilities `can` expresses `model` exactly. Otherwise the first
    reason why it does not, with the name of the class."""
    first = next(_reasons(model, can), None)
    return None if first is None else first.format(name=name)


def _reasons(model: ModelConfig, can: Abilities) -> Iterator[str]:
    yield from _parts(model, can)
    yield from _attention(model, can)
    if model.scale_embedding:
        yield "model.scale_embedding=true: {name} does not scale embeddings"
    if model.ngrams > 1:
        yield f"model.ngrams={model.ngrams}: {{name}} has no embeddings of n-grams"
    if model.logit_cap is not None:
        yield f"model.logit_cap={model.logit_cap:g}: {{name}} does not cap logits"
    if model.document_mask:
        yield "model.document_mask=true: {name} attends to earlier documents"
    if model.bias and not can.bias:
        yield "model.bias=true: {name} has no biases there"
    if model.qkv_bias and not can.qkv_bias:
        yield "model.qkv_bias=true: {name} has no biases there"
    if not can.ff_dim and Sizes.of(model).ff_dim != 4 * model.embed_dim:
        yield f"model.ff_dim={model.ff_dim}: {{name}} always has 4 embed_dim hidden units"


def _parts(model: ModelConfig, can: Abilities) -> Iterator[str]:
    for group in ("position", "norm", "feed_forward"):
        part, wanted = getattr(model, group), getattr(can, group)
        if type(part) is not wanted:
            chosen, only = choice_of(group, type(part)), choice_of(group, wanted)
            yield f"model/{group}={chosen}: {{name}} has {group}={only}"
    if can.feed_forward is not SwiGluConfig and type(model.activation) not in can.activations:
        chosen = choice_of("activation", type(model.activation))
        names = " or ".join(choice_of("activation", each) for each in can.activations)
        yield f"model/activation={chosen}: {{name}} has activation={names}"


def _attention(model: ModelConfig, can: Abilities) -> Iterator[str]:
    attention, sizes = model.attention, Sizes.of(model)
    choice = choice_of("attention", type(attention))
    if isinstance(attention, AdditiveConfig):
        yield "model/attention=additive: {name} has dot-product attention"
    if not attention.out_proj:
        yield "model.attention.out_proj=false: {name} has an output projection"
    if attention.qk_norm and not can.qk_norm:
        yield "model.attention.qk_norm=true: {name} does not do this with learned gains"
    if can.qk_norm and not attention.qk_norm:
        yield "model.attention.qk_norm=false: {name} always normalizes queries and keys"
    if attention.qk_norm and isinstance(attention, StackedHeadsConfig):
        yield (
            "model.attention.qk_norm=true with stacked_heads: the heads of {name} share their gains"
        )
    eps = getattr(model.norm, "eps", HEAD_NORM_EPS)
    if can.qk_norm and eps != HEAD_NORM_EPS:
        yield (
            f"model.norm.eps={eps:g}: {{name}} has one eps for all norms, and that of queries and "
            f"keys is {HEAD_NORM_EPS:g}"
        )
    if sizes.kv_heads != sizes.heads and not can.grouped:
        yield f"model/attention={choice}: query heads of {{name}} do not share keys"
    wide = sizes.heads * sizes.head_dim != model.embed_dim
    if wide and not can.any_head_dim:
        yield f"model.head_dim={model.head_dim}: {{name}} has head_dim = embed_dim / heads"
    if can.divides and model.embed_dim % model.heads:
        yield f"model.heads={model.heads}: {{name}} needs heads that divide embed_dim"
    scale = attention.scale
    default = scale is None or math.isclose(scale, sizes.head_dim**-0.5, rel_tol=1e-12)
    if not default and not can.any_scale:
        yield f"model.attention.scale={scale:g}: {{name}} has 1 / sqrt(head_dim)"


def choice_of(group: str, schema: type[Any]) -> str:
    """The name of a choice in conf/model/<group>, from its schema."""
    return next(name for name, each in SCHEMAS[group].items() if each is schema)
