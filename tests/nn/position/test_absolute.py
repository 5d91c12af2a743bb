"""The laws of encodings that are added to the embeddings, and of what goes wrong with the steps
that led to sinusoids."""

import math

import pytest
import torch
from choices import SIZES, position_of
from small_gpt import make_gpt

from headscope.errors import UserError
from headscope.nn import (
    Digits,
    Index,
    LayerNorm,
    NoPosition,
    Normalized,
    RMSNorm,
    add_position_over_length,
)
from headscope.nn.position.absolute import sinusoidal_table


@pytest.mark.parametrize(("width", "base"), [(1, 10000.0), (33, 500.0)])
def test_the_table_is_the_papers_formula_however_far_out(width, base):
    table = sinusoidal_table(30_000, width, base)
    for position in (*range(9), 29_999):  # in float32, this angle would be wrong by 0.001
        for dimension in range(width):
            angle = position / base ** (2 * (dimension // 2) / width)
            expected = math.cos(angle) if dimension % 2 else math.sin(angle)
            assert table[position, dimension].item() == pytest.approx(expected, abs=1e-7)


def test_what_is_added_is_the_table_and_in_bf16_the_table_rounded_once():
    zeros = torch.zeros(2, 7, 16)
    learned, sinusoidal = position_of("learned"), position_of("sinusoidal", base=7.0)
    assert torch.equal(learned(zeros)[1], learned.table.weight[:7])
    assert torch.equal(sinusoidal(zeros + 1)[1], sinusoidal_table(7, 16, 7.0) + 1)
    rounded = position_of("sinusoidal", block_size=1000).bfloat16()(torch.zeros(1, 1000, 16))
    assert torch.equal(rounded[0].bfloat16(), sinusoidal_table(1000, 16, 10000.0).bfloat16())


# --- the steps that led to sinusoids ---


def added(name: str, length: int = 10, **options) -> torch.Tensor:
    """What is added to the embeddings of `length` tokens, (T, C)."""
    return position_of(name, **options)(torch.zeros(1, length, 16))[0]


def test_index_adds_numbers_from_1_and_normalized_their_share_of_block_size():
    numbers = torch.arange(1.0, 11)[:, None].expand(-1, 16)
    assert torch.equal(added("index"), numbers)
    torch.testing.assert_close(added("normalized"), numbers / 10)


@pytest.mark.parametrize("base", [2, 10])
def test_digits_are_those_of_the_number_the_lowest_first(base):
    digits = added("digits", 700, block_size=700, base=base).long()
    expected = torch.arange(700)[:, None] // base ** torch.arange(10) % base
    assert torch.equal(digits[:, :10], expected)
    assert not digits[:, 10:].any()


def test_what_is_the_same_in_all_dimensions_is_removed_by_layer_norm_and_kept_by_rms_norm():
    tokens = torch.randint(11, (3, 10), generator=torch.Generator().manual_seed(1))
    sizes = {key: size for key, size in SIZES.items() if key != "head_dim"}
    for norm, kept in ((LayerNorm, False), (RMSNorm, True)):
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


def test_over_its_length_every_text_runs_from_zero_to_one_whatever_its_padding():
    added = add_position_over_length(torch.zeros(3, 5, 3), torch.tensor([5, 3, 1]))
    rows = [[0, 0.25, 0.5, 0.75, 1], [0, 0.5, 1, 1.5, 2], [0, 1, 2, 3, 4]]
    assert torch.equal(added, torch.tensor(rows)[..., None].expand(3, 5, 3))
    assert torch.equal(add_position_over_length(torch.ones(1, 1, 2)), torch.ones(1, 1, 2))
    for lengths in ([0, 3], [4, 1], [1]):
        with pytest.raises(UserError, match="lengths="):
            add_position_over_length(torch.zeros(2, 3, 4), torch.tensor(lengths))
