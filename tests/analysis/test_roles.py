"""Heads of several models are aligned by what they do."""

from dataclasses import replace
from itertools import permutations, product

import pytest
import torch
from refusals import refused

import headscope
from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.metrics import colour_ends
from headscope.analysis.record import HeadRecord
from headscope.analysis.roles import align_heads, best_assignment, differences
from headscope.nn import GPT


def shuffled(model: HeadRecord, order: list[int]) -> HeadRecord:
    """A model whose head `number` is the head `order[number]` of `model`, in any layer."""
    metrics = {
        name: metric.flatten()[order].view_as(metric) for name, metric in model.metrics.items()
    }
    return replace(model, metrics=metrics)


@pytest.fixture(scope="module")
def measured() -> HeadRecord:
    torch.manual_seed(0)
    model = GPT(vocab_size=20, block_size=16, embed_dim=24, layers=2, heads=3).eval()
    for block in model.blocks:  # heads that differ
        torch.nn.init.normal_(block.attention.qkv.weight)
    return measure_heads(model, torch.randint(20, (4, 16)))


def test_a_model_with_shuffled_heads_is_aligned_perfectly_with_itself(measured):
    orders = [[5, 0, 3, 1, 2, 4], [2, 4, 1, 0, 5, 3]]
    runs = {"a": measured} | {str(order): shuffled(measured, order) for order in orders}
    table = align_heads(runs)
    assert table.index.tolist() == measured.heads
    assert table.attrs["runs"] == list(runs)
    for order in orders:
        found = [measured.heads[order.index(role)] for role in range(6)]
        assert table[f"head {order}"].tolist() == found
    assert table["same name"].all()
    assert (table["difference mean"] == 0).all()
    assert (table["next_difference mean"] > 0).all()
    for name, metric in measured.metrics.items():
        assert table[f"{name} mean"].tolist() == pytest.approx(metric.flatten().tolist())
        assert (table[f"{name} std"] < 1e-6).all()


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_a_role_has_the_same_name_only_if_every_run_has_a_head_of_it(measured, kept):
    smaller = replace(
        measured,
        metrics={name: x.flatten()[None, :kept] for name, x in measured.metrics.items()},
        uniform={name: values[:kept] for name, values in measured.uniform.items()},
        held=measured.held[:kept],
        untrained=measured.untrained[:1],
    )
    table = align_heads({"a": measured, "b": measured, "small": smaller})
    assert table["same name"].tolist() == [role < kept for role in range(6)]
    assert table["head small"].isna().tolist() == [role >= kept for role in range(6)]
    assert len(table) == 6


@pytest.mark.parametrize("runs", [None, [], "x", 5, ["x"], ["x", "x"], [None, None], b"x"])
def test_what_is_not_two_runs_is_refused(runs):
    with refused("runs=", "two or more"):
        headscope.align(runs)


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 6)])
def test_the_assignment_has_the_smallest_sum(rows, columns):
    torch.manual_seed(rows)
    costs = torch.rand(rows, columns)
    found = best_assignment(costs)
    assert len({*found.values()}) == len(found) == rows
    sums = [costs[range(rows), list(one)].sum() for one in permutations(range(columns), rows)]
    assert costs[[*found], [*found.values()]].sum() == pytest.approx(float(min(sums)))


def test_each_metric_counts_as_a_share_of_its_colour_scale_for_texts_of_any_length(measured):
    def at(share: float, tokens: int) -> HeadRecord:
        ends = {name: colour_ends(name, tokens) for name in measured.uniform}
        values = {name: low + share * (high - low) for name, (low, high) in ends.items()}
        metrics = {name: torch.full((2, 3), value) for name, value in values.items()}
        metrics["queries"] = measured.metrics["queries"]
        return replace(measured, metrics=metrics, tokens=tokens)

    for share, tokens in product((0.0, 0.25, 1.5), (16, 50)):
        expected = torch.full((6, 6), min(share, 1.0))
        torch.testing.assert_close(differences(at(share, tokens), at(0.0, 16)), expected)
