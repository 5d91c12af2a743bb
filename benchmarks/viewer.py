"""Measures how fast TensorBoard's tab Attention opens and answers, in Chromium.

Shapes: L layers, H heads per layer, T tokens.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import runner
from benchmarks.browser import chromium, open_tab, painted, tensorboard
from benchmarks.runner import Figures, Request, Result
from headscope.stop import temporary_folder
from headscope.viewer.snapshot import snapshot_parts

OPEN, NEXT_STEP = "headscope: open the tab", "headscope: next step"

ACTIONS = {
    NEXT_STEP: """document.body.dispatchEvent(
        new KeyboardEvent("keydown", {key: "ArrowLeft", bubbles: true}))""",
    "headscope: open a head": "all('.grid button')[number * 7 % heads].click()",
    "headscope: point at a token": """all(".tokens [data-token]")[number * 31 % tokens]
        .dispatchEvent(new PointerEvent("pointerover", {bubbles: true}))""",
    "headscope: keep a token": "all('.tokens [data-token]')[number * 31 % tokens].click()",
    "headscope: without the first token": "all('.views input')[number % 2].click()",
    "headscope: compare with a step": """
        const choice = document.querySelector('select[aria-label="compare with"]');
        choice.value = number % 2 ? "step" : "";
        choice.dispatchEvent(new Event("change"))""",
    "headscope: another figure": """
        const choice = document.querySelector(".chooser select");
        choice.value = choice.options[number % choice.options.length].value;
        choice.dispatchEvent(new Event("change"))""",
}
"""The JavaScript of each action. `number` counts the rounds from 1, so that every round does
something new."""

NAMES = """const [heads, tokens, number] = arguments;
const all = (selector) => [...document.querySelectorAll(selector)];
"""


def measure(request: Request) -> Result:
    """Time each action on a run of `suite.steps` snapshots with random weights, for each shape."""
    plan = request.suite
    runner.check_shapes(plan.shapes, "layers, heads, tokens")
    groups = {}
    for shape in plan.shapes:
        with temporary_folder() as folder:
            size = write_run(folder / "run", shape, plan.steps)
            title = "{:,} layers x {:,} heads, {:,} tokens".format(*shape)
            title += f", {plan.steps} steps of {size / 1e6:.2f} MB"
            with tensorboard(folder) as address, chromium() as browser:
                groups[title] = time_actions(browser, address, shape, plan.rounds)
    return Result(
        groups,
        {"milliseconds": "milliseconds"},
        f"Milliseconds from the action until the page is painted: median of {plan.rounds} rounds. "
        "Open the tab: from the start of the tab's page. Ratio: to the next step.",
        "Response time of the tab Attention",
        "milliseconds (shorter is faster), x: ratio to the next step",
        {"milliseconds": "milliseconds"},
    )


def time_actions(browser: Any, address: str, shape: list[int], rounds: int) -> list[dict[str, Any]]:
    """One row for opening the tab, and one for each action."""
    layers, heads, tokens = shape
    counts = dict.fromkeys(ACTIONS, 0)

    def act(name: str) -> Figures:
        counts[name] += 1
        action = NAMES + ACTIONS[name]
        started, ended = painted(browser, action, layers * heads, tokens, counts[name])
        return {"milliseconds": ended - started}

    open_tab(browser, address)  # the first time, TensorBoard still reads the event file
    opened = [{"milliseconds": open_tab(browser, address)} for _ in range(rounds)]
    sides = {name: partial(act, name) for name in ACTIONS}
    measured = {OPEN: opened, **runner.alternate(sides, rounds)}
    return runner.summarize(measured, ratio_of="milliseconds", reference=NEXT_STEP)


def write_run(folder: Path, shape: list[int], steps: int) -> int:
    """Write an event file with `steps` snapshots of random weights. Returns the size of a snapshot
    in bytes."""
    from torch.utils.tensorboard import SummaryWriter

    from headscope.training.callbacks.tensorboard_log import add_scalars, add_snapshot

    layers, heads, tokens = shape
    random = np.random.default_rng(0)
    names = ["self", "previous", "first", "distance", "entropy", "induction"]
    size = 0
    with SummaryWriter(str(folder)) as writer:
        for step in range(steps):
            weights = np.tril(random.random((layers, heads, tokens, tokens), dtype=np.float32) ** 8)
            weights += np.eye(tokens, dtype=np.float32) * 1e-3
            weights /= weights.sum(axis=-1, keepdims=True)
            scores = random.random(layers * heads).tolist()
            parts = snapshot_parts(
                weights,
                step=10 * step,
                labels=[f"·word{number}" for number in range(tokens)],
                text_tokens=tokens,
                names=["previous-token" if score > 0.5 else "mixed" for score in scores],
                scores=scores,
                ratios=scores,
                figures=dict.fromkeys(names, scores),
                uniform=dict.fromkeys(names, 0.1),
                ends=dict.fromkeys(names, (0.0, 1.0)),
            )
            size = sum(map(len, parts))
            add_snapshot(writer, "attention", parts, 10 * step)
            add_scalars(writer, {"train/loss": 8 / (1 + step)}, 10 * step)
    return size
