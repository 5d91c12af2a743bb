"""Measures the quality, size and speed of the runs of a comparison, and shows the results."""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headscope import trained
from headscope.analysis.rows import data_frame
from headscope.analysis.sheet import BLUE, COLOURS, GREY, plain_axes
from headscope.cli.bare_loop import bare_loop, milliseconds
from headscope.cli.sweeps import SweepRun, print_table
from headscope.errors import UserError
from headscope.nn import cache_bytes_per_token
from headscope.trained import checkpoint
from headscope.trained.evaluation import evaluate_lengths
from headscope.trained.generation.generate import generate_tokens

TIMED_STEPS, WARMUP_STEPS = 10, 3


def report_choices(
    choices: Mapping[str, Sequence[SweepRun]],
    folder: Path,
    block_sizes: Sequence[int],
    speed_rounds: int,
) -> None:
    """Prints a table with one row of results for each choice, the best first, and writes
    comparison.csv, comparison.png and, with `block_sizes`, lengths.png to `folder`. `choices` are
    the finished runs of each choice, one for each seed."""
    # Other context lengths and speed are measured only for the first seed, because this takes long.
    # Bits per byte differ more between context lengths than between seeds.
    first = {name: runs[0] for name, runs in choices.items()}
    speed = measure_speed(first, speed_rounds)
    rows = [
        {
            "choice": name,
            **run_results(runs),
            **speed.get(name, {}),
            **bits_per_byte_at_lengths(name, first[name], block_sizes),
        }
        for name, runs in choices.items()
    ]
    rows.sort(key=lambda row: row["bits_per_byte"])
    data_frame(rows).to_csv(folder / "comparison.csv", index=False)
    choice_chart(rows).savefig(folder / "comparison.png")
    shown_columns = {
        "choice": ("choice", ""),
        "bits per byte": ("bits_per_byte", ".4f"),
        "±": ("deviation", ".4f"),
        "parameters": ("parameters", ","),
        "cache bytes per token": ("cache_bytes_per_token", ","),
        "step ms": ("step_ms", ".1f"),
        "sampled tokens/s": ("sampled_tokens_per_second", ".0f"),
    }
    print_table(rows, shown_columns)
    if block_sizes:
        length_chart(rows, block_sizes).savefig(folder / "lengths.png")
        print("\nbits per byte of the first seed by context length in tokens")
        lengths = {f"{size:,}": (f"bits_per_byte_at_{size}", ".4f") for size in block_sizes}
        print_table(rows, {"choice": ("choice", ""), **lengths})
    print(f"\nWritten: {folder}/comparison.csv and comparison.png")


def check_same_text(runs: Sequence[SweepRun]) -> None:
    """Raises UserError if two runs have the same settings of text and tokenizer, but were trained
    on different tokens. This happens if a text file has changed between the two runs."""
    stores: dict[str, str] = {}
    for run in runs:
        entry = checkpoint.read(run.last).data
        text = json.dumps([entry["config"][key] for key in ("data", "tokenizer")], sort_keys=True)
        if stores.setdefault(text, entry["store"]) != entry["store"]:
            problem = f"{run.folder} was trained on another text, because a file has changed"
            raise UserError(f"{problem}: start a new comparison with another name=")


def run_results(runs: Sequence[SweepRun]) -> dict[str, Any]:
    """The model size, and the bits per byte of the runs of one choice: of each seed, their mean,
    and if there are several, their sample standard deviation."""
    bits = {run.settings["seed"]: run.summary["val_bits_per_byte"] for run in runs}
    model = trained.load(runs[0].last).model
    return {
        "parameters": model.parameter_count(),
        "cache_bytes_per_token": cache_bytes_per_token(model),
        "bits_per_byte": statistics.mean(bits.values()),
        **({"deviation": statistics.stdev(bits.values())} if len(bits) > 1 else {}),
        **{f"seed_{seed}": value for seed, value in bits.items()},
    }


def bits_per_byte_at_lengths(
    name: str, run: SweepRun, block_sizes: Sequence[int]
) -> dict[str, float]:
    """Bits per byte of a run at each of `block_sizes` that its position encoding supports."""
    if not block_sizes:
        return {}
    loaded = trained.load(run.last, device="auto")
    text = loaded.validation
    losses = evaluate_lengths(loaded, text, batch_size=16, block_sizes=block_sizes)
    lengths = {str(each["block_size"]): each.get("bits_per_byte") for each in losses}
    values = ", ".join("-" if bits is None else f"{bits:.4f}" for bits in lengths.values())
    print(f"{name}: bits per byte at {', '.join(lengths)} tokens: {values}")
    return {f"bits_per_byte_at_{size}": bits for size, bits in lengths.items() if bits}


def measure_speed(runs: Mapping[str, SweepRun], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds per training step, without compilation, and sampled tokens per second, as
    medians over `rounds` rounds. `runs` is one run of each choice. Each round times all choices, so
    that a change in the machine's speed affects all choices alike."""
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for number in range(rounds):
        print(f"timing round {number + 1} of {rounds}", flush=True)
        for name, run in runs.items():
            measured[name].append(speed_of(run))
    return {
        name: {key: statistics.median(each[key] for each in speeds) for key in speeds[0]}
        for name, speeds in measured.items()
        if speeds
    }


def speed_of(run: SweepRun) -> dict[str, float]:
    """One measurement for `measure_speed`. One text of `block_size` tokens is sampled."""
    config = checkpoint.read(run.last).config
    config.trainer.compile = False
    steps = bare_loop(config)
    milliseconds(steps, WARMUP_STEPS)
    step_ms, loaded = milliseconds(steps, TIMED_STEPS), trained.load(run.last, device="auto")
    prompt, count = [loaded.tokenizer.first_token()], loaded.model.block_size - 1
    started = time.perf_counter()
    tokens = list(generate_tokens(loaded.model, prompt, max_new_tokens=count, seeds=[1]))
    rate = len(tokens) / (time.perf_counter() - started)
    return {"step_ms": step_ms, "sampled_tokens_per_second": rate}


def choice_chart(rows: Sequence[dict[str, Any]]) -> Figure:
    """A chart of the bits per byte of each choice, and if all were timed, of the time of a step."""
    timed = all("step_ms" in row for row in rows)
    figure = Figure(figsize=(10 if timed else 6.5, 1.4 + 0.36 * len(rows)), layout="constrained")
    panels = figure.subplots(1, 2 if timed else 1, squeeze=False, sharey=True)[0]
    positions = range(len(rows))
    beside: Any = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
    for position, row in enumerate(rows):
        seeds = [value for key, value in row.items() if key.startswith("seed_")]
        mean = row["bits_per_byte"]
        panels[0].plot(seeds, [position] * len(seeds), "o", color=BLUE, alpha=0.45, markersize=6)
        panels[0].plot(mean, position, "|", color=BLUE, markersize=20, mew=2.5)
        panels[0].annotate(f"{mean:.3f}", (max(seeds), position), **beside)
    panels[0].set_yticks(positions, [row["choice"] for row in rows])
    panels[0].invert_yaxis()
    panels[0].margins(x=0.16)
    panels[0].set_xlabel("bits per byte on the validation split (lower is better)")
    panels[0].set_title("Loss: dots are seeds, bars are means", fontsize=11)
    if timed:
        bars = panels[1].barh(positions, [row["step_ms"] for row in rows], color=GREY, height=0.6)
        panels[1].bar_label(bars, fmt="%.3g", padding=4)
        panels[1].margins(x=0.12)
        panels[1].set_xlabel("milliseconds per training step (median, lower is better)")
        panels[1].set_title("Speed", fontsize=11)
    for panel in panels:
        plain_axes(panel)
    return figure


def length_chart(rows: Sequence[dict[str, Any]], block_sizes: Sequence[int]) -> Figure:
    """A chart with a line for each choice: bits per byte at the context lengths it supports."""
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    panel = figure.subplots()
    lines: list[Line2D] = []
    for number, row in enumerate(rows):
        supported = [size for size in block_sizes if f"bits_per_byte_at_{size}" in row]
        if not supported:
            continue
        values = [row[f"bits_per_byte_at_{size}"] for size in supported]
        limit = "" if supported == list(block_sizes) else f" (at most {max(supported)})"
        style: Any = {"color": COLOURS[number % len(COLOURS)], "label": row["choice"] + limit}
        style |= {"linestyle": ["-", "--"][number // len(COLOURS) % 2]}
        lines += panel.plot(supported, values, **style, marker="osD^vP*X<>ph"[number % 12])
    # Sort by the last value, so that the legend has the same order as the right ends of the lines.
    lines.sort(key=lambda line: np.asarray(line.get_ydata())[-1], reverse=True)
    panel.set_xscale("log", base=2)
    panel.set_xticks(block_sizes, [str(size) for size in block_sizes])
    panel.minorticks_off()
    panel.set_xlabel("context length in tokens")
    panel.set_ylabel("bits per byte on the validation split, one seed (lower is better)")
    panel.legend(handles=lines, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    plain_axes(panel)
    return figure
