"""The laws of the steps that led to sinusoids, and of what goes wrong with each."""

import doctest

import pytest
import torch
from choices import SIZES, position_of
from small_gpt import make_gpt

from headscope.config import SCHEMAS
from headscope.errors import UserError
from headscope.nn import (
    GPT,
    Digits,
    Index,
    NoPosition,
    Normalized,
    Position,
    add_position_over_length,
    layer_norm,
    rms_norm,
)
from headscope.nn.cache import make_cache
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


def test_digits_that_do_not_fit_are_refused_with_all_numbers():
    for base, width, most in [(2, 3, 8), (3, 2, 9), (10, 1, 10)]:
        sizes = {"base": base, "embed_dim": width}
        table = position_of("digits", block_size=most, **sizes)(torch.zeros(1, most, width))
        assert (table[0, -1] == base - 1).all()
        said = rf"embed_dim={width} .*base={base} .*block_size={most + 1}:"
        with pytest.raises(ValueError, match=said):
            position_of("digits", block_size=most + 1, **sizes)
    for base in (1, 0, -2):
        with pytest.raises(ValueError, match=f"base={base} "):
            position_of("digits", base=base)


def test_what_is_the_same_in_all_dimensions_is_removed_by_layer_norm_and_kept_by_rms_norm():
    tokens = torch.randint(11, (3, 10), generator=torch.Generator().manual_seed(1))
    sizes = {key: size for key, size in SIZES.items() if key != "head_dim"}
    for norm, kept in ((layer_norm, False), (rms_norm, True)):
        logits = {}
        for kind in (NoPosition, Index, Normalized, Digits):
            torch.manual_seed(0)
            options = {"bias": True, "position": kind, "norm": norm}
            model = make_gpt(vocab_size=11, layers=2, **options, **sizes).double()
            logits[kind] = model(tokens)
        for kind in (Index, Normalized):
            apart = (logits[kind] - logits[NoPosition]).abs().max()
            assert apart > 1e-2 if kept else apart < 1e-9
        assert (logits[Digits] - logits[NoPosition]).abs().max() > 1e-2


def test_the_examples_in_the_docstrings_hold():
    failed, attempted = doctest.testmod(historical)
    assert failed == 0
    assert attempted >= 3


# --- positions over the length of each text ---


class OverLength(Position):
    """What `add_position_over_length` would be as a choice of model/position."""

    def forward(self, embeddings: torch.Tensor, start: int = 0) -> torch.Tensor:
        zeros = embeddings.new_zeros(embeddings.size(0), start, embeddings.size(2))
        return add_position_over_length(torch.cat([zeros, embeddings], dim=1))[:, start:]


def over_length_model() -> GPT:
    sizes = {key: size for key, size in SIZES.items() if key != "head_dim"}
    torch.manual_seed(0)
    return make_gpt(vocab_size=11, layers=2, position=OverLength, norm=rms_norm, **sizes).double()


def test_every_text_runs_to_one_whatever_its_padding():
    added = add_position_over_length(torch.zeros(2, 4, 3), torch.tensor([4, 2]))
    expected = torch.tensor([[0.25, 0.5, 0.75, 1.0], [0.5, 1.0, 1.5, 2.0]])
    assert torch.equal(added, expected[..., None].expand(2, 4, 3))


def test_an_appended_token_moves_all_before_it_so_a_causal_model_knows_the_future():
    model, tokens = over_length_model(), torch.arange(8)[None]
    with torch.no_grad():
        shorter, longer = model(tokens[:, :7]), model(tokens)[:, :7]
        cache = make_cache(model, 1)
        model.hidden(tokens[:, :7], cache)
        cached = model.next_logits(tokens[:, 7:], cache)
        uncached = model.next_logits(tokens)
    assert (shorter - longer).abs().min() > 0
    assert (cached - uncached).abs().min() > 0


def test_in_windows_of_block_size_it_is_normalized():
    tokens = torch.randn(2, 10, 16)
    expected = position_of("normalized")(tokens)
    torch.testing.assert_close(add_position_over_length(tokens), expected)
    assert not any("OverLength" in vars(each)["_target_"] for each in SCHEMAS["position"].values())


def test_lengths_that_cannot_be_are_refused():
    for lengths in ([0, 3], [4, 1], [1], [1, 1, 1]):
        with pytest.raises(UserError, match="lengths="):
            add_position_over_length(torch.zeros(2, 3, 4), torch.tensor(lengths))
