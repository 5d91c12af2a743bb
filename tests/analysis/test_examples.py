"""Examples of what heads do: each is an edge of its window, with the weight and the value of a
direct computation, and what is chosen is what it says."""

import math

import pytest
import torch
from conversion.models import CHOICES, saved
from small_gpt import LENGTH, VOCAB, induction_circuit
from test_planted_heads import back, planted

from headscope.analysis.examples import GAP, find_examples
from headscope.analysis.head_statistics import visible_in
from headscope.data.tokenizer import CharTokenizer

LETTERS = CharTokenizer("".join(map(chr, range(65, 65 + VOCAB - 2))))


def random_windows(windows, length, vocab_size):
    drawn = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, (windows, length), generator=drawn)


@pytest.fixture(scope="module", params=CHOICES, ids=lambda words: words.replace("model", ""))
def loaded(request, tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"), request.param)


def moved_directly(reading, layer, head, key):
    """The norm of what a head writes for the weight 1 on a key, by the matrices of the model."""
    block = reading.model.blocks[layer]
    attention, x = block.attention, block.attention_norm(reading.residual[layer, key])
    group = head * attention.kv_heads // attention.heads
    value = attention.projections()[2][group] @ x
    if attention.qkv_bias:
        value = value + attention.projections("bias")[2][group]
    alone = torch.zeros(attention.heads, attention.head_dim)
    alone[head] = value
    written = attention.out_proj(alone.flatten())
    return float((written - attention.out_proj(0 * alone.flatten())).norm())


@torch.no_grad()
def test_examples_are_edges_of_their_windows_and_the_strongest_ones(loaded):
    windows = random_windows(5, 8, loaded.tokenizer.vocab_size)
    windows[:, 3] = loaded.tokenizer.end_of_text
    readings = [loaded.read(window.tolist()) for window in windows]
    found = find_examples(loaded.model, windows, loaded.tokenizer)
    mask = visible_in(loaded.model, windows)
    seen = torch.arange(1, 9).expand(5, 8) if mask is None else mask[:, 0].sum(-1)
    counted = seen > math.ceil(int(seen.max()) / 4)
    weights = torch.stack([reading.attention for reading in readings], dim=2)  # (L, H, N, T, T)
    best = weights.amax(-1).where(counted, -1)
    for one in found:
        layer, head = int(one.head[1]), int(one.head[3:])
        reading = readings[one.window]
        assert one.weight == pytest.approx(
            float(reading.attention[layer, head, one.query, one.key]), rel=1e-5
        )
        direct = one.weight * moved_directly(reading, layer, head, one.key)
        assert one.moved == pytest.approx(direct, rel=1e-5)
        assert counted[one.window, one.query]
        assert [one.labels[at] for at in one.marked] == [
            reading.labels[place] for place in (one.query, one.key)
        ]
    for layer, head in torch.cartesian_prod(*map(torch.arange, weights.shape[:2])).tolist():
        own = [one for one in found if one.head == f"L{layer}H{head}"]
        weight, moved, deciles = (
            [one for one in own if one.kind == kind] for kind in ("weight", "moved", "decile")
        )
        values = best[layer, head].amax(-1).sort(descending=True).values[:3]
        assert [one.weight for one in weight] == pytest.approx(values.tolist(), rel=1e-5)
        assert max(one.moved for one in own) == moved[0].moved >= moved[1].moved
        for of_kind in (weight, moved):
            assert len({one.window for one in of_kind}) == 3
        assert [one.place for one in deciles] == [*range(1, 11)]
        every = best[layer, head][counted].sort(descending=True).values
        middles = [int((part + 0.5) / 10 * len(every)) for part in range(10)]
        assert [one.weight for one in deciles] == pytest.approx(every[middles].tolist(), rel=1e-5)


@pytest.mark.parametrize(("windows", "length"), [(1, 1), (1, 2), (2, 4), (1, LENGTH)])
def test_few_and_short_windows_give_what_they_have(windows, length):
    model, tokens = induction_circuit(heads=2), random_windows(windows, length, VOCAB)
    found = find_examples(model, tokens, LETTERS)
    assert {one.head for one in found} == {"L0H0", "L0H1", "L1H0", "L1H1"}
    assert all(one.query > 0 or length == 1 for one in found)
    edges = [(one.window, one.query) for one in found if one.kind == "weight"]
    possible = windows * (length - min(length - 1, math.ceil(length / 4)))
    assert len(edges) == 4 * min(3, possible)


def test_a_known_head_does_what_it_is_known_for():
    drawn = torch.Generator().manual_seed(0)
    once = torch.stack([torch.randperm(VOCAB - 2, generator=drawn) for _ in range(20)])
    once = once[:, : LENGTH // 2]
    found = find_examples(induction_circuit(), torch.cat([once, once], dim=1), LETTERS)
    for head, distance in (("L0H0", 1), ("L1H0", LENGTH // 2 - 1)):
        edges = [one for one in found if one.head == head and one.kind == "weight"]
        assert [one.query - one.key for one in edges] == [distance] * 3
        assert all(one.weight > 0.99 for one in edges)


def test_far_tokens_have_a_gap_and_only_a_head_that_sums_values_moves():
    far = planted([lambda tokens: back(tokens) == 80], vocab_size=60, block_size=100)
    found = find_examples(far, random_windows(2, 100, 58), LETTERS)
    first = found[0]
    assert first.moved is None  # its outputs are zeros
    assert first.query - first.key == 80
    assert first.labels.count(GAP) == 1
    assert len(first.labels) <= 2 * (32 + 12 + 1) + 1
    query, key = (first.labels[at] for at in first.marked)
    assert f"【{query}】" in first.text
    assert f"«{key}»" in repr(first)
