"""Tests of the optimizers: parameter groups, weight decay, Muon, and combined optimizers."""

import pytest
import torch
from small_gpt import make_gpt
from torch import nn

from headscope.nn import GPT, AdditiveAttention, Learned, MultiHeadAttention
from headscope.training.muon import Muon, orthogonal
from headscope.training.optimizer import adamw, muon

SETTINGS = {"lr": 0.01, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95}


def model(**options) -> GPT:
    sizes = {"vocab_size": 7, "block_size": 5, "embed_dim": 4, "layers": 2, "heads": 2}
    return make_gpt(**sizes, bias=True, qkv_bias=True, position=Learned, **options)


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_in_exactly_one_group_and_vectors_have_no_weight_decay(tied):
    gpt = model(tied_head=tied)
    gpt.position.table.weight.requires_grad_(False)  # a frozen parameter is in no group
    groups = adamw(gpt, **SETTINGS).param_groups
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(listed) == sorted(id(each) for each in gpt.parameters() if each.requires_grad)
    for group in groups:
        assert (group["lr"], group["betas"]) == (0.01, (0.8, 0.95))
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.1 if parameter.dim() >= 2 else 0.0)


MUON = SETTINGS | {"matrix_lr": 0.02, "momentum": 0.9}


@pytest.mark.parametrize("attention", [MultiHeadAttention, AdditiveAttention])
def test_muon_trains_the_matrices_of_the_blocks_and_adamw_all_other_parameters(attention):
    gpt = model(tied_head=False, attention=attention)
    fused, hidden, *rest = muon(gpt, **MUON).param_groups
    assert fused["params"] == [block.attention.qkv.weight for block in gpt.blocks]
    assert fused["rows"] == (4, 4, 4)  # queries, keys and values
    assert muon(model(kv_heads=1), **MUON).param_groups[0]["rows"] == (4, 2, 2)
    matrices = {part.weight for part in gpt.blocks.modules() if isinstance(part, nn.Linear)}
    assert {*fused["params"], *hidden["params"]} == matrices  # not the vectors of additive heads
    assert hidden["rows"] is None
    assert fused["lr"] == hidden["lr"] == 0.02
    assert {p for group in rest for p in group["params"]} == set(gpt.parameters()) - matrices
    assert {(group["lr"], group["betas"]) for group in rest} == {(0.01, (0.8, 0.95))}
    assert fused["momentum"] == hidden["momentum"] == 0.9
    assert [group["weight_decay"] for group in (fused, hidden, *rest)] == [0.1, 0.1, 0.1, 0.0]


def test_muon_rejects_momentum_and_betas_that_are_out_of_range():
    for key, wrong in (("momentum", 1.0), ("beta1", 1.0), ("beta2", -0.1)):
        with pytest.raises(ValueError, match=key):
            muon(model(), **(MUON | {key: wrong}))


@pytest.mark.parametrize(("weight_decay", "fast"), [(0.0, True), (0.3, True), (0.3, False)])
def test_muon_makes_the_same_updates_as_torch_optim_muon(weight_decay, fast, monkeypatch):
    """Each block of `rows` is updated like a matrix of its own. bf16 is used where it is fast."""
    monkeypatch.setattr("headscope.training.muon.multiplies_bf16_fast", lambda device: fast)
    made = orthogonal(torch.rand(3, 6, 9))
    assert torch.equal(made, made.bfloat16().float()) == fast
    generator = torch.Generator().manual_seed(0)
    still = nn.Parameter(torch.ones(2, 3))  # has no gradient
    shapes = [(24, 8), (8, 24), (8, 8), (32, 8), (24, 8), (8, 32), (5, 8), (16, 8)]
    *alone, fused = (nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes)
    blocks = fused.detach().split([8, 4, 4])
    theirs = [nn.Parameter(each.detach().clone()) for each in (*alone, *blocks)]
    groups = [{"params": [*alone, still]}, {"params": [fused], "rows": (8, 4, 4)}]
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": weight_decay}
    optimizers = [Muon(groups, **settings), torch.optim.Muon(theirs, **settings)]
    for _ in range(4):
        for mine in (*alone, fused):
            mine.grad = torch.randn(mine.shape, generator=generator)
        fused.grad *= torch.linspace(1, 100, 16)[:, None]
        gradients = [*(mine.grad for mine in alone), *fused.grad.split([8, 4, 4])]
        for other, gradient in zip(theirs, gradients, strict=True):
            other.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    # A step changes a number by about 0.03. Roundings to bf16 differ.
    ours = [*alone, *fused.detach().split([8, 4, 4])]
    assert torch.equal(still, torch.ones(2, 3))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.detach(), other.detach(), rtol=0, atol=5e-3)
