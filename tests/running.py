"""How the tests run the scripts; see the fixture `script`."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headscope.analysis.headers import read_header
from headscope.analysis.record import HeadRecord
from headscope.show.explore.models import OpenModel

ROOT = Path(__file__).parents[1]

SMALL = [
    *("tokenizer.vocab_size=320", "model.block_size=32", "model.embed_dim=32", "model.layers=2"),
    *("callbacks.samples.max_new_tokens=20", "callbacks.attention.steps=4"),
    "callbacks.attention.images=0",
]
"""Makes a run that takes a second."""


@dataclass
class Said:
    """What a script printed, and how it ended."""

    code: int
    out: str
    err: str

    def succeeded(self) -> "Said":
        """This, of a script that must have ended well."""
        assert self.code == 0, self.err
        return self

    def refused(self, *words: str) -> "Said":
        """This, of a script that must have ended with an error: a line with all these words."""
        assert (self.code, self.err.splitlines()[-1][:7]) == (1, "Error: "), self.err
        assert "Traceback" not in self.err
        assert all(word in self.err.splitlines()[-1] for word in words), self.err
        return self


Script = Callable[..., Said]


def snapshot_headers(run: str) -> list[dict[str, Any]]:
    """The headers of the snapshots that a run logged for the tab Attention."""
    logged = events(run).Tensors("attention")
    return [read_header(event.tensor_proto.string_val[0]) for event in logged]


def events(run: str | Path) -> EventAccumulator:
    """What a run logged to TensorBoard, all of it."""
    return EventAccumulator(
        f"{run}/tensorboard", size_guidance={"images": 0, "tensors": 0}
    ).Reload()


def scalars(run: str | Path, tag: str) -> dict[int, float]:
    """The values of a tag that a run logged, by their steps."""
    return {event.step: event.value for event in events(run).Scalars(tag)}


def summary(run: str | Path) -> dict[str, Any]:
    """The summary of a finished run."""
    return json.loads(Path(run, "summary.json").read_text())


def until(seen: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """The first true value of `seen()`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := seen():
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come within {seconds} s")


def measured(opened: OpenModel) -> HeadRecord:
    """The record of a model that explore has opened, when its heads are measured."""
    while opened.measuring:
        assert "problem" not in opened.measuring
        time.sleep(0.02)
    return opened.record
