"""Measures how fast TensorBoard's tab Attention opens and answers, in Chromium."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks import runner
from benchmarks.browser import chromium, open_tab, painted, tensorboard
from benchmarks.runner import Figures, Request, Result
from headscope.analysis.reading import Reading
from headscope.analysis.snapshot import Snapshot
from headscope.config.parse import Positive
from headscope.data.tokenizer import byte
from headscope.nn import GPT
from headscope.training.snapshot_events import event_file

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


def measure(
    request: Request, rounds: Positive, steps: Positive, shapes: list[runner.Shape]
) -> Result:
    """Time each action on a run of `steps` snapshots of a random text, for each shape."""
    groups = {}
    for shape in shapes:
        with TemporaryDirectory() as name:
            write_run(Path(name, "run"), *shape, steps)
            title = "{:,} layers x {:,} heads, {:,} tokens".format(*shape)
            with tensorboard(Path(name)) as address, chromium() as browser:
                groups[title] = time_actions(browser, address, rounds)
    return Result(
        "Response time of the tab Attention",
        groups,
        f"Milliseconds from the action until the page is painted: median of {rounds} rounds. "
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


@torch.no_grad()
def write_run(folder: Path, layers: int, heads: int, length: int, steps: int) -> None:
    """Write an event file with `steps` snapshots of a random text in a model with random weights,
    which differ only in their step. Queries are scaled, so that attention is not uniform."""
    torch.manual_seed(1)
    text = byte([])
    sizes: Any = {"embed_dim": 8 * heads, "layers": layers, "heads": heads}
    model = GPT(vocab_size=text.vocab_size, block_size=length, **sizes).eval()
    for layer in model.attentions:
        layer.projections()[0].mul_(20)
    tokens = torch.randint(text.vocab_size, (length,))
    reading = Reading(model, tokens, text)
    found = reading.snapshot(reading.record())
    snapshots = {
        step: Snapshot({**found.header, "step": step}, found.parts).blobs() for step in range(steps)
    }
    folder.mkdir()
    (folder / "events.out.tfevents.0").write_bytes(event_file(snapshots))
