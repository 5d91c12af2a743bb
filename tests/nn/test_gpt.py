"""The laws of the whole model, over every position encoding and every switch."""

import itertools
import math

import pytest
import torch
from hydra.utils import get_object
from torch import nn

from headscope.config import SCHEMAS
from headscope.nn import GPT, Learned, Sinusoidal
from headscope.nn.attention import attend_explicit
from headscope.nn.loss import next_token_loss

SMALL = {"vocab_size": 11, "block_size": 10, "embed_dim": 12, "layers": 3, "heads": 3}


def parts(group: str) -> list[type]:
    """The classes that conf/ offers for this part of the model."""
    return [get_object(vars(schema)["_target_"]) for schema in SCHEMAS[group].values()]


VARIANTS = [
    {
        "attention": attention,
        "position": position,
        "tied_head": tied,
        "bias": bias,
        "qkv_bias": bias,
        "scale_embedding": tied,
    }
    for attention, position, tied, bias in itertools.product(
        parts("attention"), parts("position"), [False, True], [False, True]
    )
]


def gpt(**options) -> GPT:
    """A small model whose layers do much: with fresh weights they hardly change their input."""
    torch.manual_seed(0)
    model = GPT(**(SMALL | options)).eval()
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=0.5)
    return model


def some_tokens(length: int = 10, batch: int = 2) -> torch.Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("options", VARIANTS)
def test_a_changed_token_changes_its_own_logits_and_none_before(options):
    model, tokens = gpt(**options), some_tokens()
    before = model(tokens)
    for place in range(10):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 11
        after = model(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-6)
        assert (after[:, place] - before[:, place]).abs().max() > 1e-3


@pytest.mark.parametrize("options", VARIANTS)
def test_text_that_follows_changes_no_logits(options):
    model, tokens = gpt(**options), some_tokens()
    whole = model(tokens)
    for length in range(1, 11):
        torch.testing.assert_close(model(tokens[:, :length]), whole[:, :length])


@pytest.mark.parametrize("options", VARIANTS)
def test_fused_equals_explicit_in_logits_and_gradients(options):
    model, tokens = gpt(**options), some_tokens()
    results = []
    for attend in (None, attend_explicit):
        for block in model.blocks:
            block.attention.attend = attend or block.attention.attend
        logits = model(tokens)
        loss = next_token_loss(logits[:, :-1], tokens[:, 1:])
        results.append((logits, *torch.autograd.grad(loss, list(model.parameters()))))
    for fused, explicit in zip(*results, strict=True):
        torch.testing.assert_close(fused, explicit, rtol=1e-3, atol=1e-4)


def test_the_order_of_tokens_matters():
    for position in parts("position"):
        model = gpt(position=position)
        logits = model(torch.tensor([[1, 2, 3], [2, 1, 3]]))[:, -1]
        assert (logits[0] - logits[1]).abs().max() > 1e-3


def test_sequences_of_a_batch_do_not_see_each_other():
    model, tokens = gpt(), some_tokens(batch=4)
    torch.testing.assert_close(model(tokens)[2:3], model(tokens[2:3]))


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize(("width", "vocab", "block"), [(8, 5, 3), (32, 300, 64)])
def test_parameters_are_as_many_as_said(width, vocab, block, layers):
    sizes = {"vocab_size": vocab, "block_size": block, "embed_dim": width, "layers": layers}
    plain = vocab * width + 12 * layers * width**2 + (2 * layers + 1) * width
    for options, more in (
        ({}, 0),
        ({"tied_head": False}, vocab * width),
        ({"position": Learned}, block * width),
        ({"qkv_bias": True}, 3 * layers * width),
        # of norms; of feed-forward layers and output projections
        ({"bias": True}, (2 * layers + 1) * width + (5 + 1) * layers * width),
    ):
        assert GPT(**sizes, heads=2, **options).parameter_count() == plain + more


def test_a_tied_head_is_the_embedding_itself():
    tied, untied = gpt(), gpt(tied_head=False)
    assert tied.head.weight.data_ptr() == tied.embedding.weight.data_ptr()
    assert untied.head.weight.data_ptr() != untied.embedding.weight.data_ptr()
    clone = GPT(**SMALL).eval()
    clone.load_state_dict(tied.state_dict())
    assert clone.head.weight.data_ptr() == clone.embedding.weight.data_ptr()
    assert torch.equal(clone(some_tokens()), tied(some_tokens()))


@pytest.mark.parametrize("options", VARIANTS)
def test_a_state_dict_holds_parameters_alone(options):
    model = gpt(**options)
    assert set(model.state_dict()) == {
        name for name, _ in model.named_parameters(remove_duplicate=False)
    }


@pytest.mark.parametrize("layers", [1, 8])
def test_fresh_weights_have_the_spread_of_gpt_2(layers):
    torch.manual_seed(0)
    sizes = SMALL | {"embed_dim": 96, "layers": layers, "vocab_size": 500}
    model = GPT(**sizes, bias=True, qkv_bias=True, position=Learned)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            expected = 0.02 / math.sqrt(2 * layers) if "out_proj" in name else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.1), name
        else:
            assert (parameter == (1.0 if "norm" in name and "weight" in name else 0.0)).all()


@pytest.mark.parametrize("options", VARIANTS)
def test_a_fresh_model_knows_nothing(options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "block_size": 32, "embed_dim": 64, "layers": 4, "heads": 4}
    tokens = torch.randint(1000, (8, 33))
    loss = next_token_loss(GPT(**sizes, **options)(tokens[:, :-1]), tokens[:, 1:])
    assert loss.item() == pytest.approx(math.log(1000), abs=0.1)


def test_a_scaled_embedding_is_sqrt_of_the_width_times_as_large():
    plain, scaled = gpt(), gpt(scale_embedding=True)
    with torch.no_grad():
        scaled.embedding.weight /= math.sqrt(12)
    read = {}
    for model in (plain, scaled):
        model.position.register_forward_pre_hook(
            lambda module, arguments, model=model: read.update({model: arguments[0]})
        )
        model(some_tokens())
    torch.testing.assert_close(read[plain], read[scaled])


def test_dropout_draws_anew_in_training_and_never_in_evaluation():
    model, tokens = gpt(dropout=0.3), some_tokens()
    assert torch.equal(model(tokens), model(tokens))
    torch.testing.assert_close(model(tokens), gpt()(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))
    sure = gpt(dropout=0.0).train()
    assert torch.equal(sure(tokens), sure(tokens))


@pytest.mark.parametrize("size", ["vocab_size", "block_size", "embed_dim", "layers"])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_below_one_are_refused_by_name(size, value):
    with pytest.raises(ValueError, match=f"{size}={value}"):
        GPT(**(SMALL | {size: value}))


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2.0, math.nan])
def test_a_dropout_that_is_no_share_is_refused(dropout):
    with pytest.raises(ValueError, match=f"dropout={dropout}"):
        GPT(**SMALL, dropout=dropout)


@pytest.mark.parametrize("heads", [0, 5, 24])
def test_heads_that_do_not_divide_the_width_are_refused(heads):
    with pytest.raises(ValueError, match=rf"embed_dim=12\b.*heads={heads}\b"):
        GPT(**(SMALL | {"heads": heads}))


@pytest.mark.parametrize("position", [Learned, Sinusoidal])
def test_more_tokens_than_block_size_are_refused(position):
    with pytest.raises(ValueError, match=r"11 tokens.*block_size=10\b"):
        gpt(position=position)(some_tokens(11))
