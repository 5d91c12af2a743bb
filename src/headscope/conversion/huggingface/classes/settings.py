"""Reads the entries of a config.json, which may come from a stranger."""

import math
from collections.abc import Mapping
from typing import Any

from headscope.config.model import (
    ActivationConfig,
    GeluConfig,
    GeluTanhConfig,
    GroupedQueryConfig,
    LearnedConfig,
    MlpConfig,
    ModelConfig,
    MultiHeadConfig,
    MultiQueryConfig,
    NormConfig,
    PositionConfig,
    ReluSquaredConfig,
    RotaryConfig,
)
from headscope.config.parse import short
from headscope.errors import UserError

ACTIVATIONS: dict[str, type[ActivationConfig]] = {
    "gelu": GeluConfig,
    "gelu_python": GeluConfig,
    "gelu_new": GeluTanhConfig,
    "gelu_pytorch_tanh": GeluTanhConfig,
    "gelu_python_tanh": GeluTanhConfig,
    "gelu_fast": GeluTanhConfig,
    "relu2": ReluSquaredConfig,
}
"""Our activation function for each name that transformers has for it."""

MAX_LENGTH = 2048
"""The context length of an imported model whose position encoding has no table, if config.json
allows more. Causal masks need memory for the square of it."""

MISSING: Any = object()


class Settings:
    """The entries of a config.json of the class `name`. A method that reads an entry checks its
    type and value. Raises UserError, with one line, if the entry is missing or wrong."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values = values
        self.name = name

    def raw(self, key: str, default: Any = MISSING) -> Any:
        value = self.values.get(key)
        if value is None and default is MISSING:
            raise UserError(f"config.json has no {key}, which {self.name} needs")
        return default if value is None else value

    def integer(self, key: str, *, default: Any = MISSING, most: int = 2**31 - 1) -> Any:
        """An integer from 1 to `most`, or the default."""
        value = self.raw(key, default)
        if value is not default and (type(value) is not int or not 1 <= value <= most):
            raise UserError(f"config.json: {key}={short(value)} must be an integer from 1")
        return value

    def number(self, key: str, *, default: Any = MISSING) -> Any:
        """A positive, finite number, or the default."""
        value = self.raw(key, default)
        if value is default:
            return value
        if type(value) not in (int, float) or not 0 < value < 2**63 or not math.isfinite(value):
            raise UserError(f"config.json: {key}={short(value)} must be a number above 0")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key, default)
        if type(value) is not bool:
            raise UserError(f"config.json: {key}={short(value)} must be true or false")
        return value

    def expect(self, key: str, *allowed: Any, default: Any) -> None:
        """Raises UserError unless the entry has one of the allowed values."""
        value = self.raw(key, default)
        if not any(type(value) is type(each) and value == each for each in allowed):
            raise self.refusal(key, value)

    def refusal(self, key: str, value: Any) -> UserError:
        return UserError(f"config.json: {key}={short(value)} cannot be expressed by headscope")

    def part(self, key: str) -> "Settings":
        """The entries of a nested object. Missing: no entries."""
        values = self.raw(key, {})
        if not isinstance(values, Mapping):
            raise UserError(f"config.json: {key}={short(values)} must be an object")
        return Settings(values, self.name)

    def activation(self, key: str, *, default: str) -> ActivationConfig:
        value = self.raw(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.refusal(key, value)
        return ACTIVATIONS[value]()

    def rotary(self, *, old_key: str, part_key: str, part_default: float = 1.0) -> RotaryConfig:
        """The rotary position encoding. Version 5 of transformers writes `rope_parameters`, older
        versions write `old_key` for the base, and `rope_scaling`. Raises UserError for positions
        that are scaled or that rotate only a part of each head, and for entries that contradict
        one another, because the versions of transformers differ in which of them they use."""
        parts = [self.part(key) for key in ("rope_parameters", "rope_scaling")]
        parts = [part for part in parts if part.values]
        for part in parts:
            for key in ("rope_type", "type"):
                part.expect(key, "default", default="default")
            part.expect("factor", 1, 1.0, None, default=None)
            if nested := [key for key, value in part.values.items() if isinstance(value, Mapping)]:
                raise part.refusal(nested[0], part.values[nested[0]])
        base = self._agreed(parts, "rope_theta", old_key, default=10000.0)
        fraction = self._agreed(parts, "partial_rotary_factor", part_key, default=part_default)
        if fraction != 1:
            raise self.refusal(part_key, fraction)
        return RotaryConfig(base=base, interleaved=False)

    def _agreed(self, parts: list["Settings"], key: str, old_key: str, *, default: float) -> float:
        """The number `key` in each of `parts`, which is `old_key` outside them."""
        outside = self.number(old_key, default=None)
        found = {part.number(key, default=outside or default) for part in parts}
        found |= {outside} if outside or not parts else set()
        first, *others = sorted(number or default for number in found)
        if others:
            raise UserError(
                f"config.json: {key}={first:g} and {key}={others[0]:g} contradict each other, in "
                f"{old_key}, rope_parameters and rope_scaling: keep the one that is meant"
            )
        return first

    def context_length(self, model: ModelConfig, wanted: int | None) -> int:
        """The context length of the imported model. `wanted` is the value of block_size=."""
        longest = model.block_size
        if wanted is None:
            has_table = isinstance(model.position, LearnedConfig)
            return longest if has_table else min(longest, MAX_LENGTH)
        if not 1 <= wanted <= longest:
            raise UserError(
                f"block_size={wanted} must be from 1 to {longest}, the context length of the model"
            )
        return wanted


def heads(
    settings: Settings, *, query: str, kv: str | None = None
) -> tuple[int, int | None, type[MultiHeadConfig | MultiQueryConfig | GroupedQueryConfig]]:
    """The numbers of query heads and of key and value heads, and the attention that has them."""
    count = settings.integer(query, most=4096)
    shared = count if kv is None else settings.integer(kv, default=count)
    if shared == count:
        return count, None, MultiHeadConfig
    if shared == 1:
        return count, 1, MultiQueryConfig
    if count % shared:
        raise UserError(f"config.json: {query}={count} must be a multiple of {kv}={shared}")
    return count, shared, GroupedQueryConfig


def model_of(
    *,
    block_size: int,
    embed_dim: int,
    layers: int,
    heads: int,
    attention: Any,
    position: PositionConfig,
    norm: NormConfig,
    activation: ActivationConfig,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ff_dim: int | None = None,
    bias: bool = False,
    qkv_bias: bool = False,
    feed_forward: MlpConfig | None = None,
) -> ModelConfig:
    """A `ModelConfig` without the keys that no class of transformers has."""
    return ModelConfig(
        block_size=block_size,
        embed_dim=embed_dim,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ff_dim=ff_dim,
        dropout=0.0,
        bias=bias,
        qkv_bias=qkv_bias,
        tied_head=False,
        scale_embedding=False,
        ngrams=1,
        ngram_buckets=8192,
        logit_cap=None,
        document_mask=False,
        attention=attention,
        position=position,
        norm=norm,
        activation=activation,
        feed_forward=MlpConfig() if feed_forward is None else feed_forward,
    )
