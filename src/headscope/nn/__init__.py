"""The model: attention, position encodings, blocks and the GPT made of them. Imports torch only."""

from headscope.nn.attention import MultiHeadAttention
from headscope.nn.gpt import GPT
from headscope.nn.position import Learned, NoPosition, Position, Sinusoidal

__all__ = ["GPT", "Learned", "MultiHeadAttention", "NoPosition", "Position", "Sinusoidal"]
