"""Reads the headers of snapshots, and combines those of one run and one text into a history.

A header may come from a stranger's event file. So every value is checked before it is used.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from headscope.viewer.snapshot import FORMAT

MAX_HEADER_BYTES = 8 * 2**20
MAX_HEADS, MAX_TOKENS = 4096, 4096
MAX_METRICS, MAX_TEXT = 100, 200
MAX_LABELS, MAX_LISTED = 2**20, 20


class HeaderError(ValueError):
    """The data is not the header of a snapshot. The message says why."""


def read_header(data: bytes) -> dict[str, Any]:
    """Decode the header of a snapshot. Raises HeaderError if it is not valid."""
    if len(data) > MAX_HEADER_BYTES:
        raise HeaderError(f"the header has {len(data):,} bytes; the limit is {MAX_HEADER_BYTES:,}")
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        raise HeaderError("the header is not JSON") from None
    if not isinstance(header, dict):
        raise HeaderError("the header is not a JSON object")
    if header.get("format") != FORMAT:
        raise HeaderError(
            f"the format is {str(header.get('format'))[:20]}, and this version reads {FORMAT}"
        )
    layers, heads = (_count(header, name, MAX_HEADS) for name in ("layers", "heads"))
    count = layers * heads
    if count > MAX_HEADS:
        raise HeaderError(f"{layers} x {heads} heads are more than {MAX_HEADS}")
    labels = _texts(header.get("labels"), "labels")
    if not 1 <= len(labels) <= MAX_TOKENS:
        raise HeaderError(f"there are {len(labels)} tokens; 1 to {MAX_TOKENS} are possible")
    metrics = _mapping(header, "metrics")
    return {
        "step": _count(header, "step", 2**53, smallest=0),
        "layers": layers,
        "heads": heads,
        "labels": labels,
        "text_tokens": _count(header, "text_tokens", 2**53),
        "measured_tokens": _count(header, "measured_tokens", 2**53),
        "names": _texts(header.get("names"), "names", count),
        "scores": _numbers(header.get("scores"), "scores", count),
        "ratios": _numbers(header.get("ratios"), "ratios", count),
        "metrics": {name: _numbers(each, name, count) for name, each in metrics.items()},
        "uniform": {
            name: _numbers([value], name, 1)[0]
            for name, value in _mapping(header, "uniform").items()
        },
        "ends": {name: _numbers(pair, name, 2) for name, pair in _mapping(header, "ends").items()},
        "predictions": _predictions(header.get("predictions"), len(labels)),
    }


def _predictions(entry: Any, tokens: int) -> dict[str, Any] | None:
    """The entry `predictions` of a header, None if there is none."""
    if entry is None:
        return None
    if not isinstance(entry, dict) or type(entry.get("pushes")) is not bool:
        raise HeaderError("`predictions` must be an object with the entry `pushes`")
    return {
        "labels": _count(entry, "labels", MAX_LABELS),
        "label_bytes": _count(entry, "label_bytes", MAX_HEADER_BYTES),
        "top": _count(entry, "top", MAX_LISTED),
        "pushes": entry["pushes"],
        "next": _numbers(entry.get("next"), "next", tokens - 1),
    }


SHAPE = ("layers", "heads", "labels")
"""The fields that are equal in two snapshots that can be compared."""

PER_STEP = ("step", "names", "scores", "ratios", "metrics", "predictions")
"""The fields of a header that may change from step to step. All others belong to the run."""


def history(
    headers: Sequence[Mapping[str, Any]],
    parts: Sequence[Sequence[str]],
    loss: Mapping[str, Any],
) -> dict[str, Any]:
    """Combine the headers of one run and one text, in the order of their steps, for the viewer.

    `parts` contains the keys with which the viewer asks for the parts of each step: the thumbnails,
    one key per layer, and those of the predictions. `loss` has a `name`, and the `steps` and
    `values` of a curve. A snapshot of another model or text than the last one is left out, and so
    is one without all its parts. If a step occurs twice, as in a resumed run, the last one counts.
    """
    last = headers[-1]
    shared = {name: value for name, value in last.items() if name not in PER_STEP}
    steps = {}
    for header, keys in zip(headers, parts, strict=True):
        same = all(header[name] == shared[name] for name in SHAPE)
        if same and len(keys) == parts_of(header):
            steps[header["step"]] = {name: header[name] for name in PER_STEP} | {"parts": [*keys]}
    return shared | {"steps": [steps[step] for step in sorted(steps)], "loss": dict(loss)}


def parts_of(header: Mapping[str, Any]) -> int:
    """The number of parts of a snapshot besides the header."""
    layers, predictions = header["layers"], header["predictions"]
    more = 0 if predictions is None else 2 + layers * predictions["pushes"]
    return 1 + layers + more


def _count(header: Mapping[str, Any], name: str, largest: int, smallest: int = 1) -> int:
    value = header.get(name)
    if type(value) is not int or not smallest <= value <= largest:
        raise HeaderError(f"`{name}` must be a whole number from {smallest} to {largest}")
    return value


def _mapping(header: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = header.get(name)
    if not isinstance(value, dict) or len(value) > MAX_METRICS or any(map(_too_long, value)):
        raise HeaderError(f"`{name}` must have at most {MAX_METRICS} entries with short names")
    return value


def _texts(values: Any, name: str, count: int | None = None) -> list[str]:
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise HeaderError(f"`{name}` must be a list{f' of {count} texts' if count else ''}")
    if not all(isinstance(value, str) and not _too_long(value) for value in values):
        raise HeaderError(f"`{name}` must contain texts of at most {MAX_TEXT} characters")
    return values


def _too_long(text: str) -> bool:
    return len(text) > MAX_TEXT


def _numbers(values: Any, name: str, count: int) -> list[float | None]:
    """The numbers of a list with `count` entries. None stands for a number that is not finite."""
    if not isinstance(values, list) or len(values) != count:
        raise HeaderError(f"`{name}` must be a list of {count} numbers")
    for value in values:
        number = type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
        if value is not None and not number:
            raise HeaderError(f"`{name}` must contain numbers or null")
    return values
