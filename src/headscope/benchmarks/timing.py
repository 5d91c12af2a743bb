"""How things are timed: in turn, as medians, on machines that others use too."""

import statistics
from collections.abc import Callable, Iterable
from typing import Any

import torch


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, least and most."""
    values = list(values)
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


def ratios(ours: Iterable[float], theirs: Iterable[float]) -> dict[str, float]:
    """Of two sides, round by round."""
    return spread(a / b for a, b in zip(ours, theirs, strict=True))


def in_turn(
    sides: dict[str, Callable[[], float]],
    *,
    rounds: int,
    tell: Callable[[str], None],
    unit: str,
) -> dict[str, list[float]]:
    """What each side measures, once a round, so that a machine that slows down slows all alike. The
    order is turned around every second round; `tell` gets a line of each."""
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else list(sides)[::-1]:
            measured[name].append(sides[name]())
        told = ", ".join(f"{name} {values[-1]:,.2f} {unit}" for name, values in measured.items())
        tell(f"round {number + 1} of {rounds}: {told}")
    return measured


def machine(device: torch.device) -> dict[str, Any]:
    """Where something was measured."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def place(figures: dict[str, Any]) -> str:
    """The same in words, for a title."""
    if figures["device"] != "cpu":
        return str(figures["device"])
    threads = figures["threads"]
    return f"CPU with {threads} thread{'s' if threads > 1 else ''}"
