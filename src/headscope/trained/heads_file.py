"""checkpoints/heads.json: the metrics of the heads of a run's checkpoints, which are measured when
the run ends. So every program shows the same names of heads.

Shapes: L layers, H heads per layer, N tokens of the validation split.
"""

import json
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope.analysis.head_statistics import (
    HeadStatistics,
    measure_heads,
    names_of,
    window_count,
)
from headscope.analysis.head_types import Thresholds
from headscope.analysis.report.inputs import TOKENS
from headscope.analysis.tokens import classify_vocabulary
from headscope.checkpoint import read
from headscope.data.windows import spread_windows
from headscope.errors import UserError
from headscope.files import json_text, read_json, write_atomically
from headscope.trained.model import TrainedModel, load

FILE = "heads.json"
SECONDS = 10
"""After this time, no further checkpoint is measured."""
SOURCE = "the validation split"


def measure_checkpoints(
    folder: Path,
    validation: np.ndarray,
    device: torch.device,
    thresholds: Thresholds | None = None,
    source: str = SOURCE,
) -> dict[int, HeadStatistics]:
    """Measures the heads of best, last and the kept steps in the folder `checkpoints` of a run on
    tokens (N,) of `source`, and writes heads.json. What was measured before is kept. Returns the
    statistics by step."""
    names = ["best", "last", *sorted(file.stem for file in folder.glob("step_*.safetensors"))]
    files = [folder / f"{name}.safetensors" for name in names]
    known = entries_in(folder)
    entries: dict[str, Any] = {}
    found: dict[int, HeadStatistics] = {}
    kinds, began = None, time.monotonic()
    for file in files:
        if not file.is_file() or (entries and time.monotonic() - began > SECONDS):
            continue
        try:
            loaded, digest = load(file, device=device), digest_of(file)
        except UserError:  # a damaged file, or one that the user put there
            continue
        entry = entries.get(digest) or known.get(digest)
        if entry is None:
            length = loaded.model.block_size
            windows = spread_windows(
                validation, windows=window_count(length, TOKENS), length=length
            )
            kinds = kinds or classify_vocabulary(loaded.tokenizer, validation)
            entry = plain(measure_heads(loaded.model, windows, source=source, kinds=kinds))
        entries[digest] = entry
        if statistics := statistics_of(entry, loaded, thresholds):
            found[loaded.step] = statistics
    text = json.dumps(entries)
    if entries:
        write_atomically(
            folder / FILE, json_text({"crc": zlib.crc32(text.encode()), "heads": text})
        )
    return found


def stored_statistics(
    loaded: TrainedModel, thresholds: Thresholds | None = None
) -> HeadStatistics | None:
    """The statistics of the heads that heads.json has beside the file of `loaded`. None if there
    are none, or if they belong to other weights."""
    if not loaded.path.is_file():
        return None
    entry = entries_in(loaded.path.parent).get(digest_of(loaded.path))
    return None if entry is None else statistics_of(entry, loaded, thresholds)


def digest_of(file: Path) -> str:
    """A checksum of the weights in a checkpoint file."""
    checksums = read(file).data["checksums"]
    weights = {name: each for name, each in checksums.items() if name.startswith("model.")}
    return f"{zlib.crc32(json.dumps(weights, sort_keys=True).encode()):08x}"


def entries_in(folder: Path) -> Mapping[str, Any]:
    """The entries of heads.json by the digests of the files. None if the file is damaged."""
    content = read_json(folder / FILE)
    try:
        if zlib.crc32(content["heads"].encode()) != content["crc"]:
            return {}
        entries = json.loads(content["heads"])
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def plain(statistics: HeadStatistics) -> dict[str, Any]:
    metrics = {name: each.tolist() for name, each in statistics.metrics.items()}
    shared = {name: getattr(statistics, name) for name in SHARED}
    return json.loads(json_text({**shared, "metrics": metrics}))


SHARED = ("uniform", "windows", "tokens", "source", "unjudged")


def statistics_of(
    entry: Any, loaded: TrainedModel, thresholds: Thresholds | None = None
) -> HeadStatistics | None:
    """The statistics in an entry of heads.json. None if it does not fit the model."""
    model = loaded.model
    shape = (len(model.attentions), model.attentions[0].heads)
    try:
        shared = {name: entry[name] for name in SHARED}
        metrics = {str(name): tensor(each).view(shape) for name, each in entry["metrics"].items()}
        uniform = {str(name): float(each) for name, each in shared["uniform"].items()}
        windows, tokens = (int(shared[name]) for name in ("windows", "tokens"))
        unjudged = [str(name) for name in shared["unjudged"]]
        types = names_of(model, metrics, uniform, unjudged, thresholds)
    except (TypeError, KeyError, AttributeError, ValueError, RuntimeError):
        return None
    source = str(shared["source"])[:80]
    empty = torch.zeros(0, 0)
    return HeadStatistics(metrics, uniform, types, empty, windows, tokens, source, unjudged)


def tensor(rows: Iterable[Iterable[float | None]]) -> torch.Tensor:
    return torch.tensor([[torch.nan if x is None else float(x) for x in row] for row in rows])
