"""A decoder-only transformer (Radford 2019), from tokens to the logits of the next one.

Shapes: B batch, T tokens, C embed_dim, V vocab_size.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headscope.errors import UserError
from headscope.nn.activation import gelu
from headscope.nn.attention import Attention, multi_head
from headscope.nn.attention.base import head_width
from headscope.nn.block import Block
from headscope.nn.cache import Cache, Past
from headscope.nn.inputs import check_tokens
from headscope.nn.norm import layer_norm
from headscope.nn.position import Learned, Position


class GPT(nn.Module):
    """Embed, add position, run `layers` blocks, normalize, score every token of the vocabulary.

    `attention`, `position` and `norm` make these parts from the sizes, a new attention and new
    norms for every layer and one position for all; `activation` is that of the feed-forward
    networks. `kv_heads` and `head_dim` follow from `heads` unless given.
    `dropout` acts on attention weights, on residuals, and after embedding plus position.
    `scale_embedding` starts embeddings as N(0, 1/sqrt(C)) and multiplies them by sqrt(C) (Vaswani
    2017, 3.4), so that a position encoding of fixed size does not drown them. `tied_head` makes the
    output matrix the embedding's own (Press 2017); a fresh model of both expects every token again.
    `previous_tokens` n adds to every token's embedding what n further tables say of the n tokens before
    it, one table for each distance, so that it knows them before any attention; they start at zero.
    `norm_embedding` normalizes what the first block reads.
    `logit_cap` c bends logits to c tanh(logit / c), so that none is beyond it (Gemma 2, 2024).

    Other weights start as N(0, 0.02); the projections that write to the residual stream are scaled
    down by 1/sqrt(2 layers), so that its variance does not grow with depth (GPT-2), or with
    `zero_init` start at zero, so that a fresh block changes nothing (Zhang 2019: Fixup).

    Parameters (no biases): V C, as much again when not tied and for each table of `previous_tokens`, the
    position's own; in each layer attention's own, 4 C^2 by default, and 8 C^2; and (2 layers + 1) C
    of norms, C more with `norm_embedding`.

    Raises UserError when the sizes, or attention and position, do not fit together.
    """

    checkpoint_activations = False
    """While it trains, keep of each block what it reads alone, and compute the rest anew on the way
    back (Chen 2016): less memory, a third more time, the same numbers."""

    def __init__(
        self,
        *,
        vocab_size: int,
        block_size: int,
        embed_dim: int,
        layers: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        attention: Callable[..., Attention] = multi_head,
        position: Callable[..., Position] = Learned,
        norm: Callable[..., nn.Module] = layer_norm,
        activation: Callable[[Tensor], Tensor] = gelu,
        dropout: float = 0.0,
        bias: bool = False,
        qkv_bias: bool = False,
        tied_head: bool = True,
        scale_embedding: bool = False,
        previous_tokens: int = 0,
        norm_embedding: bool = False,
        zero_init: bool = False,
        logit_cap: float | None = None,
    ) -> None:
        super().__init__()
        sizes = {
            "vocab_size": vocab_size,
            "block_size": block_size,
            "embed_dim": embed_dim,
            "layers": layers,
        }
        for name, size in sizes.items():
            if size < 1:
                raise UserError(f"{name}={size} must be at least 1")
        if not 0 <= dropout < 1:
            raise UserError(f"dropout={dropout} must be at least 0 and below 1")
        if previous_tokens < 0:
            raise UserError(f"previous_tokens={previous_tokens} must be 0 or more")
        if logit_cap is not None and not 0 < logit_cap < math.inf:
            raise UserError(f"logit_cap={logit_cap} must be above 0, or null for none")
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.embedding_scale = math.sqrt(embed_dim) if scale_embedding else 1.0
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.previous_token_embeddings = nn.ModuleList(
            nn.Embedding(vocab_size, embed_dim) for _ in range(previous_tokens)
        )
        self.position = position(
            embed_dim=embed_dim,
            block_size=block_size,
            heads=heads,
            head_dim=head_width(embed_dim=embed_dim, heads=heads, head_dim=head_dim),
        )
        self.embedding_norm = (
            norm(embed_dim=embed_dim, bias=bias) if norm_embedding else nn.Identity()
        )
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        attentions = [
            attention(
                embed_dim=embed_dim,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                block_size=block_size,
                dropout=dropout,
                qkv_bias=qkv_bias,
                out_bias=bias,
            )
            for _ in range(layers)
        ]
        for part in attentions:
            part.check_position(self.position)
        self.blocks = nn.ModuleList(
            Block(
                embed_dim=embed_dim,
                attention=part,
                norm=norm,
                activation=activation,
                dropout=dropout,
                bias=bias,
            )
            for part in attentions
        )
        self.norm = norm(embed_dim=embed_dim, bias=bias)
        self.head = nn.Linear(embed_dim, vocab_size, bias=False)
        self.logit_cap = logit_cap
        self._initialize(residual_std=0.0 if zero_init else 0.02 / math.sqrt(2 * layers))
        for table in self.previous_token_embeddings.parameters():
            nn.init.zeros_(table)
        if scale_embedding:
            nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(embed_dim))
        if tied_head:
            self.head.weight = self.embedding.weight

    def _initialize(self, *, residual_std: float) -> None:
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                std = residual_std if name.endswith(("out_proj", "down_proj")) else 0.02
                nn.init.normal_(module.weight, std=std)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) of the token that follows each of `tokens` (B, T).

        Raises UserError when tokens are no integers, there are none, or T is more than
        `block_size`.
        """
        return self.unembed(self.hidden(tokens))

    def hidden(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """What the last block writes, (B, T, C). Raises UserError as `forward` does.

        With `cache`, `tokens` are those that follow what it has of the same texts, and it has them
        too afterwards.
        """
        if cache is None:
            return self.through_blocks(self.embed(tokens))
        seen = cache.read(tokens)
        x = self.through_blocks(self.embed(seen, cache.length), cache.pasts())
        cache.length += tokens.size(1)
        return x

    def through_blocks(self, x: Tensor, pasts: Sequence[Past] | None = None) -> Tensor:
        """What the last block writes, (B, T, C), when the first one reads x (B, T, C); `pasts` are
        what every layer has of the tokens before."""
        anew = self.checkpoint_activations and self.training and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            given = (x, self.position, pasts[layer] if pasts else None)
            x = checkpoint(block, *given, use_reentrant=False) if anew else block(*given)
        return x

    def embed(self, tokens: Tensor, start: int = 0) -> Tensor:
        """What the first block reads, (B, T - start, C), of `tokens` (B, T) from `start` on. Raises
        UserError as `forward` does."""
        check_tokens(tokens)
        if tokens.size(1) > self.block_size:
            raise UserError(f"{tokens.size(1)} tokens are more than block_size={self.block_size}")
        x = self.embedding(tokens[:, start:]) * self.embedding_scale
        for distance, table in enumerate(self.previous_token_embeddings, start=1):
            seen = table(tokens[:, max(0, start - distance) : -distance])
            x = x + F.pad(seen, (0, 0, x.size(1) - seen.size(1), 0))
        return self.dropout(self.embedding_norm(self.position(x, start)))

    def unembed(self, x: Tensor) -> Tensor:
        """Logits (B, T, V) from what the last block wrote, (B, T, C)."""
        logits = self.head(self.norm(x))
        if self.logit_cap is None:
            return logits
        return self.logit_cap * torch.tanh(logits / self.logit_cap)

    def next_logits(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits (B, V) of the token after the last of `tokens` (B, T), alone; `cache` as in
        `hidden`."""
        return self.unembed(self.hidden(tokens, cache)[:, -1:])[:, 0]

    def make_cache(self, batch: int) -> Cache:
        """An empty cache for `batch` texts, in the number format of the weights."""
        attention = self.attentions[0]
        return Cache(
            layers=len(self.blocks),
            batch=batch,
            kv_heads=attention.kv_heads,
            block_size=self.block_size,
            head_dim=attention.head_dim,
            dtype=self.embedding.weight.dtype,
            device=self.device,
        )

    def parameter_count(self) -> int:
        """Trainable numbers, a tied matrix counted once."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def cache_bytes_per_token(self) -> int:
        """What a key-value cache of this model holds for every token, in its own number format."""
        numbers = sum(part.cache_width for part in self.attentions)
        return numbers * self.embedding.weight.element_size()

    @property
    def attentions(self) -> list[Attention]:
        """The attention of every layer."""
        return [part for part in self.modules() if isinstance(part, Attention)]

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device
