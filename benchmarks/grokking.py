"""Trains experiment=grokking with three seeds, and prints its accuracies and the Fourier components
of its embedding at the kept steps as JSON rows, for docs/grokking.md:
python -m benchmarks.grokking [key=value ...]

With key=value words, only the last step is measured. Without them, grokking.png is drawn too.
"""

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.three_seeds import Row, accuracies, draw, main
from headscope.data.generated import SYMBOLS
from headscope.trained import TrainedModel

POWER = 0.9
spectra: list[Tensor] = []  # of the last model of each seed


def fourier_power(loaded: TrainedModel) -> Tensor:
    """The power of each frequency 1, ..., (p - 1) / 2 in the embedding of the numbers 0 to p - 1,
    as a share of their sum (Nanda 2023, section 4.1)."""
    data: Any = loaded.config.data
    numbers = loaded.tokenizer.encode(SYMBOLS[: data.prime]).tolist()
    embedding = loaded.model.embedding.weight.detach()[numbers]  # (p, C)
    power = torch.fft.rfft(embedding, dim=0)[1:].abs().square().sum(dim=1)
    return power / power.sum()


def measured(steps: list[TrainedModel]) -> list[Row]:
    rows = []
    for loaded in steps:
        row = accuracies(loaded)
        power = fourier_power(loaded)
        sums = power.sort(descending=True).values.cumsum(0)
        row["frequencies"] = int((sums < POWER).sum()) + 1
        rows.append(row)
    spectra.append(power)
    return rows


def picture(runs: list[list[Row]]) -> Figure:
    """The accuracies over the steps, and the final spectra, one colour per seed."""
    figure = Figure(figsize=(12, 3.6), dpi=110, layout="constrained")
    answers, counts, spectrum = figure.subplots(1, 3)
    draw(answers, "share of right answers", runs, "train_accuracy", "validation_accuracy")
    answers.legend(fontsize=7)
    draw(counts, f"frequencies with {POWER:.0%} of the power", runs, "frequencies")
    for number, power in enumerate(spectra):
        frequencies = torch.arange(1, len(power) + 1) + 0.27 * (number - 1)
        spectrum.bar(frequencies, power, width=0.27, color=f"C{number}")
    spectrum.set(title="power in the embedding at the end (share)", xlabel="frequency")
    spectrum.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main("grokking", measured, picture, own_words=["data.seed={seed}"])
