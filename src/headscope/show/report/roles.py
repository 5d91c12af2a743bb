"""The report on the roles of heads: which heads of several runs do the same."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from headscope.analysis.head_outputs import Track
from headscope.analysis.head_types import DECIDED_BY
from headscope.analysis.roles import DIFFERENCES, align_heads
from headscope.analysis.rows import DataFrame
from headscope.errors import UserError
from headscope.show.report.write import write_files
from headscope.trained import load
from headscope.trained.checkpoint import find

SHOWN = 3
"""The number of runs whose heads are printed. roles.csv has all."""


def align(runs: Sequence[str | Path], *, device: str = "cpu", track: Track = iter) -> DataFrame:
    """Which heads of several runs, usually seeds of one configuration, do the same. `runs` are run
    folders or checkpoint files. Returns a DataFrame with a row for each *role*: a head of the
    reference, after which the row is named, and the head of each other run that is assigned to it.
    All heads of all layers are assigned one-to-one, with the smallest sum of differences.

    - The reference, the first of `table.attrs["runs"]`, is the run whose heads are nearest to those
      of the others; if the runs have different numbers of heads, one with the most. The training
      steps of these runs are `table.attrs["steps"]`.
    - `same name`: whether all runs have a head of this role, and all of these have the same name.
    - `head <run>` and `name <run>` are missing if a smaller run has no head left.
    - `<metric> mean` and `<metric> std`: the mean and the standard deviation over the runs, each
      measured on its own validation split.
    - `difference mean` and `difference std`: the root mean square difference of the metrics of a
      head and that of the reference, each scaled to 0 to 1. `next_difference` is that of the
      nearest other head, and `random_difference` that of all heads, as in a random assignment.

    The assignment of hundreds of heads takes minutes. `track` gets the names of the runs before it.

    Raises UserError if fewer than two runs are given, or if one cannot be loaded or measured.
    """
    is_list = isinstance(runs, Iterable) and not isinstance(runs, str)
    names = [*map(str, runs)] if is_list else [str(runs)]
    if len({*names}) < max(2, len(names)):
        raise UserError(f"runs={names}: name two or more different runs, such as [run_a,run_b]")
    files = {run: find(run, key="runs") for run in names}
    records = {run: load(file, device=device).record() for run, file in files.items()}
    return align_heads(records, track)


def write_roles(table: DataFrame, folder: Path) -> list[dict[str, str]]:
    """Writes roles.csv, the table of `align`. Returns the rows to print, with the
    heads of the first SHOWN runs, first that of the reference, and the metric that decides its
    name. Raises UserError as `write_report` does."""
    runs, rows = table.attrs["runs"], []
    missing = dict.fromkeys(table.filter(regex="^(head|name) "), "-")
    for role in table.fillna(missing).to_dict("records"):
        metric = DECIDED_BY[role[f"name {runs[0]}"]]
        heads = [role[f"head {run}"] for run in runs]
        more = [f"and {len(heads) - SHOWN} more"] if len(heads) > SHOWN else []
        row = {
            "heads": ", ".join(heads[:SHOWN] + more),
            "names": " / ".join(dict.fromkeys(role[f"name {run}"] for run in runs)),
            "metric": f"{metric} {role[f'{metric} mean']:.2f} ± {role[f'{metric} std']:.2f}",
        }
        apart = {name: f"{role[f'{name} mean']:.2f}" for name in DIFFERENCES}
        rows.append(row | {name.removesuffix("_difference"): text for name, text in apart.items()})
    files = {"roles.csv": table.to_csv().encode()}
    write_files(folder, {"runs": runs}, files)
    return rows
