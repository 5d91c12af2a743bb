"""The laws of the parts that stand on their own: norms, activations, the cap, the start at zero."""

import math

import pytest
import torch
import torch.nn.functional as F
from small_gpt import fresh, gpt, some_tokens
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from headscope.errors import UserError
from headscope.nn import (
    Gelu,
    GeluTanh,
    LayerNorm,
    NoPosition,
    ReluSquared,
    RMSNorm,
    SwiGLU,
)
from headscope.nn.ngrams import MULTIPLIER, PRIME
from headscope.nn.precision import supports_bf16

TOKENS = some_tokens(6)


def test_activations_by_hand():
    x = torch.tensor([-2.0, -0.0, 0.5, 3.0], requires_grad=True)
    assert ReluSquared()(x).tolist() == [0, 0, 0.25, 9]
    assert torch.autograd.grad(ReluSquared()(x).sum(), x)[0].tolist() == [0, 0, 1, 6]
    torch.testing.assert_close(Gelu()(x), F.gelu(x))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    torch.testing.assert_close(GeluTanh()(x), x / 2 * (1 + inner.tanh()))
    assert (GeluTanh()(x) - Gelu()(x)).abs().max() > 1e-4


@pytest.mark.parametrize(("bias", "ff_dim"), [(False, None), (True, 5)])
def test_swiglu_is_the_feed_forward_network_of_llama(bias, ff_dim):
    ours = SwiGLU(embed_dim=7, ff_dim=ff_dim, bias=bias)
    sizes = {"hidden_size": 7, "num_attention_heads": 7, "mlp_bias": bias}
    theirs = LlamaMLP(LlamaConfig(**sizes, intermediate_size=ff_dim or 24))  # 8 * ceil(7 / 3)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 7)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_eps_is_added_to_the_mean_square(norm):
    x = torch.tensor([[3.0, -3.0]])
    torch.testing.assert_close(norm(embed_dim=2, eps=7.0)(x), x / 4)
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UserError, match="eps="):
            norm(embed_dim=2, eps=wrong)


@pytest.mark.parametrize("ngrams", [1, 2, 9])
def test_an_embedding_depends_on_the_last_ngrams_tokens(ngrams):
    model = gpt(ngrams=ngrams, position=NoPosition)
    changed = TOKENS.clone()
    changed[:, 1] = (changed[:, 1] + 1) % 11
    moved = (model.embed(changed) - model.embed(TOKENS)).abs().amax(dim=(0, 2)) > 1e-4
    assert moved.tolist() == [1 <= place < 1 + ngrams for place in range(6)]


def test_each_ngram_adds_the_embedding_of_its_hash():
    layer = gpt(ngrams=4, ngram_buckets=64).ngram_embedding
    embedded = layer(torch.zeros(2, 6, 16), TOKENS)
    for row, tokens in enumerate(TOKENS.tolist()):
        for last in range(len(tokens)):
            expected, key = torch.zeros(16), tokens[last]
            for before, table in zip(reversed(tokens[:last]), layer.tables, strict=False):
                key = (key * MULTIPLIER + before) % PRIME
                expected = expected + table.weight[key % 64]
            torch.testing.assert_close(embedded[row, last], expected)


def test_a_new_model_ignores_ngrams():
    model = fresh(ngrams=3)
    embedded = model.embed(TOKENS)
    model.ngrams = 1
    assert torch.equal(embedded, model.embed(TOKENS))


def test_a_cap_bounds_logits_in_float32():
    model, x = gpt(logit_cap=0.5).bfloat16(), torch.randn(2, 3, 16).bfloat16()
    capped, model.logit_cap = model.unembed(x), None
    plain = model.unembed(x).float()
    assert plain.abs().max() > 1
    assert torch.equal(capped, 0.5 * torch.tanh(plain / 0.5))


def test_a_model_refuses_what_are_no_tokens():
    model = gpt()
    empty = [torch.zeros(shape, dtype=torch.long) for shape in ((2, 0), (0, 3), (2, 3, 1))]
    for tokens in (*empty, torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)):
        for call in (model, model.hidden, model.next_logits, model.embed):
            with pytest.raises(UserError, match=rf"{tokens.dtype}.*integers|torch\.int64 \(B, T\)"):
                call(tokens)


def test_a_model_takes_what_a_tokenizer_returns():
    model, tokens = gpt(), torch.tensor([[3, 1, 4, 1, 5]])
    expected = model(tokens)
    encoded = tokens[0].numpy().astype("uint32")
    encoded.flags.writeable = False  # as the byte tokenizer may return them
    for given in (encoded, torch.tensor(encoded.copy()), tokens[0], tokens[0].tolist()):
        assert torch.equal(model(given), expected[0])
    assert torch.equal(model(encoded[None]), expected)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_which_devices_support_bf16(monkeypatch, on_gpu):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: on_gpu)
    for device, bf16 in (("cpu", True), ("mps", False), ("cuda", on_gpu)):
        assert supports_bf16(torch.device(device)) == bf16
