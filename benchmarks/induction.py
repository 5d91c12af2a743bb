"""Trains experiment=induction with some changes and three seeds, and prints what the models do as
JSON, for docs/induction.md: python -m benchmarks.induction [key=value ...]"""

import csv
import json
import sys
from pathlib import Path

from benchmarks.three_seeds import script, summary, trained


def measured(run: Path) -> dict[str, float]:
    """Analyze the model of a run. The removed head is the head that attends most to the previous
    token."""
    script("analyze", f"checkpoint={run}", "ablation=true")
    recipe = script("evaluate", f"checkpoint={run}", "data=repeats", "data.alphabet=48")
    with (run / "analysis" / "heads.csv").open(newline="", encoding="utf-8") as stream:
        heads = [*csv.DictReader(stream)]
    removed = max(heads, key=lambda row: float(row["previous"]))
    return {
        "loss": summary(run)["val_loss"],
        "loss_on_the_text_of_the_recipe": json.loads(recipe)["loss_nats_per_token"],
        "training_seconds": summary(run)["train_seconds"],
        "largest_induction": max(float(row["induction"]) for row in heads),
        "induction_heads": [row["type"] for row in heads].count("induction"),
        "loss_change": float(removed["loss_change"]),
        "induction_of_the_others": float(removed["other_induction"]),
    }


if __name__ == "__main__":
    runs = [measured(run) for run in trained("induction", sys.argv[1:])]
    print(json.dumps({key: ", ".join(f"{run[key]:.3g}" for run in runs) for key in runs[0]}))
