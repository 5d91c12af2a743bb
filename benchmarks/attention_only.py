"""Trains experiment=attention_only with three seeds, and prints what the heads do at its kept
steps as JSON rows, for docs/attention_only.md: python -m benchmarks.attention_only [key=value ...]

With key=value words, such as model.layers=1, only the last step is measured. Without them, the
picture attention_only.png is drawn too.
"""

import torch
from matplotlib.figure import Figure

from benchmarks.three_seeds import Row, draw, main
from headscope.analysis.circuits import compositions, random_composition
from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.in_context import in_context_score
from headscope.data.windows import spread_windows
from headscope.nn.loss import next_token_loss
from headscope.trained import TrainedModel
from headscope.trained.evaluation import validation_text

WINDOWS = 64
DRAWN = {
    "loss": "validation loss (nats per token)",
    "in_context_score": "in-context-learning score (nats per token)",
    "induction": "largest induction of a head",
    "previous": "largest weight on the previous token",
    "k_composition": "K-composition of the two heads",
    "copying": "copying score of the induction head",
    "direct_effect": "direct effect of the induction head (logits)",
}


def measured(steps: list[TrainedModel]) -> list[Row]:
    """A row for each kept step of a run. The induction head has the largest induction of the last
    layer at the last step, and the other head attends most to the previous token then."""
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


def picture(runs: list[list[Row]]) -> Figure:
    """Each quantity in DRAWN over the steps, one line per seed."""
    figure = Figure(figsize=(12, 6), dpi=110, layout="constrained")
    panels = figure.subplots(2, 4).flat
    for panel, (name, title) in zip(panels, DRAWN.items(), strict=False):
        draw(panel, title, runs, name, marker="o", markersize=3)
        if name == "k_composition":
            panel.axhline(runs[0][0]["random"], color="grey", linestyle="--", label="random")
            panel.legend(fontsize=8)
        panel.title.set_size(9)
        panel.xaxis.label.set_size(8)
        panel.axvspan(150, 225, color="grey", alpha=0.12)
    figure.axes[-1].remove()
    return figure


if __name__ == "__main__":
    main("attention_only", measured, picture, digits=2)
