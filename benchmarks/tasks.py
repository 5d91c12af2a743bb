"""Trains experiment=grokking or experiment=names with three seeds, and prints what the model can do
at its kept steps as JSON rows, for the pages in docs/: python -m benchmarks.tasks names [key=value]

With key=value words, only the last step is measured. Without them, a picture is drawn too.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import headscope
from headscope.analysis.circuits import copying_scores
from headscope.config import build_part
from headscope.conversion.loaded import Loaded
from headscope.data.tasks import SYMBOLS
from headscope.stop import temporary_folder

TRAIN = Path(__file__).resolve().parents[1] / "scripts" / "train.py"
SEEDS = (1, 2, 3)
KEY_FREQUENCIES = 5
"""As many as in the model of Nanda 2023."""

Row = dict[str, Any]


def accuracy(loaded: Loaded, split: str) -> float:
    """The share of the examples of a split whose last character is the most likely one."""
    tokenizer = loaded.tokenizer
    texts = [text for each, text in build_part(loaded.config.data).examples() if each == split]
    rows = [[tokenizer.end_of_text, *tokenizer.encode(text).tolist()] for text in texts]
    tokens = torch.tensor(rows)
    with torch.no_grad():
        best = loaded.model(tokens[:, :-1])[:, -1].argmax(dim=-1)
    return float((best == tokens[:, -1]).float().mean())


def of_names(loaded: Loaded) -> Row:
    """The heads are sorted by their copying scores."""
    scores = copying_scores(loaded.model)[0]
    row = {}
    for name, head in zip(
        ("higher", "lower"), scores.argsort(descending=True).tolist(), strict=False
    ):
        row[f"copying_of_the_{name}_head"] = float(scores[head])
        with loaded.ablate([f"L0H{head}"]):
            row[f"accuracy_without_the_{name}_head"] = accuracy(loaded, "validation")
    return row


def powers(loaded: Loaded) -> Tensor:
    """The share of each frequency 1 to (p - 1) / 2 in the embedding of the numbers 0 to p - 1."""
    prime = vars(loaded.config.data)["prime"]
    rows = loaded.tokenizer.encode(SYMBOLS[:prime]).astype(int)
    transformed = torch.fft.rfft(loaded.model.embedding.weight.detach()[rows], dim=0)[1:]
    power = transformed.abs().square().sum(dim=1)
    return power / power.sum()


def of_grokking(loaded: Loaded) -> Row:
    return {"share_of_five_frequencies": float(powers(loaded).topk(KEY_FREQUENCIES).values.sum())}


def measured(run: Path, name: str) -> list[Row]:
    """A row for each kept step of a run."""
    more = {"names": of_names, "grokking": of_grokking}[name]
    rows = []
    for path in sorted(run.glob("checkpoints/step_*.safetensors")):
        loaded = headscope.load(path)
        found = {f"{split}_accuracy": accuracy(loaded, split) for split in ("train", "validation")}
        rows.append({"step": loaded.step, **found, **more(loaded)})
    return rows


def picture(runs: list[list[Row]], last: Loaded, name: str) -> Figure:
    """The accuracies over the steps, and what the heads or the embedding look like."""
    figure = Figure(figsize=(11, 3.6), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, rows in enumerate(runs):
        steps = [row["step"] for row in rows]
        colour = f"C{number}"
        for split, style in (("train", "--"), ("validation", "-")):
            values = [row[f"{split}_accuracy"] for row in rows]
            left.plot(steps, values, style, color=colour, label=f"{split}, seed {SEEDS[number]}")
        if name == "names":
            for which, style in (("higher", "-"), ("lower", "--")):
                values = [row[f"copying_of_the_{which}_head"] for row in rows]
                right.plot(
                    steps, values, style, color=colour, label=f"{which}, seed {SEEDS[number]}"
                )
    left.set(title="accuracy of the answers", xlabel="training step", ylim=(-0.02, 1.02))
    if name == "names":
        right.set(
            title="copying scores of the two heads", xlabel="training step", ylim=(-1.05, 1.05)
        )
    else:
        shares = powers(last)
        right.bar(range(1, len(shares) + 1), shares, color="C0")
        right.set(title="share of each frequency in the embedding (seed 3)", xlabel="frequency")
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    left.legend(fontsize=7)
    return figure


def main(name: str, words: list[str]) -> None:
    with temporary_folder() as folder:
        for seed in SEEDS:
            command = [sys.executable, str(TRAIN), f"experiment={name}", f"seed={seed}"]
            command += [f"data.seed={seed}", *words, f"hydra.run.dir={folder / str(seed)}"]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        runs = [measured(folder / str(seed), name) for seed in SEEDS]
        seconds = [
            json.loads((folder / str(seed) / "summary.json").read_text())["train_seconds"]
            for seed in SEEDS
        ]
        if not words:
            last = sorted((folder / str(SEEDS[-1]) / "checkpoints").glob("step_*"))[-1]
            picture(runs, headscope.load(last), name).savefig(f"{name}.png")
    for same_step in zip(*(rows[-1:] if words else rows for rows in runs), strict=True):
        row = {"step": same_step[0]["step"]}
        row |= {
            key: ", ".join(f"{each[key]:.3f}" for each in same_step)
            for key in same_step[0]
            if key != "step"
        }
        last_one = same_step[0]["step"] == runs[0][-1]["step"]
        row["training_seconds"] = ", ".join(f"{each:.0f}" for each in seconds) if last_one else ""
        print(json.dumps(row))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
