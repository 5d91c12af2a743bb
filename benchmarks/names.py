"""Trains experiment=names with three seeds, and prints what the model can do at its kept steps as
JSON rows, for docs/names.md: python -m benchmarks.names [key=value ...]

With key=value words, only the last step is measured. Without them, names.png is drawn too.
"""

from matplotlib.figure import Figure

from benchmarks.three_seeds import Row, accuracies, accuracy, draw, main
from headscope.analysis.circuits import copying_scores
from headscope.trained import TrainedModel


def measured(steps: list[TrainedModel]) -> list[Row]:
    """A row for each kept step of a run. The heads are sorted by their copying scores."""
    rows = []
    for loaded in steps:
        row = accuracies(loaded)
        scores = copying_scores(loaded.model)[0]
        order = scores.argsort(descending=True).tolist()
        for name, head in zip(("higher", "lower"), order, strict=False):
            row[f"copying_of_the_{name}_head"] = float(scores[head])
            with loaded.ablate([f"L0H{head}"]):
                row[f"accuracy_without_the_{name}_head"] = accuracy(loaded, "validation")
        rows.append(row)
    return rows


def picture(runs: list[list[Row]]) -> Figure:
    """The accuracies and the copying scores over the steps, one colour per seed."""
    figure = Figure(figsize=(11, 3.6), dpi=110, layout="constrained")
    answers, copying = figure.subplots(1, 2)
    draw(answers, "share of right answers", runs, "train_accuracy", "validation_accuracy")
    scores = [f"copying_of_the_{name}_head" for name in ("lower", "higher")]
    draw(copying, "copying scores of the two heads", runs, *scores)
    answers.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main("names", measured, picture, own_words=["data.seed={seed}"])
