"""Dot-product attention as a fused kernel: grouped heads and skipped blocks of hidden keys change
nothing. test_oracles.py compares it with the explicit path."""

import doctest
import math
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from attention_layers import past
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from headscope.nn import (
    MultiHeadAttention,
    Relative,
    attention_variants,
    block_sparse,
    dot_product,
    mask_from_documents,
    scaled_dot_product,
)
from headscope.nn.block_sparse import attend_skipping_blocks, can_skip_blocks
from headscope.nn.dot_product import attend_explicit, attend_fused
from headscope.nn.position import absolute


def qkv(*shape: int) -> list[Tensor]:
    """The shape is B, H, K, T, S, D."""
    batch, heads, kv_heads, queries, keys, width = shape
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, *axes, width, generator=generator).requires_grad_()
        for axes in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    ]


# --- grouped heads on a GPU ---

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
"""All but the math path, whose memory grows with T x S."""


@pytest.mark.parametrize("masked", [False, True])
def test_repeated_key_heads_change_nothing(monkeypatch, masked):
    inputs, bias = qkv(2, 6, 2, 5, 8, 4), torch.randn(6, 5, 8).requires_grad_()
    options = {"causal": past(5, 8), "scale": 0.5, "bias": bias if masked else None}
    kernel, results = Mock(wraps=F.scaled_dot_product_attention), []
    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    for supported in (True, False):
        monkeypatch.setattr(dot_product, "supports_grouped", Mock(return_value=supported))
        outputs = attend_fused(*inputs, **options).outputs
        results.append((outputs, *torch.autograd.grad(outputs.square().sum(), inputs)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    assert [call.args[1].size(1) for call in kernel.call_args_list] == [2, 6]


@pytest.mark.gpu
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", ["causal", "bias", "mask"])
def test_on_a_gpu_a_fused_kernel_runs(dtype, kv_heads, hidden):
    sizes = {"embed_dim": 96, "block_size": 64, "heads": 6}
    layer = MultiHeadAttention(**sizes, kv_heads=kv_heads).cuda().to(dtype)
    x = torch.randn(2, 64, 96, device="cuda", dtype=dtype, requires_grad=True)
    options = {}
    if hidden == "bias":
        options["position"] = Relative(**sizes, head_dim=16).cuda()
    if hidden == "mask":
        options["mask"] = torch.ones(64, 64, dtype=torch.bool, device="cuda").tril(3)
    for dropout in [0.0, 0.2]:
        with sdpa_kernel(KERNELS):  # raises when none of them can run
            fused = layer.compute_heads(x, **options, dropout=dropout, explicit=False).outputs
        fused.float().sum().backward()
        assert x.grad.isfinite().all()
        if not dropout:
            explicit = layer.compute_heads(x, **options, dropout=0.0, explicit=True).outputs
            tolerance = 1e-4 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(fused, explicit, rtol=tolerance, atol=tolerance)


# --- the plain function ---


@pytest.mark.parametrize(("axes", "scale"), [((), None), ((3,), 0.3), ((2, 4), None)])
def test_scaled_dot_product_is_the_equation_of_the_paper(axes, scale):
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 8), (7, 8), (7, 3))
    q, k, v = (torch.randn(*axes, *shape, generator=generator) for shape in shapes)
    outputs, weights = scaled_dot_product(q, k, v, scale=scale)
    factor = 1 / math.sqrt(8) if scale is None else scale
    expected = (factor * torch.einsum("...td,...sd->...ts", q, k)).softmax(dim=-1)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(outputs, torch.einsum("...ts,...se->...te", expected, v))


@pytest.mark.parametrize("module", [attention_variants, absolute])
def test_the_examples_in_docstrings_hold(module):
    failed, attempted = doctest.testmod(module)
    assert failed == 0 < attempted


# --- blocks of hidden keys ---

TOKENS = 300


def documents(device: str = "cpu") -> Tensor:
    """Of two sequences: some begin within a block of 128, and one has blocks of its own."""
    begins = torch.zeros(2, TOKENS, dtype=torch.bool, device=device)
    begins[0, [5, 128, 200, 201]] = True
    begins[1, 290] = True
    return begins.cumsum(dim=1)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("kv_heads", "causal"), [(1, True), (2, False), (4, True)])
def test_it_computes_what_the_explicit_path_computes(monkeypatch, kv_heads, causal):
    q, k, v = (part.detach() for part in qkv(2, 4, kv_heads, TOKENS, TOKENS, 16))
    mask = mask_from_documents(documents())
    mask[1, 0, 7] = False  # a query that may look at no key
    before = past(TOKENS) if causal else None
    expected = attend_explicit(q, k, v, before, mask, scale=0.3).outputs
    outputs = attend_skipping_blocks(q, k, v, before, mask, scale=0.3)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    assert (outputs[1, :, 7] == 0).all()
    monkeypatch.setattr(dot_product, "can_skip_blocks", lambda *args, **options: True)
    assert torch.equal(attend_fused(q, k, v, before, mask, scale=0.3).outputs, outputs)


def test_what_it_does_not_support_is_computed_otherwise(monkeypatch):
    """On a GPU, in compiled code. Tensors on `meta` stand for those on a GPU."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: self.is_meta))
    q = torch.empty(2, 4, 300, 16, device="meta")
    mask = torch.empty(2, 1, 300, 300, dtype=torch.bool, device="meta")
    assert not can_skip_blocks(q, mask, dropout=0.0)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert can_skip_blocks(q, mask, dropout=0.0)
    assert not can_skip_blocks(q, mask, dropout=0.1)
    assert not can_skip_blocks(q[..., :8], mask, dropout=0.0)
    assert not can_skip_blocks(q[:, :, :128], mask[:, :, :128], dropout=0.0)  # a single block
    for other in (mask[0, 0], mask[:1], mask.expand(2, 4, 300, 300), mask[:, :, :1]):
        assert not can_skip_blocks(q, other, dropout=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_compiled_code_skips_blocks_and_gives_the_same(monkeypatch, dtype, kv_heads):
    torch._dynamo.reset()
    layer = MultiHeadAttention(embed_dim=64, heads=4, kv_heads=kv_heads, block_size=TOKENS)
    layer = layer.cuda().to(dtype)
    mask = mask_from_documents(documents("cuda"))
    x = torch.randn(2, TOKENS, 64, device="cuda", dtype=dtype, requires_grad=True)
    calls, flex = [], block_sparse.flex_attention

    def count(*inputs, **options):
        calls.append(1)
        return flex(*inputs, **options)

    monkeypatch.setattr(block_sparse, "flex_attention", count)
    results = []
    for attention in (layer, torch.compile(layer)):
        outputs = attention(x, mask=mask)
        results.append((outputs, *torch.autograd.grad(outputs.float().square().sum(), x)))
    assert calls
    tolerance = 1e-3 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
