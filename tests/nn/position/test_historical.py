"""The laws of the steps that led to sinusoids, and of what goes wrong with each."""

import doctest

import pytest
import torch
from choices import SIZES, position_of

from headscope.nn import GPT, Digits, Index, NoPosition, Normalized
from headscope.nn.position import historical


def added(name: str, length: int = 10, **options) -> torch.Tensor:
    """What is added to the embeddings of `length` tokens, (T, C)."""
    return position_of(name, **options)(torch.zeros(1, length, 16))[0]


def test_index_adds_the_numbers_from_1_to_every_dimension():
    assert torch.equal(added("index"), torch.arange(1.0, 11)[:, None].expand(10, 16))


def test_in_bf16_a_token_is_gone_at_place_64():
    tokens = torch.full((1, 64, 16), 0.2, dtype=torch.bfloat16)
    encoded = position_of("index", block_size=64)(tokens)
    assert (encoded[0, 63] == 64).all()
    assert (encoded[0, 0] > 1).all()


@pytest.mark.parametrize("block_size", [1, 10, 1000])
def test_normalized_adds_the_share_of_block_size_not_of_the_text(block_size):
    whole = added("normalized", block_size, block_size=block_size)
    assert whole.min() > 0
    assert (whole[-1] == 1).all()
    expected = torch.arange(1, block_size + 1) / block_size
    torch.testing.assert_close(whole, expected[:, None].expand(-1, 16))
    assert torch.equal(added("normalized", 1, block_size=block_size), whole[:1])


@pytest.mark.parametrize("base", [2, 3, 10, 16])
def test_digits_are_those_of_the_number_the_lowest_first(base):
    digits = added("digits", 700, block_size=700, base=base).long()
    assert ((digits >= 0) & (digits < base)).all()
    assert torch.equal(digits[:, :10] @ base ** torch.arange(10), torch.arange(700))
    assert not digits[:, 10:].any()
    assert torch.equal(digits[:, 0], torch.arange(700) % base)


def test_digits_jump():
    digits = added("digits")
    changed = (digits[1:] != digits[:-1]).sum(dim=1)
    assert changed[7] == 4
    assert changed[6] == 1


@pytest.mark.parametrize(("base", "width", "most"), [(2, 3, 8), (3, 2, 9), (10, 1, 10)])
def test_digits_that_do_not_fit_are_refused_with_all_numbers(base, width, most):
    sizes = {"base": base, "embed_dim": width}
    table = position_of("digits", block_size=most, **sizes)(torch.zeros(1, most, width))
    assert (table[0, -1] == base - 1).all()
    said = rf"embed_dim={width} .*base={base} .*block_size={most + 1}$"
    with pytest.raises(ValueError, match=said):
        position_of("digits", block_size=most + 1, **sizes)


@pytest.mark.parametrize("base", [1, 0, -2])
def test_a_base_without_digits_is_refused(base):
    with pytest.raises(ValueError, match=f"base={base} "):
        position_of("digits", base=base)


def test_what_is_the_same_in_all_dimensions_is_never_seen():
    """LayerNorm takes it away: the logits are those of no position at all."""
    tokens = torch.randint(11, (3, 10), generator=torch.Generator().manual_seed(1))
    logits = {}
    for kind in (NoPosition, Index, Normalized, Digits):
        torch.manual_seed(0)
        sizes = {key: size for key, size in SIZES.items() if key != "head_dim"}
        model = GPT(vocab_size=11, layers=2, bias=True, position=kind, **sizes).double()
        logits[kind] = model(tokens)
    for kind in (Index, Normalized):
        torch.testing.assert_close(logits[kind], logits[NoPosition], rtol=0, atol=1e-9)
    assert (logits[Digits] - logits[NoPosition]).abs().max() > 1e-2


def test_the_examples_in_the_docstrings_hold():
    failed, attempted = doctest.testmod(historical)
    assert failed == 0
    assert attempted >= 3
