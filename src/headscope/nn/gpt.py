"""A decoder-only transformer (Radford 2019) that predicts the next token.

Shapes: B batch, T tokens, C embed_dim, V vocab_size.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headscope.errors import UserError
from headscope.nn.attention import MultiHeadAttention
from headscope.nn.block import Block
from headscope.nn.cache import Cache, Past
from headscope.nn.checks import check_positive, check_tokens
from headscope.nn.feed_forward import FeedForward, Gelu
from headscope.nn.masks import mask_from_documents
from headscope.nn.ngrams import NGramEmbedding
from headscope.nn.norm import LayerNorm
from headscope.nn.position.base import Position
from headscope.nn.position.rotary import Rotary
from headscope.nn.precision import padded_linear, upcast_to_float32


class GPT(nn.Module):
    """Embeds tokens, adds positions, applies `layers` blocks and a norm, and computes the logits.

    Six arguments are classes, or functions that create modules: `block`, `attention` and
    `feed_forward` for each block, `activation` for each feed-forward network, `norm` for each norm,
    and `position`.

    - `heads`, `kv_heads` and `head_dim` go to the attention, `ff_dim` to the feed-forward network.
    - `bias` adds biases to norms, feed-forward layers and output projections, `qkv_bias` to the
      projections to queries, keys and values.
    - `dropout` applies to attention weights, residual branches and embeddings.
    - `windows`: in each layer, how many keys a query sees, its own and those just before it, or 0
      for all. More layers begin again with the first: (0, 256) are every second layer (GPT-Neo).
    - `tied_head` uses the same matrix for the embedding and the output head (Press 2017).
    - `scale_embedding` multiplies embeddings by C / 2, and initializes them with std 2 / C. Their
      values are then about 1, as those of fixed position encodings (Vaswani 2017, 3.4, multiplies
      by sqrt(C)). With a tied output head, the logit of the embedded token begins at about 2, so
      that an untrained model predicts all tokens alike.
    - `ngrams`: adds embeddings of n-grams of 2, 3, ..., `ngrams` tokens (see `NGramEmbedding`).
    - With a `logit_cap` c, the logits become c tanh(logit / c), in float32 (Gemma 2, 2024).
    - With `document_mask`, each token with the id `end_of_text` (by default the last token of the
      vocabulary) begins a new document, and no information flows between documents (intra-document
      masking, Zhao 2024): a token attends only to its own document, and n-grams that cross the
      beginning of a document are omitted. Positions count from the first token of the sequence.

    As in GPT-2, initial weights have std 0.02, or 0.02 / sqrt(2 layers) in the projections that
    write to the residual stream. Raises UserError when sizes contradict one another.
    """

    checkpoint_activations = False
    """If true, keep only block inputs: the backward pass recomputes the rest (Chen 2016)."""

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
        ff_dim: int | None = None,
        dropout: float = 0.0,
        windows: tuple[int, ...] | None = None,
        bias: bool = False,
        qkv_bias: bool = False,
        tied_head: bool = True,
        scale_embedding: bool = False,
        ngrams: int = 1,
        ngram_buckets: int = 8192,
        logit_cap: float | None = None,
        document_mask: bool = False,
        end_of_text: int | None = None,
        attention: Callable[..., MultiHeadAttention] = MultiHeadAttention,
        position: Callable[..., Position] = Rotary,
        norm: Callable[..., nn.Module] = LayerNorm,
        activation: Callable[[], nn.Module] = Gelu,
        feed_forward: Callable[..., nn.Module | None] = FeedForward,
        block: Callable[..., Block] = Block,
    ) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, layers=layers, logit_cap=logit_cap)
        check_positive(ngrams=ngrams, ngram_buckets=ngram_buckets)
        end_of_text = vocab_size - 1 if end_of_text is None else end_of_text
        if not 0 <= end_of_text < vocab_size:
            raise UserError(f"end_of_text={end_of_text} must be below vocab_size={vocab_size}")
        sizes = {"embed_dim": embed_dim, "block_size": block_size}
        widths = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        options = {"qkv_bias": qkv_bias, "out_bias": bias, "dropout": dropout}
        windows = tuple(windows or (0,))
        if min(windows) < 0:
            raise UserError(f"windows={[*windows]} must be numbers of keys, or 0 for all")
        each_window = [windows[layer % len(windows)] for layer in range(layers)]
        attentions = [
            attention(**sizes, **widths, **options, **({"layer_window": window} if window else {}))
            for window in each_window
        ]
        make_norm = partial(norm, embed_dim, bias=bias)
        make_block = partial(block, norm=make_norm, dropout=dropout)
        make_network = partial(feed_forward, ff_dim=ff_dim, activation=activation, bias=bias)
        self.vocab_size, self.block_size, self.ngrams = vocab_size, block_size, ngrams
        self.embedding_scale = embed_dim / 2 if scale_embedding else 1.0
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.ngram_embedding = NGramEmbedding(ngrams, ngram_buckets, embed_dim)
        self.position = position(**sizes, heads=heads, head_dim=attentions[0].head_dim)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.blocks: Any = nn.ModuleList(  # of Block
            make_block(attention=layer, feed_forward=make_network(embed_dim=embed_dim))
            for layer in attentions
        )
        self.norm = make_norm()
        self.head = nn.Linear(embed_dim, vocab_size, bias=False)
        self.logit_cap = logit_cap
        self.end_of_text = end_of_text if document_mask else None
        self._initialize()
        for table in self.ngram_embedding.parameters():
            nn.init.zeros_(table)
        if scale_embedding:
            nn.init.normal_(self.embedding.weight, std=1 / self.embedding_scale)
        if tied_head:
            self.head.weight = self.embedding.weight

    def _initialize(self) -> None:
        residual_std = 0.02 / math.sqrt(2 * len(self.blocks))
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                writes_to_residual = name.endswith(("out_proj", "down_proj"))
                nn.init.normal_(module.weight, std=residual_std if writes_to_residual else 0.02)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) of the next token after each token in `tokens` (B, T). The batch axis is
        optional. `tokens` may also be an array of numpy, such as those of `Tokenizer.encode`."""
        if not isinstance(tokens, Tensor):
            tokens = torch.tensor(tokens, device=self.device)
        if tokens.dtype == torch.uint32:  # the dtype of `Tokenizer.encode`
            tokens = tokens.long()
        if tokens.dim() == 1:
            return self(tokens[None])[0]
        return self.unembed(self.hidden(tokens))

    def hidden(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """The last block's output (B, T, C). `tokens` are appended to the tokens in `cache`."""
        if cache is None:
            return self.through_blocks(self.embed(tokens), mask=self.document_mask(tokens))
        all_tokens, start = cache.append(tokens), cache.length
        mask = self.document_mask(all_tokens, start)
        x = self.through_blocks(self.embed(all_tokens, start), cache.pasts(), mask)
        cache.length += tokens.size(1)
        return x

    def embed(self, tokens: Tensor, start: int = 0) -> Tensor:
        """The first block's input (B, T - start, C): embeds `tokens` (B, T) from `start` on. Raises
        UserError unless there are 1 to `block_size` tokens, which must be integers."""
        check_tokens(tokens, self.block_size)
        x = self.embedding(tokens[:, start:]) * self.embedding_scale
        if self.ngrams > 1:
            x = self.ngram_embedding(x, tokens, self.documents(tokens))
        return self.dropout(self.position(x, start))

    def documents(self, tokens: Tensor) -> Tensor | None:
        """The number of each token's document (B, T): how many documents begin in `tokens` (B, T)
        up to this token. None if `end_of_text` is None."""
        return None if self.end_of_text is None else (tokens == self.end_of_text).cumsum(dim=1)

    def document_mask(self, tokens: Tensor, start: int = 0) -> Tensor | None:
        """The mask (B, 1, T - start, T) that keeps attention within documents, for the queries of
        `tokens` (B, T) from `start` on. None if `end_of_text` is None."""
        documents = self.documents(tokens)
        return None if documents is None else mask_from_documents(documents, start)

    def through_blocks(
        self, x: Tensor, pasts: Sequence[Past] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Applies all blocks to x (B, T, C). `pasts` are each layer's cached keys and values.
        `mask` is used in addition to the causal mask."""
        recompute = self.checkpoint_activations and self.training and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            inputs = (x, self.position, pasts[layer] if pasts else None, mask)
            x = checkpoint(block, *inputs, use_reentrant=False) if recompute else block(*inputs)
        return x

    def unembed(self, x: Tensor) -> Tensor:
        """Maps the last block's output x (B, T, C) to logits (B, T, V)."""
        x, weight = self.norm(x), self.head.weight
        logits = padded_linear(x, weight) if x.is_cuda and x.size(-2) > 1 else self.head(x)
        if self.logit_cap is None:
            return logits
        return self.logit_cap * torch.tanh(upcast_to_float32(logits) / self.logit_cap)

    def next_logits(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits (B, V) of the token that follows `tokens` (B, T)."""
        return self.unembed(self.hidden(tokens, cache)[:, -1:])[:, 0]

    def parameter_count(self) -> int:
        """Number of trainable parameters. A tied matrix counts once."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    @property
    def attentions(self) -> list[MultiHeadAttention]:
        """The attention layers, in order."""
        return [module for module in self.modules() if isinstance(module, MultiHeadAttention)]

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device
