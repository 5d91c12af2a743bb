"""The laws of rotary position encoding."""

import pytest
import torch
from choices import position_of
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from headscope.nn import Rotary

BASES = [10000.0, 50.0]
both = pytest.mark.parametrize("interleaved", [False, True])


def rotary(head_dim: int = 8, block_size: int = 40, **options) -> Rotary:
    return position_of("rotary", head_dim=head_dim, block_size=block_size, **options)


def some(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def by_complex_numbers(x: Tensor, *, base: float, interleaved: bool, first: int = 0) -> Tensor:
    """x (..., T, D), its pairs as complex numbers, times e^(i t base^(-2 pair / D)), in float64."""
    length, width = x.shape[-2:]
    place = torch.arange(first, first + length, dtype=torch.float64)[:, None]
    angle = place * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    shape = (-1, 2) if interleaved else (2, -1)
    pairs = x.double().unflatten(-1, shape)
    a, b = pairs.unbind(-1 if interleaved else -2)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.stack([turned.real, turned.imag], -1 if interleaved else -2).flatten(-2)


@both
@pytest.mark.parametrize("base", BASES)
def test_a_pair_is_turned_as_a_complex_number_is(base, interleaved):
    for head_dim in [2, 6, 32]:
        position = rotary(head_dim, base=base, interleaved=interleaved)
        q, k = some(2, 3, 40, head_dim), some(2, 1, 40, head_dim)
        for ours, plain in zip(position.rotate(q, k), (q, k), strict=True):
            expected = by_complex_numbers(plain, base=base, interleaved=interleaved)
            torch.testing.assert_close(ours.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("base", BASES)
def test_halves_are_turned_as_llama_turns_them(base):
    for head_dim in [4, 64]:
        config = LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, rope_theta=base)
        q, k = some(2, 2, 40, head_dim), some(2, 1, 40, head_dim)
        cos, sin = LlamaRotaryEmbedding(config)(q, torch.arange(40)[None])
        expected = apply_rotary_pos_emb(q, k, cos, sin)
        ours = rotary(head_dim, base=base).rotate(q, k)
        torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5)


@both
def test_scores_depend_on_distance_alone(interleaved):
    position = rotary(interleaved=interleaved)
    q, k = (some(1, 1, 1, 8 + part).double()[..., :8].expand(1, 1, 40, 8) for part in (0, 1))
    q, k = position.rotate(q, k)  # the same query and the same key at all places
    scores = (q @ k.mT)[0, 0]
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], rtol=0, atol=2e-6)
    near, far = scores.diagonal(), scores.diagonal(-7)
    assert (near[7:] - far).abs().min() > 0.1


MOVED = {
    "as it is": lambda position: position,
    "bf16": lambda position: position.bfloat16(),
    "bf16, in a model": lambda position: nn.ModuleList([position]).to(torch.bfloat16)[0],
    "bf16 and back": lambda position: position.bfloat16().float(),
    "fp16": lambda position: position.half(),
}


@pytest.mark.parametrize("moved", MOVED.values(), ids=MOVED)
def test_in_bf16_only_the_result_is_rounded_however_far_out(moved):
    for interleaved in [False, True]:
        for autocast in [False, True]:
            position = moved(rotary(32, block_size=1100, interleaved=interleaved))
            assert position.cos.dtype == position.sin.dtype == torch.float32
            q, k = some(1, 2, 1100, 32).bfloat16(), some(1, 1, 1100, 32).bfloat16()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                turned = position.rotate(q, k)
            for ours, plain in zip(turned, (q, k), strict=True):
                assert ours.dtype == torch.bfloat16
                expected = by_complex_numbers(plain, base=10000.0, interleaved=interleaved)
                torch.testing.assert_close(ours.double(), expected, rtol=2**-8, atol=1e-6)


@both
def test_the_last_queries_are_turned_by_their_own_places(interleaved):
    for queries in [1, 3, 40]:
        q, k = some(2, 3, queries, 8), some(2, 1, 40, 8)
        ours, _ = rotary(interleaved=interleaved).rotate(q, k)
        expected = by_complex_numbers(q, base=10000.0, interleaved=interleaved, first=40 - queries)
        torch.testing.assert_close(ours.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("head_dim", [1, 7])
def test_an_odd_head_dim_is_refused(head_dim):
    with pytest.raises(ValueError, match=f"head_dim={head_dim} must be even"):
        rotary(head_dim)
