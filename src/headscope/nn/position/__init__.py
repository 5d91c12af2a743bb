"""Position encodings: added to the embeddings (`absolute`, `historical`), turning queries and keys
(`rotary`), or added to the scores (`biases`). `headscope.nn` exports all of them."""

from headscope.nn.position.absolute import Learned
from headscope.nn.position.base import Position

__all__ = ["Learned", "Position"]
