"""One transformer block: attention, then a feed-forward network, each on a residual.

Shapes: B batch, T tokens, C embed_dim.
"""

from collections.abc import Callable

from torch import Tensor, nn

from headscope.nn.activation import gelu
from headscope.nn.cache import Past
from headscope.nn.inputs import check_embeddings
from headscope.nn.norm import layer_norm
from headscope.nn.position import Position


class FeedForward(nn.Module):
    """Widen four times, `activation`, narrow again: what a token does with what attention brought.

    Parameters: 8 C^2 weights, plus 5 C biases with `bias`.
    """

    def __init__(
        self, *, embed_dim: int, activation: Callable[[Tensor], Tensor] = gelu, bias: bool = False
    ) -> None:
        super().__init__()
        self.activation = activation
        self.up_proj = nn.Linear(embed_dim, 4 * embed_dim, bias=bias)
        self.down_proj = nn.Linear(4 * embed_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))


class Block(nn.Module):
    """Pre-norm (Xiong 2020): x + attention(norm(x)), then x + feed_forward(norm(x)).

    Maps (B, T, C) to (B, T, C). `dropout` acts on what is added to the residual stream. `position`
    and `past` are passed on to attention; `norm` makes a normalization.

    Raises UserError when the input is not floating-point numbers (B, T, C), or is empty.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        attention: nn.Module,
        norm: Callable[..., nn.Module] = layer_norm,
        activation: Callable[[Tensor], Tensor] = gelu,
        dropout: float = 0.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.attention_norm = norm(embed_dim=embed_dim, bias=bias)
        self.attention = attention
        self.feed_forward_norm = norm(embed_dim=embed_dim, bias=bias)
        self.feed_forward = FeedForward(embed_dim=embed_dim, activation=activation, bias=bias)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(
        self, x: Tensor, position: Position | None = None, past: Past | None = None
    ) -> Tensor:
        check_embeddings(x, self.embed_dim)
        x = x + self.dropout(self.attention(self.attention_norm(x), position=position, past=past))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
