"""Examples of what heads do: each is an edge of its window, with the weight and the value of a
direct computation, and what is chosen is what it says."""

import math
from itertools import chain

import pytest
import torch
from conversion.models import CHOICES, saved
from small_gpt import LENGTH, VOCAB, induction_circuit
from test_planted_heads import back, planted

from headscope.analysis.examples import GAP, find_examples
from headscope.analysis.head_statistics import visible_in
from headscope.analysis.metrics import first_keys
from headscope.data.tokenizer import CharTokenizer
from headscope.nn.held import add_hold

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
    weights = torch.stack([reading.attention for reading in readings], dim=2)  # (L, H, N, T, T)
    mask = visible_in(loaded.model, windows)
    causal = torch.ones(1, 8, 8).tril().bool()
    seen_keys = [causal] * len(weights) if mask is None else mask[:, :, 0]
    for layer, of_layer in enumerate(find_examples(loaded.model, windows, loaded.tokenizer)):
        seen = torch.arange(1, 9).expand(5, 8) if mask is None else mask[layer, :, 0].sum(-1)
        counted = seen > min(math.ceil(int(seen.max()) / 4), int(seen.max()) - 1)
        for head, found in enumerate(of_layer):
            for one in found:
                reading = readings[one.window]
                weight = float(reading.attention[layer, head, one.query, one.key])
                moved = weight * moved_directly(reading, layer, head, one.key)
                assert (one.weight, one.moved) == pytest.approx((weight, moved), rel=1e-5)
                assert counted[one.window, one.query]
                marked = [one.labels[at] for at in one.marked]
                assert marked == [reading.labels[place] for place in (one.query, one.key)]
            others = weights[layer, head].masked_fill(first_keys(seen_keys[layer]), 0)
            best = others.amax(-1).where(counted, -1)
            strongest = best.amax(-1).sort(descending=True).values[:3].tolist()
            every = best[counted].sort(descending=True).values
            middles = every[[int((part + 0.5) / 10 * len(every)) for part in range(10)]].tolist()
            for kind, values in (("weight", strongest), ("decile", middles)):
                shown = [one.weight for one in found if one.kind == kind]
                assert shown == pytest.approx(values, rel=1e-5)
            moved = [one.moved for one in found if one.kind == "moved"]
            assert moved == sorted(moved, reverse=True)
            assert max(one.moved for one in found) == moved[0]
            for kind in ("weight", "moved"):
                assert len({one.window for one in found if one.kind == kind}) == 3


@pytest.mark.parametrize(("windows", "length"), [(1, 1), (1, 2), (2, 4), (5, LENGTH)])
def test_few_and_short_windows_give_what_they_have(windows, length):
    model, tokens = induction_circuit(heads=2), random_windows(windows, length, VOCAB)
    for found in chain(*find_examples(model, tokens, LETTERS)):
        assert sum(one.kind == "weight" for one in found) == min(windows, 3)
        assert all(one.query >= min(length - 1, math.ceil(length / 4)) for one in found)


@pytest.mark.parametrize("words", ["model=gpt2", "model/attention=stacked_heads model/norm=none"])
def test_only_the_head_that_is_switched_off_or_held_moves_nothing(tmp_path, words):
    loaded = saved(tmp_path, words)
    windows = random_windows(5, 8, 250)

    def moving():
        found = [*chain(*find_examples(loaded.model, windows, loaded.tokenizer))]
        for of_head in found:
            moves = "moved" in {one.kind for one in of_head}
            assert {one.moved is not None for one in of_head} == {moves}
            yield moves

    assert [*moving()] == [True] * 8
    for options in ({}, {"by": "mean", "text": "We the p"}):
        with loaded.ablate(["L1H2"], **options):
            assert [head for head, moves in enumerate(moving()) if not moves] == [6]
    held = add_hold(loaded.model, 0, "attention.out_proj")
    held.mask.unflatten(0, (4, -1))[1] = 1
    assert [head for head, moves in enumerate(moving()) if not moves] == [1]
    held.values[:] = 0.5
    assert [head for head, moves in enumerate(moving()) if not moves] == [1]


def test_far_tokens_have_a_gap_and_only_a_head_that_sums_values_moves():
    far = planted([lambda tokens: back(tokens) == 80], vocab_size=60, block_size=100)
    [[[first, *_]]] = find_examples(far, random_windows(2, 100, 58), LETTERS)
    assert first.moved is None  # its outputs are zeros
    assert first.query - first.key == 80
    assert first.labels.count(GAP) == 1
    assert 60 < len(first.labels) < 100
    query, key = (first.labels[at] for at in first.marked)
    assert f"【{query}】" in first.text
    assert f"«{key}»" in repr(first)
