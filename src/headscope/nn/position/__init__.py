"""Position encodings: `absolute` are added to the embeddings, `rotary` rotates queries and keys,
and `biases` are added to the scores. `headscope.nn` exports all of them."""

from headscope.nn.position.base import Position
from headscope.nn.position.rotary import Rotary

__all__ = ["Position", "Rotary"]
