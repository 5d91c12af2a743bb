"""Trains experiment=induction with some changes and three seeds, and prints what the models do as
JSON, for docs/induction.md: python -m benchmarks.induction [key=value ...]"""

import csv
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def measured(run: Path, words: list[str]) -> dict[str, float]:
    """Train and analyze a model. The removed head is the head that attends most to the previous
    token."""
    script("train", "experiment=induction", *words, f"hydra.run.dir={run}")
    script("analyze", f"checkpoint={run}", "ablation=true")
    recipe = script("evaluate", f"checkpoint={run}", "data=repeats", "data.alphabet=48")
    summary = json.loads((run / "summary.json").read_text())
    with (run / "analysis" / "heads.csv").open(newline="", encoding="utf-8") as stream:
        heads = [*csv.DictReader(stream)]
    removed = max(heads, key=lambda row: float(row["previous"]))
    return {
        "loss": summary["val_loss"],
        "loss_on_the_text_of_the_recipe": json.loads(recipe)["loss_nats_per_token"],
        "training_seconds": summary["train_seconds"],
        "largest_induction": max(float(row["induction"]) for row in heads),
        "induction_heads": [row["type"] for row in heads].count("induction"),
        "loss_change": float(removed["loss_change"]),
        "induction_of_the_others": float(removed["other_induction"]),
    }


def script(name: str, *words: str) -> str:
    """Run scripts/<name>.py and return its standard output."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        folder = Path(name)
        runs = [
            measured(folder / f"seed_{seed}", [*sys.argv[1:], f"seed={seed}"]) for seed in (1, 2, 3)
        ]
    print(json.dumps({key: ", ".join(f"{run[key]:.3g}" for run in runs) for key in runs[0]}))
