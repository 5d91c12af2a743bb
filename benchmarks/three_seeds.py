"""Trains an experiment with three seeds, and prints and draws what its kept steps can do."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import headscope
from headscope.config.parts import build_part
from headscope.trained import TrainedModel

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
SEEDS = (1, 2, 3)
SAME = {"step", "random"}
"""Quantities that do not depend on the seed."""
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
    """Trains `experiment` with all seeds and the words key=value of the command line. `measure`
    maps the kept checkpoints of a run to a row each; the last row also gets the seconds of
    training. Prints a JSON row for each kept step, with the values of all seeds. With such words,
    only the last step is printed. Without them, `picture` is saved too. In `own_words`, {seed} is
    replaced by the seed."""
    words = sys.argv[1:]
    runs = []
    for run in trained(experiment, [*own_words, *words]):
        kept = sorted(run.glob("checkpoints/step_*.safetensors"))
        runs.append(measure([headscope.load(path) for path in kept]))
        runs[-1][-1]["training_seconds"] = round(summary(run)["train_seconds"])
    if not words:
        picture(runs).savefig(f"{experiment}.png")
    for same_step in zip(*(rows[-1:] if words else rows for rows in runs), strict=True):
        joined: dict[str, Any] = {}
        for key, value in same_step[0].items():
            form = f".{0 if key in WHOLE else digits}f"
            values = ", ".join(format(row[key], form) for row in same_step)
            joined[key] = round(value, 3) if key in SAME else values
        print(json.dumps(joined))


def trained(experiment: str, words: Sequence[str]) -> Iterator[Path]:
    """Trains `experiment` once for each seed, with the overrides `words`. Yields the folder of each
    run."""
    with TemporaryDirectory() as folder:
        for seed in SEEDS:
            run = Path(folder, str(seed))
            own = [f"experiment={experiment}", f"seed={seed}", f"hydra.run.dir={run}"]
            script("train", *own, *(word.format(seed=seed) for word in words))
            yield run


def script(name: str, *words: str) -> str:
    """Runs scripts/<name>.py and returns its standard output."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def draw(panel: Axes, title: str, runs: list[list[Row]], *keys: str, **look: Any) -> None:
    """Draws one or two quantities over the steps, with one colour per seed. Of two, the first has
    dashed lines."""
    for number, (seed, rows) in enumerate(zip(SEEDS, runs, strict=True)):
        for key, style in zip(keys, ("--", "-")[-len(keys) :], strict=True):
            label = f"{key.partition('_')[0]}, seed {seed}" if len(keys) > 1 else f"seed {seed}"
            steps, values = zip(*((row["step"], row[key]) for row in rows), strict=True)
            panel.plot(steps, values, style, color=f"C{number}", label=label, **look)
    panel.set(title=title, xlabel="training step")
    panel.spines[["top", "right"]].set_visible(False)


def accuracies(loaded: TrainedModel) -> Row:
    """The beginning of a row: the step, and the accuracy on both splits."""
    splits = ("train", "validation")
    return {"step": loaded.step} | {f"{each}_accuracy": accuracy(loaded, each) for each in splits}


@torch.no_grad()
def accuracy(loaded: TrainedModel, split: str) -> float:
    """The share of the texts of a split whose last token is the most likely one."""
    encode, start = loaded.tokenizer.encode, loaded.tokenizer.end_of_text
    documents = build_part(loaded.config.data, "data").documents()
    texts = ["".join(each.pieces) for each in documents if each.split == split]
    tokens = torch.tensor([[start, *encode(text).tolist()] for text in texts])
    best = loaded.model(tokens[:, :-1])[:, -1].argmax(dim=-1)
    return float((best == tokens[:, -1]).float().mean())
