"""Trains and measures the models of docs/induction.md, and prints a table:

python -m benchmarks.induction recipe      # three seeds of experiment=induction
python -m benchmarks.induction controls    # the same with each of CHANGES
"""

import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.table import table
from headscope.stop import temporary_folder

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
SEEDS = (1, 2, 3)
CHANGES = (
    "",
    "model.layers=1",
    "model.layers=1 model.ngrams=2",
    "data.min_length=16 data.max_length=16",
    "model.layers=1 data.min_length=16 data.max_length=16",
    "model/position=learned",
    "model/position=sinusoidal",
)
"""Each entry changes experiment=induction. The first is the recipe itself."""


def recipe(more: Sequence[str]) -> str:
    rows = [{"side": f"seed {seed}", **measured(seed, more)} for seed in SEEDS]
    columns = {
        "val_loss": "loss, nats per token",
        "halfway": "half of the fall at step",
        "train_seconds": "training, s",
        "names": "names of the heads",
        "largest": "largest induction",
        "removed": "removed head",
        "loss_change": "its loss change",
        "other_induction": "induction of the others",
    }
    return table(rows, columns)


def controls(more: Sequence[str]) -> str:
    columns = {
        "val_loss": "loss on its own text",
        "standard": "loss on the text of the recipe",
        "largest": "largest induction",
        "heads": "induction heads",
    }
    rows = []
    for changes in CHANGES:
        found = [measured(seed, [*changes.split(), *more]) for seed in SEEDS]
        texts = {key: ", ".join(f"{each[key]:.3g}" for each in found) for key in columns}
        rows.append({"side": changes or "(the recipe)", **texts})
    return table(rows, columns)


def measured(seed: int, words: Sequence[str]) -> dict[str, Any]:
    """Train experiment=induction with some changes, and return its figures. The removed head is the
    head that attends most to the previous token."""
    with temporary_folder() as folder:
        run = folder / "run"
        script("train", "experiment=induction", *words, f"seed={seed}", f"hydra.run.dir={run}")
        script("analyze", f"checkpoint={run}", "ablation=true", f"output_dir={folder}/report")
        standard = script("evaluate", f"checkpoint={run}", "data=repeats", "data.alphabet=48")
        with (folder / "report" / "heads.csv").open(newline="", encoding="utf-8") as stream:
            heads = [*csv.DictReader(stream)]
        summary = json.loads((run / "summary.json").read_text())
        halfway = halfway_step(run)
    removed = max(heads, key=lambda row: float(row["previous"]))
    names = Counter(row["type"] for row in heads)
    return {
        "val_loss": summary["val_loss"],
        "train_seconds": summary["train_seconds"],
        "halfway": halfway,
        "names": ", ".join(f"{count} {name}" for name, count in names.most_common()),
        "heads": names["induction"],
        "largest": round(max(float(row["induction"]) for row in heads), 4),
        "removed": f"L{removed['layer']}H{removed['head']}",
        "loss_change": float(removed["loss_change"]),
        "other_induction": float(removed["other_induction"]),
        "standard": json.loads(standard)["loss_nats_per_token"],
    }


def script(name: str, *words: str) -> str:
    """Run scripts/<name>.py and return its standard output."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def halfway_step(run: Path) -> int:
    """The first logged step at which the training loss is closer to its last value than to its
    first value."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses = EventAccumulator(str(run / "tensorboard")).Reload().Scalars("train/loss")
    middle = (losses[0].value + losses[-1].value) / 2
    return next(logged.step for logged in losses if logged.value <= middle)


if __name__ == "__main__":
    kinds = {"recipe": recipe, "controls": controls}
    if not sys.argv[1:] or sys.argv[1] not in kinds:
        sys.exit(f"usage: python -m benchmarks.induction {{{','.join(kinds)}}} [key=value ...]")
    print(kinds[sys.argv[1]](sys.argv[2:]))
