"""The laws of a position encoding's picture: it is read off the encoding itself."""

import numpy as np
import pytest
import torch
from choices import SIZES, position_of
from drawn import assert_images, images, past
from refusals import refused

from headscope.analysis.pictures import bias_map, position_picture
from headscope.nn import Position

pytestmark = pytest.mark.usefixtures("pictures_not_drawn")

SIZE = SIZES["block_size"]


def curves(panel):
    return np.array([line.get_ydata() for line in panel.lines])


@pytest.mark.parametrize("name", ["learned", "sinusoidal", "digits", "index", "normalized"])
def test_a_table_is_what_zeros_become(name):
    position = position_of(name)
    added = position(torch.zeros(1, SIZE, SIZES["embed_dim"]))[0].detach()
    used = added.any(dim=1)
    cosine = torch.cosine_similarity(added[:, None], added[None], dim=-1)
    cosine[~(used & used[:, None])] = torch.nan
    figure = position_picture(position)
    rows = len(images(figure)[0].images[0].get_array())
    assert_images(figure, [added.T[:rows], cosine], atol=1e-6)
    assert not added.T[rows:].any()


@pytest.mark.parametrize("name", ["alibi", "relative"])
def test_a_bias_over_distance_is_that_of_every_pair_so_far_apart(name):
    position = position_of(name)
    first, second = position_picture(position).axes
    bias = position.bias(SIZE, SIZE).detach()
    for head, line in enumerate(curves(first)):
        for distance, value in enumerate(line):
            np.testing.assert_allclose(bias[head].diagonal(-distance), value, rtol=1e-6)
    np.testing.assert_allclose(curves(second)[:, ::-1], bias[:, -1].softmax(-1), rtol=1e-5)


def test_rotary_shows_the_turn_of_each_pair_and_the_score_over_distance():
    figure = position_picture(position_of("rotary"))
    angle = torch.arange(SIZE)[:, None] / 10000 ** (torch.arange(0, 4, 2) / 4)
    assert_images(figure, [angle.cos().T], atol=1e-6)
    np.testing.assert_allclose(curves(figure.axes[-1])[0], angle.cos().mean(-1), atol=1e-6)


@pytest.mark.parametrize("name", ["alibi", "relative", "head_bias"])
def test_a_bias_map_shows_both_directions(name):
    position = position_of(name)
    assert_images(bias_map(position, 5), position.bias(5, 5).detach())
    if name == "head_bias":  # its picture is the whole map
        maps = np.where(past(SIZE), position.table.detach(), np.nan)
        assert_images(position_picture(position), maps)


def test_what_has_no_picture_or_no_map():
    for position in (position_of("none"), type("Own", (Position,), {})(**SIZES)):
        assert position_picture(position) is None
    for name, tokens in (("rotary", 5), ("none", 5), ("alibi", 11)):
        with refused():
            bias_map(position_of(name), tokens)
