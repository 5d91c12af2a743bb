"""The laws of attention that skips blocks of hidden keys: it computes the same as without."""

import pytest
import torch
from attention_layers import past
from torch import Tensor

from headscope.nn import MultiHeadAttention, mask_from_documents
from headscope.nn.attention import blocks, dot_product
from headscope.nn.attention.blocks import attend_skipping_blocks, can_skip_blocks
from headscope.nn.attention.dot_product import attend_explicit, attend_fused

TOKENS = 300


def documents(device: str = "cpu") -> Tensor:
    """Of two sequences: some begin within a block of 128, and one has blocks of its own."""
    begins = torch.zeros(2, TOKENS, dtype=torch.bool, device=device)
    begins[0, [5, 128, 200, 201]] = True
    begins[1, 290] = True
    return begins.cumsum(dim=1)


def some_qkv(kv_heads: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, heads, TOKENS, 16, generator=generator) for heads in (4, kv_heads, kv_heads)
    ]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_it_computes_what_the_explicit_path_computes(monkeypatch, kv_heads, causal):
    q, k, v = some_qkv(kv_heads)
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
    assert not can_skip_blocks(torch.empty(2, 4, 300, 16), mask, dropout=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_compiled_code_skips_blocks_and_gives_the_same(monkeypatch, dtype, kv_heads):
    torch._dynamo.reset()
    layer = MultiHeadAttention(embed_dim=64, heads=4, kv_heads=kv_heads, block_size=TOKENS)
    layer, calls = layer.cuda().to(dtype), []
    mask = mask_from_documents(documents("cuda"))
    x = torch.randn(2, TOKENS, 64, device="cuda", dtype=dtype, requires_grad=True)
    flex = blocks.flex_attention
    monkeypatch.setattr(blocks, "flex_attention", lambda *a, **o: calls.append(1) or flex(*a, **o))
    results = []
    for attention in (layer, torch.compile(layer)):
        outputs = attention(x, mask=mask)
        results.append((outputs, *torch.autograd.grad(outputs.float().square().sum(), x)))
    assert calls
    tolerance = 1e-3 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
