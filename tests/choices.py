"""What conf/ offers for the two parts of a model that vary, so that a law is tested over all."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pytest
import torch
from hydra.utils import get_object
from torch import nn

from headscope.config.parts import defaults_in_conf
from headscope.nn import Position


def choices(group: str) -> dict[str, Callable]:
    """The parts that conf/model/<group>/ offers, by name."""
    found = defaults_in_conf(f"model/{group}").items()
    return {keys["choice"]: get_object(target) for target, keys in found}


ATTENTIONS = choices("attention")
POSITIONS = choices("position")

HEADS = {"single_head": {"heads": 1}, "grouped_query": {"kv_heads": 2}}
"""What an attention needs, as its file in conf/ sets it; the others have any number of heads."""

PAIRS = [(attention, position) for attention in ATTENTIONS for position in POSITIONS]
EACH = [pair for pair in PAIRS if pair[0] == "multi_head" or pair[1] == "learned"]
"""Every attention and every position, not in every pair."""


def slow_unless(quick: Collection, values: Collection) -> list[Any]:
    """`values` to parametrize a law with; `pytest` takes those in `quick`, `pytest -m slow` the
    others."""
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]


every_pair = pytest.mark.parametrize("pair", slow_unless(EACH, PAIRS), ids="-".join)
every_part = pytest.mark.parametrize("pair", EACH, ids="-".join)

SIZES = {"embed_dim": 16, "block_size": 10, "heads": 4, "head_dim": 4}


def position_of(name: str, **options) -> Position:
    """A small one, its learned numbers far from zero."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed is far slower
    position = POSITIONS[name](**(SIZES | options))
    for parameter in position.parameters():
        nn.init.normal_(parameter)
    return position


def parts(attention: str, position: str, **options) -> dict:
    """What a GPT with these two is made with; `options` are the attention's own."""
    return {
        "attention": partial(ATTENTIONS[attention], **options),
        "position": POSITIONS[position],
        **{"heads": 4} | HEADS.get(attention, {}),
    }
