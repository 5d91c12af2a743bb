"""The figures of a comparison: what its runs learned, and what they weigh and cost."""

import statistics
import time
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from headscope import checkpoint
from headscope.comparison.runs import PlannedRun
from headscope.evaluation import evaluate_lengths, validation_text
from headscope.files import json_text, read_json, write_atomically
from headscope.generation import generate_tokens
from headscope.nn.cache import cache_bytes_per_token
from headscope.training.bare_loop import bare_loop
from headscope.training.run import device_name

TIMED_STEPS, WARMUP_STEPS = 10, 3
SPEEDS = ("step_ms", "sampled_tokens_per_second")
EVALUATION_BATCH = 16


def figures_of(runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Size, and bits per byte of every seed, their mean and, of several, the standard deviation of
    the sample."""
    bits = [run.summary()["val_bits_per_byte"] for run in runs]
    model = checkpoint.load(runs[0].last).model
    return {
        "parameters": model.parameter_count(),
        "cache_bytes_per_token": cache_bytes_per_token(model),
        "bits_per_byte": statistics.mean(bits),
        **({"deviation": statistics.stdev(bits)} if len(bits) > 1 else {}),
        **{f"seed_{run.seed}": value for run, value in zip(runs, bits, strict=True)},
    }


def at_lengths(run: PlannedRun, block_sizes: Sequence[int], console: Console) -> dict[str, float]:
    """Bits per byte of a run at each context length that its position encoding reaches."""
    if not block_sizes:
        return {}
    file = run.folder / "lengths.json"
    known = read_json(file)
    if not _known_lengths(known, block_sizes):
        loaded = checkpoint.load(run.last, device=checkpoint.pick_device("auto"))
        text = validation_text(checkpoint.stored_corpus(loaded.config), loaded.tokenizer)
        results = evaluate_lengths(
            loaded, text, batch_size=EVALUATION_BATCH, block_sizes=block_sizes
        )
        known = {str(entry["block_size"]): entry.get("bits_per_byte") for entry in results}
        write_atomically(file, json_text(known))
        console.print(
            f"{run.name}, seed {run.seed}, at {', '.join(known)} tokens: "
            + ", ".join("-" if bits is None else f"{bits:.4f}" for bits in known.values()),
            highlight=False,
            soft_wrap=True,
        )
    return {f"bits_per_byte_at_{size}": bits for size, bits in known.items() if bits is not None}


def _known_lengths(known: Any, block_sizes: Sequence[int]) -> bool:
    """Whether a file that was read has the figures of all of `block_sizes`."""
    return (
        isinstance(known, dict)
        and known.keys() == set(map(str, block_sizes))
        and all(bits is None or type(bits) in (int, float) for bits in known.values())
    )


def measure_speed(
    runs: Sequence[PlannedRun], folder: Path, *, rounds: int, console: Console
) -> dict[str, dict[str, float]]:
    """Milliseconds of a training step (one batch, not compiled) and tokens sampled per second, of
    `runs`, one of every choice: medians of rounds that take the choices in turn, so that a machine
    that slows down slows all alike. Measured once, and then read from `folder`.
    """
    if not rounds:
        return {}
    file = folder / "speed.json"
    where = {
        "choices": [run.name for run in runs],
        "rounds": rounds,
        "device": device_name(checkpoint.pick_device("auto")),
        "torch": torch.__version__,
    }
    known = read_json(file)
    if isinstance(known, dict) and known.get("where") == where and _whole(known.get("speed"), runs):
        return known["speed"]
    steps: dict[str, list[float]] = {run.name: [] for run in runs}
    sampling: dict[str, list[float]] = {run.name: [] for run in runs}
    configs = {run.name: deepcopy(run.config) for run in runs}
    for config in configs.values():
        config.trainer.compile = False
    for number in range(rounds):
        console.print(f"timing, round {number + 1} of {rounds}", highlight=False)
        for run in runs:
            loop = bare_loop(configs[run.name])
            loop.run(WARMUP_STEPS)
            steps[run.name].append(loop.run(TIMED_STEPS))
            sampling[run.name].append(sampling_speed(run))
    speed = {
        name: {
            key: statistics.median(times[name])
            for key, times in zip(SPEEDS, (steps, sampling), strict=True)
        }
        for name in steps
    }
    write_atomically(file, json_text({"where": where, "speed": speed}, indent=2))
    return speed


def _whole(speed: Any, runs: Sequence[PlannedRun]) -> bool:
    """Whether a file that was read has all the figures of `measure_speed`."""
    return (
        isinstance(speed, dict)
        and speed.keys() == {run.name for run in runs}
        and all(
            isinstance(row, dict)
            and row.keys() == set(SPEEDS)
            and all(type(value) in (int, float) for value in row.values())
            for row in speed.values()
        )
    )


def sampling_speed(run: PlannedRun) -> float:
    """Tokens per second of one text of `block_size` tokens."""
    loaded = checkpoint.load(run.last, device=checkpoint.pick_device("auto"))
    started = time.perf_counter()
    made = generate_tokens(
        loaded.model,
        [[loaded.tokenizer.end_of_text]],
        max_new_tokens=loaded.model.block_size - 1,
        seeds=[1],
    )
    return len(list(made)) / (time.perf_counter() - started)
