"""What a training step needs of memory: ours plainly and with what saves some, and others' model.

Each side takes its steps in a process of its own; what is counted is said in `fresh`, beside this.
"""

import math
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from headscope.analysis.pictures.style import COLOURS, GREY, plain_axes
from headscope.benchmarks.fresh import NUMBERS, Measured, Plan, measure_apart
from headscope.benchmarks.timing import machine, place

OURS, PEER = "headscope", "transformers"
CHUNKS = f"{OURS}, loss in chunks"
ANEW = f"{OURS}, activations anew"
BOTH = f"{OURS}, both"
PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "what the optimizer keeps",
    "rest": "activations, logits and what kernels work with",
}


def compare_memory(plan: Plan, *, peers: bool, console: Console) -> dict[str, Any]:
    """Peak memory and milliseconds of the step that `plan` describes, for each side.

    `plan` says how large the chunks of the loss are; our plain side has none. Raises RuntimeError
    when the losses show that the sides did not do the same work.
    """
    plain = replace(plan, loss_chunk_tokens=None, checkpoint_activations=False)
    chunks = replace(plain, loss_chunk_tokens=plan.loss_chunk_tokens)
    sides = {
        **({PEER: replace(plain, peer=True)} if peers else {}),
        OURS: plain,
        CHUNKS: chunks,
        ANEW: replace(plain, checkpoint_activations=True),
        BOTH: replace(chunks, checkpoint_activations=True),
    }
    measured: dict[str, Measured] = {}
    for name, side in sides.items():
        measured[name] = measure_apart(side)
        told = measured[name]
        console.print(
            f"{name}: {told.peak_mib:,.0f} MiB, {told.milliseconds['median']:,.0f} ms a step"
        )
    check_losses({name: found.first_loss for name, found in measured.items()})
    return {
        **machine(plan.device),
        "precision": plan.precision,
        "parameters": measured[OURS].parameters,
        "vocab_size": plan.vocab_size,
        "batch_size": plan.batch_size,
        "block_size": plan.model.block_size,
        "rounds": plan.rounds,
        "sides": {name: found.row() for name, found in measured.items()},
    }


def check_losses(losses: dict[str, float]) -> None:
    """Raises RuntimeError when one is not that of our plain side: all begin with its weights."""
    for name, loss in losses.items():
        if not math.isclose(loss, losses[OURS], rel_tol=1e-4):
            raise RuntimeError(f"{name} began at loss {loss}, {OURS} at {losses[OURS]}")


def report(figures: dict[str, Any], console: Console) -> None:
    """A line for each side."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("a training step", no_wrap=True)
    for name in ("peak MiB", "rest MiB", "ms", "memory", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    ours = figures["sides"][OURS]
    for name, row in figures["sides"].items():
        table.add_row(
            name,
            f"{row['peak_mib']:,.0f}",
            f"{row['rest_mib']:,.0f}",
            f"{row['milliseconds']['median']:,.0f}",
            f"{row['peak_mib'] / ours['peak_mib']:.2f}",
            f"{row['milliseconds']['median'] / ours['milliseconds']['median']:.2f}",
        )
    console.print(f"\n{sizes(figures)}", style="bold", highlight=False)
    console.print(table)
    console.print(
        "\npeak: at the moment when most is held. rest: of it, what is not weights "
        f"({ours['weights_mib']:,.0f} MiB), gradients ({ours['gradients_mib']:,.0f}) or the "
        f"optimizer's ({ours['optimizer_mib']:,.0f}), but {PARTS['rest']}. ms: median of "
        f"{figures['rounds']}. memory, time: times those of {OURS}, which reads out all at once "
        "and keeps all activations.",
        highlight=False,
        soft_wrap=True,
    )


def sizes(figures: dict[str, Any]) -> str:
    return (
        f"{figures['parameters']:,} parameters, vocabulary of {figures['vocab_size']:,}, "
        f"{figures['batch_size']} x {figures['block_size']:,} tokens"
    )


def draw(figures: dict[str, Any]) -> Figure:
    """A bar for each side, made of its parts."""
    sides = figures["sides"]
    figure = Figure(figsize=(10, 2.6 + 0.45 * len(sides)), layout="constrained")
    figure.suptitle(
        f"Memory of a training step, {place(figures)}, {NUMBERS[figures['precision']]}\n"
        f"{sizes(figures)}",
        fontsize=12,
    )
    panel = figure.subplots()
    places = range(len(sides))
    start = [0.0] * len(sides)
    colours = (COLOURS[0], COLOURS[4], GREY, COLOURS[3])
    for (part, words), colour in zip(PARTS.items(), colours, strict=True):
        lengths = [row[f"{part}_mib"] for row in sides.values()]
        bars = panel.barh(places, lengths, left=start, color=colour, height=0.7, label=words)
        start = [a + b for a, b in zip(start, lengths, strict=True)]
    ends = [
        f"{row['peak_mib']:,.0f} MiB, {row['milliseconds']['median']:,.0f} ms"
        for row in sides.values()
    ]
    panel.bar_label(bars, ends, padding=5, fontsize=9)
    panel.set_yticks(places, list(sides))
    panel.invert_yaxis()
    panel.set_xlim(0, 1.28 * max(start))
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set_xlabel("MiB at the moment when most is held (less is better), and time of a step")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    plain_axes(panel)
    return figure
