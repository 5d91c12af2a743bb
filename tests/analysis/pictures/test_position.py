"""The laws of a position encoding's picture: it is read off the encoding itself."""

import numpy as np
import pytest
import torch
from choices import POSITIONS, SIZES, position_of
from drawn import assert_readable, assert_saved, data, images, words_of

from headscope.analysis.pictures import bias_map, position_picture
from headscope.errors import UserError
from headscope.nn import Position

TABLES = ["learned", "sinusoidal", "digits", "index", "normalized"]


def curves(panel) -> np.ndarray:
    return np.array([line.get_ydata() for line in panel.lines])


@pytest.mark.parametrize("name", [name for name in POSITIONS if name != "none"])
def test_every_position_but_none_has_a_picture_that_can_be_read(name):
    for heads, block_size in [(1, 1), (4, 2), (8, 64)]:
        position = position_of(name, heads=heads, block_size=block_size)
        assert_readable(position_picture(position))
    assert_saved(position_picture(position))
    assert position_picture(position_of("none")) is None


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_zeros_become(name):
    position = position_of(name)
    added = position(torch.zeros(1, SIZES["block_size"], SIZES["embed_dim"]))[0].detach()
    table, cosine = images(position_picture(position))
    drawn = data(table)
    np.testing.assert_array_equal(drawn, added.T[: len(drawn)])
    assert not added.T[len(drawn) :].any()
    expected = torch.cosine_similarity(added[:, None], added[None], dim=-1)
    expected[~added.any(dim=1)] = torch.nan
    expected[:, ~added.any(dim=1)] = torch.nan
    np.testing.assert_allclose(data(cosine), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["alibi", "relative"])
def test_a_bias_over_distance_is_that_of_every_pair_so_far_apart(name):
    position, size = position_of(name), SIZES["block_size"]
    first, second = position_picture(position).axes
    bias = position.bias(size, size).detach()
    for head, line in enumerate(curves(first)):
        for distance, value in enumerate(line):
            np.testing.assert_allclose(bias[head].diagonal(-distance), value, rtol=1e-6)
    np.testing.assert_allclose(curves(second).sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(curves(second)[:, ::-1], bias[:, -1].softmax(-1), rtol=1e-5)


def test_head_bias_is_drawn_whole_but_for_the_future():
    position, size = position_of("head_bias"), SIZES["block_size"]
    figure = position_picture(position)
    tables = position.table.detach().numpy()
    past = np.tril(np.ones((size, size), dtype=bool))
    for panel, table in zip(images(figure), tables, strict=True):
        np.testing.assert_array_equal(data(panel), np.where(past, table, np.nan))
        low, high = panel.images[0].get_clim()
        assert high == -low == np.abs(tables[:, past]).max()


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_shows_the_turn_of_each_pair_and_the_score_over_distance(interleaved):
    position, size = position_of("rotary", interleaved=interleaved), SIZES["block_size"]
    figure = position_picture(position)
    angle = torch.arange(size)[:, None] / 10000 ** (torch.arange(0, 4, 2) / 4)
    [cosine] = images(figure)
    np.testing.assert_allclose(data(cosine), angle.cos().T, atol=1e-6)
    np.testing.assert_allclose(curves(figure.axes[-1])[0], angle.cos().mean(-1), atol=1e-6)


def test_an_encoding_without_a_picture_says_so():
    with pytest.raises(TypeError, match="Strange has no picture"):
        position_picture(type("Strange", (Position,), {})(**SIZES))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["alibi", "relative", "head_bias"])
def test_a_bias_map_shows_both_directions_with_their_numbers(name, causal):
    position = position_of(name)
    figure = bias_map(position, 5, causal=causal)
    bias = position.bias(5, 5).detach().numpy()
    future = np.triu(np.ones((5, 5), dtype=bool), 1) & causal
    words = words_of(figure)
    for panel, values in zip(images(figure), bias, strict=True):
        np.testing.assert_array_equal(data(panel), np.where(future, np.nan, values))
        low, high = panel.images[0].get_clim()
        assert low == -high == -np.abs(bias[:, ~future]).max()
        drawn = [float(text.get_text()) for text in panel.texts if text.get_text() != "-"]
        np.testing.assert_allclose(drawn, values[~future], atol=0.01 * np.abs(values).max())
    assert ("after" in words) == (not causal)
    assert_readable(figure)
    assert_saved(figure)


def test_a_large_bias_map_has_colours_alone():
    figure = bias_map(position_of("alibi", block_size=40), 40)
    assert not any(panel.texts for panel in images(figure))


@pytest.mark.parametrize(("name", "tokens"), [("rotary", 5), ("none", 5), ("alibi", 11)])
def test_a_bias_map_of_nothing_is_refused(name, tokens):
    with pytest.raises(UserError):
        bias_map(position_of(name), tokens)
