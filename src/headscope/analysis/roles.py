"""Aligns the heads of several models, usually seeds of one configuration, by what they do.

Shapes: N heads of all layers of a model, M metrics.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from headscope.analysis.head_outputs import Track
from headscope.analysis.record import HeadRecord
from headscope.analysis.rows import DataFrame

DIFFERENCES = ("difference", "next_difference", "random_difference")


def differences(one: HeadRecord, other: HeadRecord) -> Tensor:
    """The difference (N, N) of each head of one model and each head of another, from 0 to 1: the
    root mean square difference of their metrics of attention, which are those with a value for
    uniform attention and limits of colours (`ends`), which scale each to 0 to 1."""
    named = one.ends.keys() & one.uniform.keys() & other.ends.keys() & other.uniform.keys()
    shared, scaled = sorted(named), []
    for model in (one, other):
        low, high = torch.tensor([model.ends[name] for name in shared]).T
        values = torch.stack([model.metrics[name].flatten() for name in shared], dim=1)  # (N, M)
        scaled.append(((values.nan_to_num(0, 0, 0) - low) / (high - low)).clamp(0, 1))
    return (scaled[0][:, None] - scaled[1]).square().mean(dim=-1).sqrt()


def best_assignment(costs: Tensor) -> dict[int, int]:
    """The column of each row, one-to-one, with the smallest sum of costs (N, N) from 0 to 1. If
    there are fewer columns than rows, rows are left out."""
    import networkx  # slow

    graph = networkx.Graph()
    for row, line in enumerate((1e6 * (1 - costs)).long().tolist()):  # exact with integers
        for column, weight in enumerate(line):
            graph.add_edge(("row", row), ("column", column), weight=weight)
    pairs = map(dict, networkx.max_weight_matching(graph, maxcardinality=True))
    return {pair["row"]: pair["column"] for pair in pairs}


def align_heads(runs: Mapping[str, HeadRecord], track: Track = iter) -> DataFrame:
    """The table that `headscope.align` returns, from the record of each run. `track` gets the names
    of the runs that are assigned one after another."""
    from pandas import DataFrame, concat  # slow

    between = {run: [differences(of, other) for other in runs.values()] for run, of in runs.items()}
    nearest = {run: sum(each.amin(dim=1).mean() for each in of) for run, of in between.items()}
    reference = min(runs, key=lambda run: (-len(runs[run].types), nearest[run]))
    others = [run for run in runs if run != reference]
    apart_from = dict(zip(runs, between[reference], strict=True))
    rows = []
    for run in (reference, *track(others)):
        of, apart = runs[run], apart_from[run]
        values = {name: metric.flatten().tolist() for name, metric in of.metrics.items()}
        itself = {head: head for head in range(len(apart))}
        roles = itself if run == reference else best_assignment(apart)
        for role, head in roles.items():
            row = {"role": role, "run": run, "head": of.heads[head], "name": of.types[head].name}
            if run != reference:
                rest = apart[role].index_fill(0, torch.tensor(head), torch.inf)
                found = (apart[role, head], rest.min(), apart[role].mean())
                row |= dict(zip(DIFFERENCES, map(float, found), strict=True))
            rows.append(row | {name: of_heads[head] for name, of_heads in values.items()})
    heads = DataFrame(rows)
    by_role = heads.groupby("role")
    texts = heads.pivot(index="role", columns="run", values=["head", "name"])
    numbers = by_role[[*DIFFERENCES, *runs[reference].metrics]].agg(["mean", "std"])
    table = concat([texts, numbers], axis="columns")
    table.columns = table.columns.map(" ".join)
    table.insert(0, "same name", (by_role["name"].nunique() == 1) & (by_role.size() == len(runs)))
    table.attrs["runs"] = [reference, *others]
    table.attrs["steps"] = [runs[run].step for run in table.attrs["runs"]]
    return table.set_axis(runs[reference].heads).rename_axis("role")
