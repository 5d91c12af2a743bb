"""Measures the quality, size and speed of the runs of a comparison."""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from headscope import checkpoint
from headscope.comparison.sweep import SweepRun
from headscope.errors import UserError
from headscope.evaluation import evaluate_lengths, validation_text
from headscope.files import json_text, read_json, write_atomically
from headscope.generation import generate_tokens
from headscope.nn import cache_bytes_per_token
from headscope.training.bare_loop import bare_loop
from headscope.training.run import device_name

TIMED_STEPS, WARMUP_STEPS = 10, 3
SPEED_KEYS = ("step_ms", "sampled_tokens_per_second")
EVALUATION_BATCH = 16


def comparison_rows(
    choices: Mapping[str, Sequence[SweepRun]],
    folder: Path,
    block_sizes: Sequence[int],
    speed_rounds: int,
    console: Console,
) -> list[dict[str, Any]]:
    """One row of results for each choice, the best first. `choices` are the finished runs of each,
    one for each seed."""
    # Other context lengths and speed are measured only for the first seed, because this takes long.
    # Bits per byte differ more between context lengths than between seeds.
    first = {name: runs[0] for name, runs in choices.items()}
    lengths = {
        name: bits_per_byte_at_lengths(name, run, block_sizes, console)
        for name, run in first.items()
    }
    speed = measure_speed(first, folder, rounds=speed_rounds, console=console)
    rows = [
        {"choice": name, **run_results(runs), **speed.get(name, {}), **lengths[name]}
        for name, runs in choices.items()
    ]
    return sorted(rows, key=lambda row: row["bits_per_byte"])


def check_same_text(runs: Sequence[SweepRun]) -> None:
    """Raises UserError if two runs have the same settings of text and tokenizer, but were trained
    on different tokens. This happens if a text file has changed between the two runs."""
    stores: dict[str, str] = {}
    for run in runs:
        entry = checkpoint.read(run.last).data
        text = json.dumps([entry["config"]["data"], entry["config"]["tokenizer"]])
        if stores.setdefault(text, entry["store"]) != entry["store"]:
            raise UserError(
                f"{run.folder} was trained on another text than the runs before it: a file of the "
                "text has changed; start a new comparison with another name="
            )


def run_results(runs: Sequence[SweepRun]) -> dict[str, Any]:
    """The model size, the bits per byte of each seed, and the mean over the seeds. If there are
    several seeds, also the sample standard deviation. `runs` are the runs of one choice."""
    bits = {run.settings["seed"]: (run.summary or {})["val_bits_per_byte"] for run in runs}
    model = checkpoint.load(runs[0].last).model
    return {
        "parameters": model.parameter_count(),
        "cache_bytes_per_token": cache_bytes_per_token(model),
        "bits_per_byte": statistics.mean(bits.values()),
        **({"deviation": statistics.stdev(bits.values())} if len(bits) > 1 else {}),
        **{f"seed_{seed}": value for seed, value in bits.items()},
    }


def bits_per_byte_at_lengths(
    name: str, run: SweepRun, block_sizes: Sequence[int], console: Console
) -> dict[str, float]:
    """Bits per byte of a run at each of `block_sizes` that the run's position encoding supports.
    The result is saved in the run's folder, and the next call reads it from there."""
    if not block_sizes:
        return {}
    file = run.folder / "lengths.json"
    lengths = read_json(file)
    if not _has_all_lengths(lengths, block_sizes):
        loaded = checkpoint.load(run.last, device=checkpoint.pick_device("auto"))
        text = validation_text(checkpoint.stored_corpus(loaded), loaded.tokenizer)
        results = evaluate_lengths(
            loaded, text, batch_size=EVALUATION_BATCH, block_sizes=block_sizes
        )
        lengths = {str(entry["block_size"]): entry.get("bits_per_byte") for entry in results}
        write_atomically(file, json_text(lengths))
        values = ", ".join("-" if bits is None else f"{bits:.4f}" for bits in lengths.values())
        console.print(
            f"{name}: bits per byte at {', '.join(lengths)} tokens: {values}",
            highlight=False,
            soft_wrap=True,
        )
    return {f"bits_per_byte_at_{size}": bits for size, bits in lengths.items() if bits is not None}


def _has_all_lengths(content: Any, block_sizes: Sequence[int]) -> bool:
    """Whether `content`, read from a JSON file, has valid values for exactly the sizes in
    `block_sizes`."""
    return (
        isinstance(content, dict)
        and content.keys() == set(map(str, block_sizes))
        and all(bits is None or type(bits) in (int, float) for bits in content.values())
    )


def measure_speed(
    runs: Mapping[str, SweepRun], folder: Path, *, rounds: int, console: Console
) -> dict[str, dict[str, float]]:
    """Milliseconds per training step, and sampled tokens per second, as medians over `rounds`
    rounds. A training step uses one batch and no compilation. `runs` is one run of each choice.

    Each round times all choices, so that a change in the machine's speed affects all choices alike.
    The result is saved in `folder`, and the next call reads it from there.
    """
    if not rounds:
        return {}
    file = folder / "speed.json"
    conditions = {
        "choices": list(runs),
        "rounds": rounds,
        "device": device_name(checkpoint.pick_device("auto")),
        "torch": torch.__version__,
    }
    stored = read_json(file)
    if (
        isinstance(stored, dict)
        and stored.get("where") == conditions
        and _has_all_speeds(stored.get("speed"), runs)
    ):
        return stored["speed"]
    steps: dict[str, list[float]] = {name: [] for name in runs}
    sampling: dict[str, list[float]] = {name: [] for name in runs}
    configs = {name: checkpoint.read(run.last).config for name, run in runs.items()}
    for config in configs.values():
        config.trainer.compile = False
    for number in range(rounds):
        console.print(f"timing round {number + 1} of {rounds}", highlight=False)
        for name, run in runs.items():
            loop = bare_loop(configs[name])
            loop.run(WARMUP_STEPS)
            steps[name].append(loop.run(TIMED_STEPS))
            sampling[name].append(sampling_speed(run))
    speed = {
        name: {
            key: statistics.median(times[name])
            for key, times in zip(SPEED_KEYS, (steps, sampling), strict=True)
        }
        for name in steps
    }
    write_atomically(file, json_text({"where": conditions, "speed": speed}, indent=2))
    return speed


def _has_all_speeds(speed: Any, runs: Mapping[str, SweepRun]) -> bool:
    """Whether `speed`, read from a JSON file, has all values that `measure_speed` returns."""
    return (
        isinstance(speed, dict)
        and speed.keys() == runs.keys()
        and all(
            isinstance(row, dict)
            and row.keys() == set(SPEED_KEYS)
            and all(type(value) in (int, float) for value in row.values())
            for row in speed.values()
        )
    )


def sampling_speed(run: SweepRun) -> float:
    """Tokens per second when sampling one text of `block_size` tokens."""
    loaded = checkpoint.load(run.last, device=checkpoint.pick_device("auto"))
    started = time.perf_counter()
    tokens = generate_tokens(
        loaded.model,
        [[loaded.tokenizer.first_token()]],
        max_new_tokens=loaded.model.block_size - 1,
        seeds=[1],
    )
    return len(list(tokens)) / (time.perf_counter() - started)
