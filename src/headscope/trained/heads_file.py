"""checkpoints/heads.json: the metrics of the heads in each checkpoint of a run, measured when the
run ends. Every program reads them, so all show the same names of heads.

Shapes: L layers, H heads per layer.
"""

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from headscope.analysis.head_statistics import HeadStatistics, names_of
from headscope.analysis.head_types import Thresholds
from headscope.errors import UserError
from headscope.files import json_text, read_json, write_atomically
from headscope.nn import GPT
from headscope.show.viewer.history import MAX_TEXT

FILE = "heads.json"
KEPT = ("uniform", "windows", "tokens", "source", "unjudged", "descriptions")
"""The fields of `HeadStatistics` that the file keeps as they are."""


def write_entries(folder: Path, entries: Mapping[str, Any]) -> None:
    """Writes the entries, by the digests of the weights that they describe, with a checksum."""
    text = json.dumps(entries)
    write_atomically(folder / FILE, json_text({"crc": zlib.crc32(text.encode()), "heads": text}))


def entries_in(folder: Path) -> dict[str, Any]:
    """What `write_entries` has written. Empty if the file is missing or damaged."""
    content = read_json(folder / FILE)
    try:
        intact = zlib.crc32(content["heads"].encode()) == content["crc"]
        entries = json.loads(content["heads"]) if intact else {}
        json.dumps(entries, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def thresholds_in(entries: Mapping[str, Any]) -> Thresholds:
    """The thresholds of the run, or the default ones if its heads were not measured."""
    for entry in entries.values():
        with suppress(TypeError, KeyError, UserError):
            return Thresholds(**entry["thresholds"])
    return Thresholds()


def entry_of(statistics: HeadStatistics) -> dict[str, Any]:
    metrics = {name: values.tolist() for name, values in statistics.metrics.items()}
    return {**{name: getattr(statistics, name) for name in KEPT}, "metrics": metrics}


def statistics_of(entry: Any, model: GPT, thresholds: Thresholds | None) -> HeadStatistics | None:
    """The statistics in an entry, with the names that `thresholds` give, by default the thresholds
    of the run. None if it is not an entry for a model of this size."""
    shape = (len(model.attentions), model.attentions[0].heads)
    try:
        thresholds = thresholds or Thresholds(**entry["thresholds"])
        metrics = {
            str(name): torch.tensor(values, dtype=torch.float32).view(shape)
            for name, values in entry["metrics"].items()
            if len(name) <= MAX_TEXT and name not in ("layer", "head", "type", "step")
        }
        uniform = {str(name): float(value) for name, value in entry["uniform"].items()}
        numbers = [torch.tensor([*uniform.values()], dtype=torch.float32), *metrics.values()]
        if any(each.isinf().any() for each in numbers):  # also 1e308, which is too large
            return None
        described = entry.get("descriptions", {}).items()
        unjudged = [str(name) for name in entry["unjudged"]]
        return HeadStatistics(
            metrics=metrics,
            uniform=uniform,
            types=names_of(model, metrics, uniform, unjudged, thresholds),
            similarity=torch.zeros(0, 0),
            windows=int(entry["windows"]),
            tokens=int(entry["tokens"]),
            source=str(entry["source"])[:80],
            unjudged=unjudged,
            descriptions={str(name): str(text)[:MAX_TEXT] for name, text in described},
        )
    except (TypeError, KeyError, AttributeError, ValueError, RuntimeError, OverflowError):
        return None
