"""Trains and measures the models of docs/induction.md, for docs/make.py."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from parts import Work, read_rows

CHANGES = (
    "",
    "model.layers=1",
    "model.layers=1 model.ngrams=2",
    "data.min_length=16 data.max_length=16",
    "model.layers=1 data.min_length=16 data.max_length=16",
    "model/position=learned",
    "model/position=sinusoidal",
)
"""Each entry changes experiment=induction. Only the first entry keeps the recipe."""


def induction_run(work: Work, changes: str, seed: int, number: int) -> dict[str, Any]:
    """Train experiment=induction with some changes, and return its figures. The removed head is the
    head that attends most to the previous token."""
    run = work.folder / "runs" / f"{number}_{seed}"
    work.run("train", f"experiment=induction {changes} seed={seed} hydra.run.dir={run}")
    work.run("analyze", f"checkpoint={run} ablation=true output_dir={run}/report")
    text = "data=repeats data.alphabet=48"
    standard = json.loads(work.run("evaluate", f"checkpoint={run} {text}"))
    heads = read_rows(run / "report" / "heads.csv")
    removed = max(heads, key=lambda row: row["previous"])
    names = Counter(row["type"] for row in heads)
    return {
        "side": f"seed {seed}",
        **json.loads((run / "summary.json").read_text()),
        "halfway": halfway_step(run),
        "names": ", ".join(f"{count} {name}" for name, count in names.most_common()),
        "heads": names["induction"],
        "largest": max(row["induction"] for row in heads),
        "removed": f"L{removed['layer']}H{removed['head']}",
        "loss_change": removed["loss_change"],
        "other_induction": removed["other_induction"],
        "standard": standard["loss_nats_per_token"],
    }


def halfway_step(run: Path) -> int:
    """The first logged step at which the training loss is closer to its last value than to its
    first value."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses = EventAccumulator(str(run / "tensorboard")).Reload().Scalars("train/loss")
    middle = (losses[0].value + losses[-1].value) / 2
    return next(logged.step for logged in losses if logged.value <= middle)
