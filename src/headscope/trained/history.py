"""One table of a training: the metrics of all heads at each kept step, and the losses."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headscope.analysis.rows import DataFrame, Rows, data_frame, per_head
from headscope.errors import UserError
from headscope.trained.ablations import measure_ablation
from headscope.trained.checkpoint import find, steps_of
from headscope.trained.checkpoint.finding import IMPORT
from headscope.trained.model import Metrics, load

Runs = str | Path | Iterable[str | Path]
COLUMNS = ("run", "seed", "step", "layer", "head", "metric", "value")
WHOLE = ("seed", "layer", "head")
"""The columns with whole numbers or NA."""
LOSSES = ("train/", "val/")


def history(
    runs: Runs, *, ablation: bool = False, metrics: Metrics | None = None, device: str = "cpu"
) -> DataFrame:
    """A table of run folders, with the columns run, seed, step, layer, head, metric and value.

    - For each head and each step that the run has kept, its metrics, as in `history.csv` of a
      report. If the run has kept none, those of its best checkpoint.
    - With `ablation`, also the metrics of `TrainedModel.ablations`, such as `loss_change`: since
      when is a head necessary? This takes seconds per step.
    - `metrics` are your own metrics by name, functions of attention weights and tokens (see
      `headscope.analysis.own_metrics.HeadMetric`). All metrics are measured again then.
    - `seed` is NA for an imported model: its seed is unknown.
    - For the whole model, the number of `measured_tokens` at each step, and what the run logged for
      TensorBoard, such as `train/loss` and `val/loss`. Here, layer and head are NA.

    Raises UserError if a folder is not a run, or if a checkpoint or its text cannot be read.
    """
    rows: Rows = []
    for run in [runs] if isinstance(runs, str | Path) or not isinstance(runs, Iterable) else runs:
        folder, text, seed = Path(str(run)), None, None
        if not folder.is_dir():
            raise UserError(f"runs: {run} is not the folder of a run")
        for file in [*steps_of(folder).values()] or [find(str(run), key="runs")]:
            loaded = load(file, device=device)
            if text is None and (ablation or metrics):
                text = loaded.validation
            record = loaded.record(text, metrics=metrics)
            found = record.metrics
            if ablation:
                assert text is not None
                found = found | measure_ablation(loaded.model, text).metrics
            trained_here = loaded.known_step is not None and not (folder / IMPORT).is_file()
            seed = loaded.config.seed if trained_here else None
            of_step = per_head(found).melt(["layer", "head"], var_name="metric").to_dict("records")
            of_step.append({"metric": "measured_tokens", "value": record.measured_tokens})
            rows += [{"run": str(run), "seed": seed, "step": loaded.step, **row} for row in of_step]
        rows += [{"run": str(run), "seed": seed, **row} for row in logged(folder / "tensorboard")]
    return data_frame(rows, COLUMNS).astype(dict.fromkeys(WHOLE, "Int64"))


def logged(logs: Path) -> Rows:
    """The scalars in a folder of TensorBoard's event files, in the groups LOSSES, if it exists."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not logs.is_dir():
        return []
    few: Any = {"scalars": 0, "tensors": 1, "images": 1, "histograms": 1}  # 0 is all
    events = EventAccumulator(str(logs), size_guidance=few).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith(LOSSES)]
    every = [(tag, event) for tag in tags for event in events.Scalars(tag)]
    return [{"step": event.step, "metric": tag, "value": event.value} for tag, event in every]
