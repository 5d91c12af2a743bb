"""The laws of encodings that are a table, added to the embeddings."""

import math

import pytest
import torch
from choices import position_of

from headscope.nn.position.absolute import sinusoidal_table


@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_the_table_is_the_papers_formula(base):
    for width in [1, 2, 7, 16, 33]:
        table = sinusoidal_table(50, width, base)
        assert table.dtype == torch.float32
        for position in range(50):
            for dimension in range(width):
                angle = position / base ** (2 * (dimension // 2) / width)
                expected = math.cos(angle) if dimension % 2 else math.sin(angle)
                assert table[position, dimension].item() == pytest.approx(expected, abs=1e-7)


def test_the_table_is_exact_far_from_its_beginning():
    # In float32, angles of some ten thousands would be wrong by a thousandth.
    table = sinusoidal_table(30_000, 4)
    assert table[29_999, 0].item() == pytest.approx(math.sin(29_999), abs=1e-6)
    assert table[29_999, 3].item() == pytest.approx(math.cos(299.99), abs=1e-6)
    wide = sinusoidal_table(30_000, 24, 500.0)  # its frequencies are not round
    for pair in range(12):
        angle = 29_999 / 500.0 ** (pair / 12)
        assert wide[29_999, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert wide[29_999, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize(("width", "shift"), [(2, 1), (16, 5), (16, 17)])
def test_a_shift_turns_every_pair_by_one_angle_wherever_it_is(width, shift):
    pairs = sinusoidal_table(64, width).double().view(64, width // 2, 2)
    angle = shift * 10000.0 ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    sin, cos = angle.sin(), angle.cos()
    turn = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
    turned = torch.einsum("pij,tpj->tpi", turn, pairs[:-shift])
    torch.testing.assert_close(turned, pairs[shift:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("base", [10000.0, 7.0])
def test_what_is_added_is_the_table(base):
    zeros = torch.zeros(2, 7, 16)
    learned, sinusoidal = position_of("learned"), position_of("sinusoidal", base=base)
    assert torch.equal(learned(zeros)[1], learned.table.weight[:7])
    assert torch.equal(sinusoidal(zeros)[1], sinusoidal_table(7, 16, base))
    assert torch.equal(sinusoidal(zeros + 1), sinusoidal(zeros) + 1)


def test_the_table_is_the_same_in_bf16_but_for_one_rounding():
    table = position_of("sinusoidal", block_size=1000).bfloat16()(torch.zeros(1, 1000, 16))
    assert torch.equal(table[0].bfloat16(), sinusoidal_table(1000, 16).bfloat16())


def test_a_base_that_makes_no_frequencies_is_refused():
    for name in ("sinusoidal", "rotary"):
        for base in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match=f"base={base} "):
                position_of(name, base=base)
