"""Trains experiment=names with three seeds, and prints what the model can do at its kept steps as
JSON rows, for docs/names.md: python -m benchmarks.names [key=value ...]

With key=value words, only the last step is measured. Without them, names.png is drawn too.
"""

import json
import subprocess
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import headscope
from headscope.analysis.circuits import copying_scores
from headscope.config import build_part
from headscope.conversion.loaded import Loaded
from headscope.stop import temporary_folder

TRAIN = Path(__file__).resolve().parents[1] / "scripts" / "train.py"
SEEDS = (1, 2, 3)

Row = dict[str, float]


def accuracy(loaded: Loaded, split: str) -> float:
    """The share of the texts of a split whose last name is the most likely one."""
    tokenizer = loaded.tokenizer
    texts = [text for each, text in build_part(loaded.config.data).examples() if each == split]
    tokens = torch.tensor(
        [[tokenizer.end_of_text, *tokenizer.encode(text).tolist()] for text in texts]
    )
    with torch.no_grad():
        best = loaded.model(tokens[:, :-1])[:, -1].argmax(dim=-1)
    return float((best == tokens[:, -1]).float().mean())


def measured(run: Path) -> list[Row]:
    """A row for each kept step of a run. The heads are sorted by their copying scores."""
    rows = []
    for path in sorted(run.glob("checkpoints/step_*.safetensors")):
        loaded = headscope.load(path)
        row = {f"{split}_accuracy": accuracy(loaded, split) for split in ("train", "validation")}
        scores = copying_scores(loaded.model)[0]
        order = scores.argsort(descending=True).tolist()
        for name, head in zip(("higher", "lower"), order, strict=False):
            row[f"copying_of_the_{name}_head"] = float(scores[head])
            with loaded.ablate([f"L0H{head}"]):
                row[f"accuracy_without_the_{name}_head"] = accuracy(loaded, "validation")
        rows.append({"step": loaded.step, **row})
    return rows


def picture(runs: list[list[Row]]) -> Figure:
    """The accuracies and the copying scores over the steps, one colour per seed."""
    figure = Figure(figsize=(11, 3.6), dpi=110, layout="constrained")
    panels = figure.subplots(1, 2)
    shown = {
        "share of right answers": ("train_accuracy", "validation_accuracy"),
        "copying scores of the two heads": (
            "copying_of_the_lower_head",
            "copying_of_the_higher_head",
        ),
    }
    for panel, (title, names) in zip(panels, shown.items(), strict=True):
        for number, rows in enumerate(runs):
            for name, style in zip(names, ("--", "-"), strict=True):
                label = (
                    f"{name.partition('_')[0]}, seed {SEEDS[number]}"
                    if panel is panels[0]
                    else None
                )
                steps, values = zip(*((row["step"], row[name]) for row in rows), strict=True)
                panel.plot(steps, values, style, color=f"C{number}", label=label)
        panel.set(title=title, xlabel="training step")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(fontsize=8)
    return figure


def main(words: list[str]) -> None:
    with temporary_folder() as folder:
        for seed in SEEDS:
            command = [sys.executable, str(TRAIN), "experiment=names", f"seed={seed}", *words]
            command += [f"data.seed={seed}", f"hydra.run.dir={folder / str(seed)}"]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        runs = [measured(folder / str(seed)) for seed in SEEDS]
        summaries = [(folder / str(seed) / "summary.json").read_text() for seed in SEEDS]
    seconds = ", ".join(f"{json.loads(text)['train_seconds']:.0f}" for text in summaries)
    if not words:
        picture(runs).savefig("names.png")
    for same_step in zip(*(rows[-1:] if words else rows for rows in runs), strict=True):
        joined = {key: ", ".join(f"{row[key]:.3f}" for row in same_step) for key in same_step[0]}
        is_last = same_step[0] is runs[0][-1]
        more = {"step": same_step[0]["step"], "training_seconds": seconds if is_last else ""}
        print(json.dumps(joined | more))


if __name__ == "__main__":
    main(sys.argv[1:])
