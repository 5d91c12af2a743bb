"""Position encodings: some are added to the embeddings (`absolute`, `historical`), some rotate
queries and keys (`rotary`), and some are added to the scores (`biases`). `headscope.nn` exports all
of them."""

from headscope.nn.position.base import Position
from headscope.nn.position.rotary import Rotary

__all__ = ["Position", "Rotary"]
