"""A small GPT with any attention and position, tokens for it, and an induction circuit built by
hand."""

from functools import partial

import torch
from choices import PAIRS, parts
from torch import Tensor

from headscope.nn import GPT, Learned, MultiHead
from headscope.nn.loss import next_token_loss
from headscope.training.objective import Objective

SMALL = {"vocab_size": 11, "block_size": 10, "embed_dim": 16, "layers": 2, "heads": 4}
SWITCHES = ("bias", "qkv_bias", "scale_embedding", "tied_head")


def variant(pair: tuple[str, str]) -> dict:
    """The two parts, and switches that differ from pair to pair."""
    number = PAIRS.index(pair)
    switches: dict = {name: bool(number >> place & 1) for place, name in enumerate(SWITCHES)}
    switches |= {"ngrams": 1 + number % 4, "ngram_buckets": 29}
    return parts(*pair, qk_norm=number % 3 == 0) | switches


def make_gpt(*, heads=4, **options) -> GPT:
    return GPT(heads=heads, **options)


def fresh(**options) -> GPT:
    torch.default_generator.manual_seed(0)  # torch.manual_seed is far slower
    return make_gpt(**(SMALL | options))


def gpt(**options) -> GPT:
    """A small model whose layers do much: with fresh weights they hardly change their input."""
    model = fresh(**options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return model


def some_tokens(length: int = 10, batch: int = 2) -> Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(1))


def loss_of(model: GPT, tokens: Tensor) -> Tensor:
    return next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])


def training_step(
    model: GPT, tokens: Tensor, *, checkpointing: bool = False, chunk_tokens: int | None = None
) -> list[Tensor]:
    """The loss, then the gradient of every parameter."""
    torch.manual_seed(2)
    model.train().checkpoint_activations = checkpointing
    loss = Objective(model, chunk_tokens=chunk_tokens).loss(tokens[:, :-1], tokens[:, 1:])
    gradients = torch.autograd.grad(loss, [*model.parameters()], materialize_grads=True)
    return [loss.detach(), *gradients]


LENGTH, VOCAB = 24, 60


def induction_circuit(heads: int = 1) -> GPT:
    """Two layers, each of one head that matters (Elhage 2021): the first writes the token before
    beside every token, the second looks for where its own token was written so, and copies what it
    looks at. The other heads look at all tokens alike and write nothing.

    The residual stream holds three parts: the token (V), the token before (V), the position (T).
    """
    length, width = LENGTH, 2 * VOCAB + LENGTH
    model = make_gpt(
        vocab_size=VOCAB,
        block_size=length,
        embed_dim=width,
        layers=2,
        heads=heads,
        attention=partial(MultiHead, scale=1.0),
        position=Learned,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.weight[:, :VOCAB] = torch.eye(VOCAB)
        for block in model.blocks:
            block.attention_norm = torch.nn.Identity()
        token, before, place = slice(VOCAB), slice(VOCAB, 2 * VOCAB), slice(2 * VOCAB, width)
        model.position.table.weight[:, place] = torch.eye(length)
        # Layer 0: the query is the place before, the key the place; the value is the token.
        query, key, value = model.blocks[0].attention.qkv.weight.chunk(3)
        query[:length, place] = 100 * torch.eye(length).roll(1, dims=1)
        key[:length, place] = torch.eye(length)
        value[:VOCAB, token] = torch.eye(VOCAB)
        model.blocks[0].attention.out_proj.weight[before, :VOCAB] = torch.eye(VOCAB)
        # Layer 1: the query is the token, the key the token before, and the value the token.
        query, key, value = model.blocks[1].attention.qkv.weight.chunk(3)
        query[:VOCAB, token] = 100 * torch.eye(VOCAB)
        key[:VOCAB, before] = value[:VOCAB, token] = torch.eye(VOCAB)
        model.blocks[1].attention.out_proj.weight[token, :VOCAB] = torch.eye(VOCAB)
    return model
