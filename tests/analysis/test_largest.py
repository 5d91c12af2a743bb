"""The laws of the largest weight: it is the largest of those that a query could choose."""

import pytest
import torch

from headscope.analysis.largest import find_largest_weight


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (4, 9), (1, 9)])
def test_no_visible_weight_is_larger_and_it_stands_where_it_says(causal, queries, keys):
    weights = torch.rand(2, 3, queries, keys, generator=torch.Generator().manual_seed(0))
    first = keys - queries
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        visible = visible.tril(first)
        if first == 0:
            visible[0] = False  # it sees itself alone
    largest = find_largest_weight(weights, causal=causal)
    for place in [(layer, head) for layer in range(2) for head in range(3)]:
        weight, query, key = (part[place] for part in largest)
        assert weight == weights[place][visible].max()
        assert weights[place][query, key] == weight
        assert visible[query, key]


def test_a_known_map_has_a_known_largest_weight():
    weights = torch.eye(4).repeat(2, 1, 1)
    weights[0, 3] = torch.tensor([0.1, 0.6, 0.2, 0.1])
    weights[0, 1] = torch.tensor([0.4, 0.6, 0.0, 0.0])
    weights[0, 2] = torch.tensor([0.05, 0.9, 0.05, 0.0])
    largest = find_largest_weight(weights)
    assert largest.weight.tolist() == pytest.approx([0.9, 1.0])
    assert largest.query.tolist() == [2, 1]  # the first query, which sees itself alone, is left out
    assert largest.key.tolist() == [1, 1]


def test_a_text_of_one_token_has_its_only_weight():
    assert [part.item() for part in find_largest_weight(torch.ones(1, 1))] == [1.0, 0, 0]
