"""A small GPT with any attention and position, and tokens for it."""

import torch
from choices import PAIRS, parts
from torch import Tensor

from headscope.nn import GPT
from headscope.nn.loss import next_token_loss

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
