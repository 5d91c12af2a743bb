"""How the tests run the scripts; see the fixture `script`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parents[1]

SMALL = [
    "tokenizer.vocab_size=320",
    "model.block_size=32",
    "model.embed_dim=32",
    "model.layers=2",
    "callbacks.samples.max_new_tokens=20",
    "callbacks.attention.tokens=8",
    "callbacks.attention.images=0",
    "callbacks.heads.images=0",
]
"""Makes a run that takes a second. Drawing would take most of it."""

DRAWN = ["callbacks.attention.images=10", "callbacks.heads.images=10"]
"""After SMALL: the default number of pictures."""


@dataclass
class Said:
    """What a script printed, and how it ended."""

    code: int
    out: str
    err: str


Script = Callable[..., Said]


def events(run: str) -> EventAccumulator:
    """What a run logged to TensorBoard, all of it."""
    return EventAccumulator(
        f"{run}/tensorboard", size_guidance={"images": 0, "tensors": 0}
    ).Reload()
