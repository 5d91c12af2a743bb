"""Trains an experiment with three seeds, and prints what is measured at its kept steps."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib.figure import Figure

import headscope
from headscope.config.parts import build_part
from headscope.trained import TrainedModel

TRAIN = Path(__file__).resolve().parents[1] / "scripts" / "train.py"
SEEDS = (1, 2, 3)
SAME = {"step", "random"}
WHOLE = {"training_seconds", "frequencies"}
"""Quantities that are printed without digits after the point."""

Row = dict[str, float]


def main(
    experiment: str,
    measure: Callable[[list[TrainedModel]], list[Row]],
    picture: Callable[[list[list[Row]]], Figure],
    *,
    own_words: Sequence[str] = (),
    digits: int = 3,
) -> None:
    """Trains `experiment` with all seeds and the words key=value of the command line, and prints a
    JSON row for each kept step. With such words, only the last step is printed. Without them,
    `picture` is saved too. In `own_words`, {seed} is replaced by the seed."""
    words = sys.argv[1:]
    runs = measured_runs(experiment, [*own_words, *words], measure)
    if not words:
        picture(runs).savefig(f"{experiment}.png")
    print_rows(runs, only_last=bool(words), digits=digits)


def measured_runs(
    experiment: str, words: Sequence[str], measure: Callable[[list[TrainedModel]], list[Row]]
) -> list[list[Row]]:
    """Trains `experiment` once for each seed, with the overrides `words`. `measure` maps the kept
    checkpoints of a run to a row each. The last row also gets the seconds of training."""
    runs = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        for seed in SEEDS:
            run = folder / str(seed)
            own = [f"experiment={experiment}", f"seed={seed}", f"hydra.run.dir={run}"]
            command = [
                sys.executable,
                str(TRAIN),
                *own,
                *(word.format(seed=seed) for word in words),
            ]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            kept = sorted(run.glob("checkpoints/step_*.safetensors"))
            rows = measure([headscope.load(path) for path in kept])
            summary = json.loads((run / "summary.json").read_text())
            rows[-1]["training_seconds"] = round(summary["train_seconds"])
            runs.append(rows)
    return runs


def print_rows(runs: list[list[Row]], *, only_last: bool, digits: int) -> None:
    """Prints a JSON row for each kept step, or only for the last one, with the values of all
    seeds. The values in SAME do not depend on the seed."""
    for same_step in zip(*(rows[-1:] if only_last else rows for rows in runs), strict=True):
        first = same_step[0]
        joined = {
            key: ", ".join(f"{row[key]:.{0 if key in WHOLE else digits}f}" for row in same_step)
            for key in first
        }
        print(json.dumps(joined | {key: round(first[key], 3) for key in SAME & first.keys()}))


@torch.no_grad()
def accuracy(loaded: TrainedModel, split: str) -> float:
    """The share of the texts of a split whose last token is the most likely one."""
    tokenizer = loaded.tokenizer
    documents = build_part(loaded.config.data, "data").documents()
    texts = ["".join(each.pieces) for each in documents if each.split == split]
    tokens = torch.tensor(
        [[tokenizer.end_of_text, *tokenizer.encode(text).tolist()] for text in texts]
    )
    best = loaded.model(tokens[:, :-1])[:, -1].argmax(dim=-1)
    return float((best == tokens[:, -1]).float().mean())
