"""Position encodings. They are added to the embeddings (`absolute`, `historical`), rotate queries
and keys (`rotary`), or are added to the scores (`biases`). `headscope.nn` exports all of them."""

from headscope.nn.position.base import Learned, Position

__all__ = ["Learned", "Position"]
