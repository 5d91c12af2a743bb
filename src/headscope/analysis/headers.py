"""Reads the headers of snapshots, and combines those of one run and one text into a history.

A header may come from a stranger's event file. So every value is checked before it is used. This
module imports neither torch nor numpy, which would slow down the start of TensorBoard.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

FORMAT = 7
PLUGIN = "headscope"
"""The name of the TensorBoard plugin, which also marks its data in event files."""
TAB = f"http://localhost:6006/#{PLUGIN}"
"""The address of the tab Attention, unless TensorBoard is started with another port."""
SNAPSHOTS = "attention"
"""The TensorBoard tag of the snapshots."""
MAX_STEPS = 1000
"""Maximum number of snapshots per run and text. Without a limit, a small hostile event file could
make TensorBoard allocate much memory."""
MAX_HEADER_BYTES = 8 * 2**20
MAX_HEADS, MAX_TOKENS = 4096, 4096
MAX_METRICS, MAX_TEXT = 100, 200
MAX_PARTS, MAX_ARRAYS = 512, 8
MAX_PART_BYTES = 256 * 2**20
DTYPES = {"u1": 1, "u2": 2, "u4": 4, "f2": 2, "f4": 4}
"""The dtypes of arrays, and the bytes of an element."""


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
    if (form := header.get("format")) != FORMAT:
        raise HeaderError(f"the format is {str(form)[:20]}, and this version reads {FORMAT}")
    layers, heads = (_count(header, name, MAX_HEADS) for name in ("layers", "heads"))
    count = layers * heads
    if count > MAX_HEADS:
        raise HeaderError(f"{layers} x {heads} heads are more than {MAX_HEADS}")
    labels = _texts(header.get("labels"), "labels")
    if not 1 <= len(labels) <= MAX_TOKENS:
        raise HeaderError(f"there are {len(labels)} tokens; 1 to {MAX_TOKENS} are possible")
    descriptions = _mapping(header, "descriptions")
    _texts([*descriptions.values()], "descriptions")
    return {
        "step": _count(header, "step", 2**53, smallest=0),
        "layers": layers,
        "heads": heads,
        "labels": labels,
        "text_tokens": _count(header, "text_tokens", 2**53),
        "measured_tokens": _count(header, "measured_tokens", 2**53, smallest=0),
        "measured_on": _texts([header.get("measured_on")], "measured_on")[0],
        "names": _texts(header.get("names"), "names", count),
        "uncertain": _numbers(header.get("uncertain"), "uncertain", count),
        "scores": _numbers(header.get("scores"), "scores", count),
        "ratios": _numbers(header.get("ratios"), "ratios", count),
        "metrics": {
            name: _numbers(values, name, count)
            for name, values in _mapping(header, "metrics").items()
        },
        "uniform": {
            name: _numbers(values, name, count)
            for name, values in _mapping(header, "uniform").items()
        },
        "descriptions": descriptions,
        "ends": {name: _numbers(pair, name, 2) for name, pair in _mapping(header, "ends").items()},
        "losses": _numbers(header.get("losses"), "losses", len(labels) - 1),
        "next": _numbers(header.get("next"), "next"),
        "held": _numbers(header.get("held"), "held", layers * heads),
        "imported": header.get("imported") is True,
        "switched": _texts(header.get("switched"), "switched"),
        "layout": _layout(header.get("parts")),
    }


def _layout(kinds: Any) -> list[dict[str, Any]]:
    """The entry `parts` of a header."""
    if not isinstance(kinds, list) or len(kinds) > MAX_ARRAYS:
        raise HeaderError("`parts` must be a short list")
    for kind in kinds:
        if not isinstance(kind, dict) or kind.keys() != {"name", "count", "arrays"}:
            raise HeaderError("`parts` must have objects with name, count and arrays")
        _count(kind, "count", MAX_PARTS)
        size, arrays = 0, kind["arrays"]
        if not isinstance(arrays, list) or not 1 <= len(arrays) <= MAX_ARRAYS:
            raise HeaderError(f"`arrays` must be a list of 1 to {MAX_ARRAYS} arrays")
        for array in arrays:
            if not isinstance(array, list) or len(array) != 3 or not isinstance(array[2], list):
                raise HeaderError("an array must have a name, a dtype and a shape")
            name, dtype, shape = array
            _texts([kind["name"], name], "parts")
            if not isinstance(dtype, str) or dtype not in DTYPES or len(shape) > MAX_ARRAYS:
                raise HeaderError("an array has an unknown dtype, or too many axes")
            if not all(type(side) is int and 0 <= side <= MAX_PART_BYTES for side in shape):
                raise HeaderError("the shape of an array must have whole numbers")
            size += math.prod(shape) * DTYPES[dtype]
        if size > MAX_PART_BYTES:
            raise HeaderError(f"a part has {size:,} bytes; the limit is {MAX_PART_BYTES:,}")
    return kinds


SHAPE = ("layers", "heads", "labels")
"""The fields that are equal in two snapshots that can be compared."""

OF_HEADS = ("names", "uncertain", "scores", "ratios", "metrics", "held")
MEASURED = ("measured_tokens", "measured_on", "uniform")
PER_STEP = ("step", *OF_HEADS, *MEASURED, "losses", "next", "layout")
"""The fields of a header that may change from step to step. All others belong to the run."""


def history(
    headers: Sequence[Mapping[str, Any]],
    parts: Sequence[Sequence[str | None]],
    loss: Mapping[str, Any],
) -> dict[str, Any]:
    """Combine the headers of one run and one text, in the order of their steps, for the viewer.

    `parts` contains the keys with which the viewer asks for the parts of each step. `loss` has a
    `name`, and the `steps` and `values` of a curve. A snapshot of another model or text than the
    last one is left out, and so is one without all its parts. If a step occurs twice, as in a
    resumed run, the last one counts.
    """
    last = headers[-1]
    shared = {name: value for name, value in last.items() if name not in PER_STEP}
    ends = shared["ends"].items()  # a metric has limits if it is inside of them at all steps
    shared["ends"] = {name: pair for name, pair in ends if all(name in h["ends"] for h in headers)}
    steps = {}
    for header, keys in zip(headers, parts, strict=True):
        same = all(header[name] == shared[name] for name in SHAPE)
        if same and len(keys) == sum(kind["count"] for kind in header["layout"]):
            of_step = {name: header[name] for name in PER_STEP}
            steps[header["step"]] = of_step | {"parts": [*keys]}
    return shared | {"steps": [steps[step] for step in sorted(steps)], "loss": dict(loss)}


def _count(header: Mapping[str, Any], name: str, largest: int, smallest: int = 1) -> int:
    value = header.get(name)
    if type(value) is not int or not smallest <= value <= largest:
        raise HeaderError(f"`{name}` must be a whole number from {smallest} to {largest}")
    return value


def _mapping(header: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = header.get(name)
    if not isinstance(value, dict) or len(value) > MAX_METRICS:
        raise HeaderError(f"`{name}` must have at most {MAX_METRICS} entries with short names")
    _texts([*value], name)
    return value


def _texts(values: Any, name: str, count: int | None = None) -> list[str]:
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise HeaderError(f"`{name}` must be a list{f' of {count} texts' if count else ''}")
    if not all(isinstance(value, str) and len(value) <= MAX_TEXT for value in values):
        raise HeaderError(f"`{name}` must contain texts of at most {MAX_TEXT} characters")
    return values


def _numbers(values: Any, name: str, count: int | None = None) -> list[float | None]:
    """The numbers of a list with `count` entries. None stands for a number that is not finite."""
    if not isinstance(values, list) or count not in (None, len(values)):
        exactly = "" if count is None else f"{count} "
        raise HeaderError(f"`{name}` must be a list of {exactly}numbers")
    for value in values:
        number = type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
        if value is not None and not number:
            raise HeaderError(f"`{name}` must contain numbers or null")
    return values
