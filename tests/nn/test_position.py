"""The laws of position encodings."""

import math

import pytest
import torch

from headscope.nn import Learned, NoPosition, Sinusoidal
from headscope.nn.position import sinusoidal_table

ALL = [Learned, NoPosition, Sinusoidal]


@pytest.mark.parametrize("base", [10000.0, 100.0])
@pytest.mark.parametrize("width", [1, 2, 7, 16, 33])
def test_the_table_is_the_papers_formula(width, base):
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


@pytest.mark.parametrize("shift", [1, 5, 17])
@pytest.mark.parametrize("width", [2, 16])
def test_a_shift_turns_every_pair_by_one_angle_wherever_it_is(width, shift):
    pairs = sinusoidal_table(64, width).double().view(64, width // 2, 2)
    angle = shift * 10000.0 ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    sin, cos = angle.sin(), angle.cos()
    turn = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
    turned = torch.einsum("pij,tpj->tpi", turn, pairs[:-shift])
    torch.testing.assert_close(turned, pairs[shift:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("position", ALL)
def test_a_prefix_is_encoded_as_in_the_whole(position):
    encode = position(embed_dim=6, block_size=10)
    embeddings = torch.randn(2, 10, 6)
    whole = encode(embeddings)
    assert whole.shape == embeddings.shape
    for length in range(1, 11):
        assert torch.equal(encode(embeddings[:, :length]), whole[:, :length])


def test_what_is_added_is_the_table_and_none_adds_nothing():
    zeros = torch.zeros(2, 7, 6)
    learned, sinusoidal = (kind(embed_dim=6, block_size=10) for kind in (Learned, Sinusoidal))
    assert torch.equal(learned(zeros)[1], learned.table.weight[:7])
    assert torch.equal(sinusoidal(zeros)[1], sinusoidal_table(7, 6))
    assert torch.equal(NoPosition(embed_dim=6, block_size=10)(zeros), zeros)


@pytest.mark.parametrize(("kind", "count"), [(Learned, 60), (NoPosition, 0), (Sinusoidal, 0)])
def test_only_the_learned_table_has_parameters_and_is_in_checkpoints(kind, count):
    position = kind(embed_dim=6, block_size=10)
    assert sum(parameter.numel() for parameter in position.parameters()) == count
    assert sum(entry.numel() for entry in position.state_dict().values()) == count


@pytest.mark.parametrize("position", [NoPosition, Sinusoidal])
def test_embeddings_keep_their_type(position):
    embeddings = torch.zeros(1, 4, 6, dtype=torch.bfloat16)
    assert position(embed_dim=6, block_size=10)(embeddings).dtype == torch.bfloat16
