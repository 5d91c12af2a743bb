"""The laws of sight, for all attentions: who sees whom, and that order is told by nothing else."""

import itertools
from functools import partial

import torch
from attention_layers import (
    BATCH,
    WIDTH,
    attention,
    by_path,
    encoding,
    every_attention,
    every_pair,
    past,
    some_input,
)
from torch import Tensor

LENGTH = 6


def reach(run, x: Tensor) -> Tensor:
    """Which inputs (B, S) each output of run(x) (B, T, O) gets gradient from: (B, T, B, S)."""
    out = run(x.requires_grad_())
    rows = [
        torch.autograd.grad(row.sum(), x, retain_graph=True)[0].ne(0).any(dim=-1)
        for row in out.flatten(0, 1)
    ]
    return torch.stack(rows).unflatten(0, out.shape[:2])


def within_each_sequence(visible: Tensor) -> Tensor:
    """visible (T, S) in every sequence, and nothing from one to another: (B, T, B, S)."""
    return torch.eye(BATCH, dtype=torch.bool)[:, None, :, None] & visible[:, None]


@every_pair
def test_gradient_comes_from_itself_and_all_before_and_never_from_the_future(name, position):
    layer = attention(name)
    place = encoding(position, layer)
    for weights in (False, True):
        run = partial(by_path, layer, weights=weights, position=place)
        seen = reach(run, some_input(LENGTH))
        assert torch.equal(seen, within_each_sequence(past(LENGTH)))


@every_attention
def test_the_value_of_every_key_up_to_itself_reaches_a_query_and_none_after(name):
    layer, x, value = attention(name), some_input(LENGTH), some_input(LENGTH, seed=1)
    for weights, queries in itertools.product((False, True), (2, LENGTH)):
        run = partial(by_path, layer, x[:, -queries:], x, weights=weights)
        assert torch.equal(reach(run, value), within_each_sequence(past(queries, LENGTH)))


@every_attention
def test_without_causal_gradient_comes_from_everywhere(name):
    layer = attention(name, causal=False)
    for weights in (False, True):
        seen = reach(partial(by_path, layer, weights=weights), some_input(LENGTH))
        assert torch.equal(seen, within_each_sequence(torch.ones(LENGTH, LENGTH, dtype=torch.bool)))


@every_pair
def test_fewer_queries_than_keys_are_the_last_rows_of_the_whole(name, position):
    for causal in [False, True]:
        layer, x = attention(name, causal=causal), some_input()
        place = encoding(position, layer)
        whole, whole_weights = layer(x, position=place, weights=True)
        for queries in (1, 4, 8):
            inputs = (x[:, -queries:], x)
            out, weights = layer(*inputs, position=place, weights=True)
            for last in (out, layer(*inputs, position=place)):
                torch.testing.assert_close(last, whole[:, -queries:], rtol=1e-4, atol=1e-5)
            expected = whole_weights[:, :, -queries:]
            torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)


@every_attention
def test_without_causal_the_order_of_keys_means_nothing_and_of_queries_as_much(name):
    for weights in (False, True):
        layer = attention(name, causal=False, block_size=None)
        for queries, keys in ((3, 8), (7, 4), (12, 20)):
            query, key, value = (some_input(n, seed=i) for i, n in enumerate((queries, keys, keys)))
            out = by_path(layer, query, key, value, weights=weights)
            assert out.shape == (BATCH, queries, WIDTH)
            shuffled = by_path(layer, query, key.roll(1, 1), value.roll(1, 1), weights=weights)
            torch.testing.assert_close(shuffled, out, rtol=1e-4, atol=1e-5)
            backwards = by_path(layer, query.flip(1), key, value, weights=weights)
            torch.testing.assert_close(backwards.flip(1), out, rtol=1e-4, atol=1e-5)
            mismatched = by_path(layer, query, key, value.roll(1, 1), weights=weights)
            assert (mismatched - out).abs().max() > 1e-2
