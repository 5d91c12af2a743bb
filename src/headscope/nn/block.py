"""A transformer block: attention and usually a feed-forward network, each on a residual branch.

Shapes: B batch, T tokens, C embed_dim.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headscope.nn.attention import MultiHeadAttention
from headscope.nn.cache import Past
from headscope.nn.position.base import Position


class Block(nn.Module):
    """Pre-norm block (Xiong 2020): x + attention(norm(x)), then x + feed_forward(norm(x)).

    Maps (B, T, C) to (B, T, C). If `feed_forward` is None, there is only the first branch (Elhage
    2021: attention-only models). `norm` is called once per branch, to create its normalization.
    `dropout` applies to the output of each branch. The attention gets the other arguments.
    A class of your own overrides only `network_input`: analyses take the sum of the branches apart.
    """

    def __init__(
        self,
        *,
        attention: MultiHeadAttention,
        feed_forward: nn.Module | None,
        norm: Callable[[], nn.Module],
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention_norm = norm()
        self.attention = attention
        self.feed_forward_norm = nn.Identity() if feed_forward is None else norm()
        self.feed_forward = feed_forward
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(
        self,
        x: Tensor,
        position: Position | None = None,
        past: Past | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        attended = self.attention(self.attention_norm(x), position=position, past=past, mask=mask)
        return self.add_branches(x, self.dropout(attended))

    def add_branches(self, x: Tensor, attended: Tensor) -> Tensor:
        """The output of the block: its input x, the output of the branch with the attention, and
        that of the feed-forward network, if there is one."""
        after = x + attended
        return after if self.feed_forward is None else after + self.fed(x, after)

    def fed(self, x: Tensor, after: Tensor) -> Tensor:
        """The output of the branch with the feed-forward network. Zero if there is no network. x is
        the input of the block, and `after` the same after the attention."""
        if self.feed_forward is None:
            return torch.zeros_like(x)
        read = self.feed_forward_norm(self.network_input(x, after))
        return self.dropout(self.feed_forward(read))

    def network_input(self, x: Tensor, after: Tensor) -> Tensor:
        """What the norm of the feed-forward network reads."""
        return after


class ParallelBlock(Block):
    """Both branches read the input: x + attention(norm(x)) + feed_forward(norm(x)), with a norm for
    each of them (GPT-J, Wang 2021; GPT-NeoX, Black 2022)."""

    def network_input(self, x: Tensor, after: Tensor) -> Tensor:
        return x
