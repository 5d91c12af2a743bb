"""Position encodings. They are added to the embeddings (`absolute`, `historical`), rotate queries
and keys (`rotary`), or are added to the scores (`biases`)."""

from headscope.nn.position.absolute import Sinusoidal
from headscope.nn.position.base import Learned, NoPosition, Position
from headscope.nn.position.biases import Alibi, HeadBias, Relative
from headscope.nn.position.historical import (
    Digits,
    Index,
    Normalized,
    add_position_over_length,
)
from headscope.nn.position.rotary import Rotary

__all__ = [
    "Alibi",
    "Digits",
    "HeadBias",
    "Index",
    "Learned",
    "NoPosition",
    "Normalized",
    "Position",
    "Relative",
    "Rotary",
    "Sinusoidal",
    "add_position_over_length",
]
