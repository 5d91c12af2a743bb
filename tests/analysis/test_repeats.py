"""Induction: full on a circuit built by hand, near that of even attention on a fresh model."""

from statistics import mean

import pytest
import torch
from small_gpt import fresh
from torch import Tensor

from headscope.analysis.repeats import (
    duplicate_mass,
    induction_mass,
    repeat_figures,
    repeated_texts,
    uniform_induction,
)
from headscope.nn import GPT, NoPosition, multi_head

PERIOD, VOCAB = 6, 40


def induction_circuit() -> GPT:
    """Two layers, each of one head that matters (Elhage 2021): the first writes the token before
    beside every token, the second looks for where its own token was written so.

    The residual stream holds three parts: the token (V), the token before (V), the position (2 P).
    """
    length = 2 * PERIOD
    width = 2 * VOCAB + length
    model = GPT(
        vocab_size=VOCAB,
        block_size=length,
        embed_dim=width,
        layers=2,
        heads=1,
        attention=lambda **options: multi_head(scale=1.0, **options),
        position=Places,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.weight[:, :VOCAB] = torch.eye(VOCAB)
        for block in model.blocks:
            block.attention_norm = torch.nn.Identity()
        token, before, place = (
            slice(0, VOCAB),
            slice(VOCAB, 2 * VOCAB),
            slice(2 * VOCAB, width),
        )
        # Layer 0: the query is the place before, the key the place; the value is the token.
        query, key, value = model.blocks[0].attention.qkv.weight.chunk(3)
        query[:length, place] = 100 * torch.eye(length).roll(1, dims=1)
        key[:length, place] = torch.eye(length)
        value[:VOCAB, token] = torch.eye(VOCAB)
        model.blocks[0].attention.out_proj.weight[before, :VOCAB] = torch.eye(VOCAB)
        # Layer 1: the query is the token, the key the token before.
        query, key, _ = model.blocks[1].attention.qkv.weight.chunk(3)
        query[:VOCAB, token] = 100 * torch.eye(VOCAB)
        key[:VOCAB, before] = torch.eye(VOCAB)
    return model


class Places(NoPosition):
    """Writes the position as one number of its own."""

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        places = torch.zeros_like(embeddings[0])
        length = len(places)
        places[:, 2 * VOCAB : 2 * VOCAB + length] = torch.eye(length)
        return embeddings + places


def test_a_circuit_built_by_hand_does_induction():
    figures = repeat_figures(induction_circuit(), texts=20)
    # The first token has none before it and writes itself there: whoever looks for it finds two.
    assert figures["induction"][1].item() == pytest.approx(1 - 0.5 / PERIOD, abs=1e-3)
    assert figures["induction"][0].item() < 1e-3
    assert figures["repeat_previous"][0].item() == pytest.approx(1, abs=1e-3)
    assert figures["duplicate"][1].item() == pytest.approx(0.5 / PERIOD, abs=1e-3)


def test_a_fresh_model_looks_at_all_alike():
    model = fresh(vocab_size=50, block_size=32, embed_dim=64, heads=4)
    figures = repeat_figures(model)
    even = uniform_induction(16)
    assert even == pytest.approx(mean(1 / keys for keys in range(17, 33)))
    torch.testing.assert_close(figures["induction"], torch.full((2, 4), even), rtol=0.1, atol=0)
    torch.testing.assert_close(figures["duplicate"], torch.full((2, 4), even), rtol=0.1, atol=0)


def test_by_hand():
    """Tokens a b a b: from the second a (2) induction looks at b (1), from b (3) at a (2)."""
    weights = torch.zeros(4, 4)
    weights[2, 1], weights[3, 2], weights[2, 0], weights[3, 1] = 0.6, 0.2, 0.1, 0.5
    assert induction_mass(weights).item() == pytest.approx(0.4)
    assert duplicate_mass(weights).item() == pytest.approx(0.3)


def test_texts_come_twice_and_are_the_same_for_a_seed():
    texts = repeated_texts(vocab_size=VOCAB, period=PERIOD, texts=5, seed=3)
    assert texts.shape == (5, 2 * PERIOD)
    assert torch.equal(texts[:, :PERIOD], texts[:, PERIOD:])
    assert all(len(set(row.tolist())) == PERIOD for row in texts)
    assert len({tuple(row.tolist()) for row in texts}) == 5
    again = repeated_texts(vocab_size=VOCAB, period=PERIOD, texts=5, seed=3)
    assert torch.equal(again, texts)
    assert not torch.equal(repeated_texts(vocab_size=VOCAB, period=PERIOD, texts=5, seed=4), texts)
    assert repeated_texts(vocab_size=3, period=PERIOD, texts=2, seed=0).max() == 2


@pytest.mark.parametrize("period", [1, 6])
def test_a_period_that_does_not_fit_is_refused(period):
    with pytest.raises(ValueError, match=rf"period={period}.*block_size=10"):
        repeat_figures(fresh(), period=period)
