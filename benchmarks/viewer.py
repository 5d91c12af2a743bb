"""Measures how fast TensorBoard's tab Attention opens and answers, in Chromium.

Shapes: L layers, H heads per layer, T tokens.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import runner
from benchmarks.browser import chromium, open_tab, painted, tensorboard
from benchmarks.runner import Figures, Request, Result
from headscope.show.tensorboard.snapshot_events import event_file
from headscope.show.viewer.snapshot import snapshot

OPEN, NEXT_STEP = "headscope: open the tab", "headscope: next step"

ACTIONS = {
    NEXT_STEP: """document.body.dispatchEvent(
        new KeyboardEvent("keydown", {key: "ArrowLeft", bubbles: true}))""",
    "headscope: open a head": "all('.grid button')[number * 7 % heads].click()",
    "headscope: point at a token": """all(".tokens [data-token]")[number * 31 % tokens]
        .dispatchEvent(new PointerEvent("pointerover", {bubbles: true}))""",
    "headscope: compare with a step": """
        const choice = document.querySelector('select[aria-label="compare with"]');
        choice.value = number % 2 ? choice.querySelector('[value^="step:"]').value : "";
        choice.dispatchEvent(new Event("change"))""",
}
"""The JavaScript of each action. `number` counts the rounds from 1, so that every round does
something new."""

NAMES = """const [number] = arguments;
const all = (selector) => [...document.querySelectorAll(selector)];
const heads = all(".grid button").length, tokens = all(".tokens [data-token]").length;
"""


def measure(request: Request) -> Result:
    """Time each action on a run of `suite.steps` snapshots with random weights, for each shape."""
    plan = request.suite
    groups = {}
    for shape in plan.shapes:
        with TemporaryDirectory() as name:
            write_run(Path(name, "run"), shape, plan.steps)
            title = "{:,} layers x {:,} heads, {:,} tokens".format(*shape)
            with tensorboard(Path(name)) as address, chromium() as browser:
                groups[title] = time_actions(browser, address, plan.rounds)
    return Result(
        "Response time of the tab Attention",
        groups,
        f"Milliseconds from the action until the page is painted: median of {plan.rounds} rounds. "
        "Open the tab: from the start of the tab's page. Ratio: to the next step.",
        "milliseconds (shorter is faster), x: ratio to the next step",
        "milliseconds",
    )


def time_actions(browser: Any, address: str, rounds: int) -> list[dict[str, Any]]:
    """One row for opening the tab, and one for each action."""
    counts = dict.fromkeys(ACTIONS, 0)

    def act(name: str) -> Figures:
        counts[name] += 1
        started, ended = painted(browser, NAMES + ACTIONS[name], counts[name])
        return {"milliseconds": ended - started}

    open_tab(browser, address)  # the first time, TensorBoard still reads the event file
    sides: dict[str, Callable[[], Figures]] = {name: partial(act, name) for name in ACTIONS}
    sides = {OPEN: lambda: {"milliseconds": open_tab(browser, address)}, **sides}
    return runner.compared(sides, rounds, ratio_of="milliseconds", reference=NEXT_STEP)


def write_run(folder: Path, shape: list[int], steps: int) -> None:
    """Write an event file with `steps` snapshots of random weights."""
    layers, heads, tokens = shape
    random, snapshots = np.random.default_rng(0), {}
    metrics = ["self", "previous", "first", "distance", "entropy", "induction"]
    for step in range(steps):
        weights = random.random((layers, heads, tokens, tokens), dtype=np.float32) ** 8
        weights = np.tril(weights) + 1e-3 * np.eye(tokens, dtype=np.float32)  # (L, H, T, T)
        scores = random.random(layers * heads).round(5).tolist()
        header = {
            "step": step,
            "labels": [f"·word{number}" for number in range(tokens)],
            "text_tokens": tokens,
            "losses": random.random(tokens - 1).round(5).tolist(),
            "switched": [],
            "measured_tokens": tokens,
            "measured_on": "random weights",
            "uncertain": [0] * len(scores),
            "names": ["previous-token" if score > 0.5 else "mixed" for score in scores],
            "scores": scores,
            "ratios": scores,
            "metrics": dict.fromkeys(metrics, scores),
            "uniform": dict.fromkeys(metrics, 0.1),
            "ends": dict.fromkeys(metrics, (0.0, 1.0)),
        }
        snapshots[step] = snapshot(header, weights / weights.sum(-1, keepdims=True)).blobs()
    folder.mkdir()
    (folder / "events.out.tfevents.0").write_bytes(event_file(snapshots))
