"""Trains an experiment with three seeds, and prints what its models do as JSON rows, for its page
in docs/: python -m benchmarks.experiments attention_only|grokking|induction|names [key=value ...]

A row has the values of all seeds at one kept step, and a picture shows the rows. With key=value
words, and for experiment=induction, only the last step is measured.
"""

import csv
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib.figure import Figure

import headscope
from benchmarks.table import heading
from headscope.analysis.circuits import compositions, copying_scores, random_composition
from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.in_context import in_context_score
from headscope.config.parts import build_part
from headscope.data.encode import validation_text
from headscope.data.generated import SYMBOLS
from headscope.data.windows import spread_windows
from headscope.nn.loss import next_token_loss
from headscope.trained import TrainedModel

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
SEEDS = (1, 2, 3)
SAME = {"step", "random"}
"""Quantities that do not depend on the seed."""
POWER = 0.9  # of the embedding's spectrum
WINDOWS = 64  # of the validation split
Row = dict[str, Any]
"""The quantities of one step of one run."""


def grokking(run: Path) -> list[Row]:
    """The accuracies, and the number of frequencies that have most of the power of the embedding
    (Nanda 2023, section 4.1)."""
    rows = []
    for loaded in kept_steps(run):
        power = fourier_power(loaded)
        sums = power.sort(descending=True).values.cumsum(0)
        rows.append(accuracies(loaded) | {"frequencies": int((sums < POWER).sum()) + 1})
    rows[-1]["power"] = power
    return rows


def fourier_power(loaded: TrainedModel) -> torch.Tensor:
    """The power of each frequency 1, ..., (p - 1) / 2 in the embedding of the numbers 0 to p - 1,
    as a share of their sum."""
    data: Any = loaded.config.data
    numbers = loaded.tokenizer.encode(SYMBOLS[: data.prime]).tolist()
    embedding = loaded.model.embedding.weight.detach()[numbers]  # (p, C)
    power = torch.fft.rfft(embedding, dim=0)[1:].abs().square().sum(dim=1)
    return power / power.sum()


def names(run: Path) -> list[Row]:
    """The accuracies with and without each head. The heads are sorted by their copying scores."""
    rows = []
    for loaded in kept_steps(run):
        row = accuracies(loaded)
        scores = copying_scores(loaded.model)[0]
        order = scores.argsort(descending=True).tolist()
        for name, head in zip(("higher", "lower"), order, strict=False):
            row[f"copying_of_the_{name}_head"] = float(scores[head])
            with loaded.ablate([f"L0H{head}"]):
                row[f"accuracy_without_the_{name}_head"] = accuracy(loaded, "validation")
        rows.append(row)
    return rows


def attention_only(run: Path) -> list[Row]:
    """The losses, and what two heads do: the induction head has the largest induction of the last
    layer at the last step, and the other head attends most to the previous token then."""
    steps = kept_steps(run)
    text = validation_text(steps[-1].corpus(), steps[-1].tokenizer)
    windows = spread_windows(text.tokens, windows=WINDOWS, length=steps[-1].model.block_size)
    every = [measure_heads(loaded.model, windows).metrics for loaded in steps]
    copier = int(every[-1]["induction"][-1].argmax())
    finder = int(every[-1]["previous"][0].argmax())
    rows = []
    for loaded, metrics in zip(steps, every, strict=True):
        with torch.no_grad():
            loss = next_token_loss(loaded.model(windows[:, :-1]), windows[:, 1:])
        row: Row = {
            "step": loaded.step,
            "loss": float(loss),
            "in_context_score": in_context_score(loaded.model, windows),
            "induction": float(metrics["induction"].max()),
            "previous": float(metrics["previous"][0].max()),
            "copying": float(metrics["copying"][-1, copier]),
            "direct_effect": float(metrics["direct_effect"][-1, copier]),
        }
        if len(loaded.model.blocks) > 1:
            row["k_composition"] = float(compositions(loaded.model)["k"][-1, copier, 0, finder])
        rows.append(row | {"random": random_composition(loaded.model)})
    return rows


def induction(run: Path) -> list[Row]:
    """What `analyze.py` and `evaluate.py` say about a run. The removed head is the head that
    attends most to the previous token."""
    script("analyze", f"checkpoint={run}", "ablation=true")
    recipe = script("evaluate", f"checkpoint={run}", "data=repeats", "data.alphabet=48")
    with (run / "analysis" / "heads.csv").open(newline="", encoding="utf-8") as stream:
        heads = [*csv.DictReader(stream)]
    removed = max(heads, key=lambda row: float(row["previous"]))
    row = {
        "loss": summary(run)["val_loss"],
        "loss_on_the_text_of_the_recipe": json.loads(recipe)["loss_nats_per_token"],
        "training_seconds": summary(run)["train_seconds"],
        "largest_induction": max(float(row["induction"]) for row in heads),
        "induction_heads": [row["type"] for row in heads].count("induction"),
        "loss_change": float(removed["loss_change"]),
        "induction_of_the_others": float(removed["other_induction"]),
    }
    return [row]


def kept_steps(run: Path) -> list[TrainedModel]:
    """The models that the run kept, in the order of their steps."""
    return [headscope.load(path) for path in sorted(run.glob("checkpoints/step_*.safetensors"))]


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


def picture(keys: list[str], runs: list[list[Row]]) -> Figure:
    """One panel for each quantity, over the steps, with one colour per seed."""
    lines, columns = math.ceil(len(keys) / 4), min(4, len(keys))
    figure = Figure((12, 3.2 * lines), dpi=110, layout="constrained")
    axes = list(figure.subplots(lines, columns).flat)
    for panel, key in zip(axes, keys, strict=False):
        panel.set(title=heading(key), xlabel="frequency" if key == "power" else "training step")
        panel.spines[["top", "right"]].set_visible(False)
        for seed, rows in zip(SEEDS, runs, strict=True):
            values = rows[-1]["power"] if key == "power" else [row[key] for row in rows]
            where = range(1, 1 + len(values)) if key == "power" else [row["step"] for row in rows]
            panel.plot(where, values, label=f"seed {seed}")
        if key == "k_composition":
            panel.axhline(runs[0][0]["random"], color="grey", linestyle="--", label="random")
        panel.legend(fontsize=7)
    for panel in axes[len(keys) :]:
        panel.remove()
    return figure


def trained(experiment: str, words: Sequence[str]) -> Iterator[Path]:
    """Trains `experiment` once for each seed, with the overrides `words`. Yields the folder of each
    run."""
    with TemporaryDirectory() as folder:
        for seed in SEEDS:
            run = Path(folder, str(seed))
            own = [f"experiment={experiment}", f"seed={seed}", f"hydra.run.dir={run}"]
            own += [f"data.seed={seed}"] if experiment in ("grokking", "names") else []
            script("train", *own, *words)
            yield run


def script(name: str, *words: str) -> str:
    """Runs scripts/<name>.py and returns its standard output."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


ACCURACIES = ["train_accuracy", "validation_accuracy"]
COPYING = ["copying_of_the_higher_head", "copying_of_the_lower_head"]
OF_HEADS = ["induction", "previous", "k_composition", "copying", "direct_effect"]
EXPERIMENTS: dict[str, tuple[Callable[[Path], list[Row]], str, list[str]]] = {
    "attention_only": (attention_only, ".2f", ["loss", "in_context_score", *OF_HEADS]),
    "grokking": (grokking, ".3f", [*ACCURACIES, "frequencies", "power"]),
    "induction": (induction, ".3g", []),
    "names": (names, ".3f", [*ACCURACIES, *COPYING]),
}
"""By the experiment: what measures a run, how numbers are printed, and the quantities that its
picture shows."""


def main(experiment: str, words: list[str]) -> None:
    measure, form, drawn = EXPERIMENTS[experiment]
    runs = []
    for run in trained(experiment, words):
        runs.append(measure(run))
        runs[-1][-1].setdefault("training_seconds", round(summary(run)["train_seconds"]))
    if drawn and not words:
        picture(drawn, runs).savefig(f"{experiment}.png")
    for same_step in zip(*(rows[-1:] if words else rows for rows in runs), strict=True):
        joined: Row = {}
        for key, value in same_step[0].items():
            if key in SAME:
                joined[key] = round(value, 3)
            elif key != "power":
                whole = ".0f" if isinstance(value, int) else form
                joined[key] = ", ".join(format(row[key], whole) for row in same_step)
        print(json.dumps(joined))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
