"""The records of heads: measured, and kept in files. Those of a run are in checkpoints/heads.json,
which its training writes, and those of other models in the cache folder.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headscope.analysis.head_statistics import measure_heads, repeat_probe
from headscope.analysis.head_types import Thresholds
from headscope.analysis.own_metrics import HeadMetric
from headscope.analysis.record import HeadRecord, record_from
from headscope.analysis.tokens import classify_vocabulary
from headscope.data.tokenizer import Tokenizer
from headscope.data.windows import spread_windows
from headscope.files import json_text, read_json, write_atomically
from headscope.nn import GPT
from headscope.trained.checkpoint.file import checksum, without_ties

FILE = "heads.json"
VALIDATION, SPEECHES = "the validation split", "the speeches that headscope comes with"
"""The texts on which heads are measured."""
TOKENS, LONGEST = 1024, 256
"""The number of tokens on which heads are measured, and the length of the longest windows."""
MOST_TOKENS = 2**16
"""With more tokens, a record says nothing about how others are measured."""
REPEATED_TEXTS = 8
"""The number of random texts for the metrics of induction, each with a passage twice."""


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """A checksum of the weights of a model, by their names in a checkpoint file."""
    unique, _ = without_ties(weights)
    return digest_of_checksums({name: checksum(name, each) for name, each in unique.items()})


def digest_of_checksums(checksums: Mapping[str, int]) -> str:
    """The same, of the checksums of the tensors in a checkpoint file."""
    weights = {name: each for name, each in checksums.items() if name.startswith("model.")}
    return hashlib.sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()[:16]


def head_recorder(
    model: GPT,
    tokenizer: Tokenizer,
    text: np.ndarray,
    source: str = VALIDATION,
    *,
    thresholds: Thresholds | None = None,
    own: Mapping[str, HeadMetric] | None = None,
    windows: int | None = None,
) -> partial[HeadRecord]:
    """`measure_heads` for the model, at one step or several, always on the same texts: `windows`
    windows of a text (N,) of tokens, by default as many as have TOKENS tokens. `source` describes
    the text, and `own` are metrics of the user. Call it with the model, `step` and `digest`."""
    length = min(model.block_size, LONGEST)
    kinds = classify_vocabulary(tokenizer, text)
    return partial(
        measure_heads,
        windows=spread_windows(text, length=length, windows=windows or TOKENS // length),
        source=source,
        kinds=kinds,
        repeats=repeat_probe(model, kinds, REPEATED_TEXTS),
        own=own,
        thresholds=thresholds or Thresholds(),
    )


def cache_folder(name: str) -> Path:
    """Where the record of a model without a run is kept."""
    cache = os.environ.get("HEADSCOPE_CACHE", "~/.cache/headscope")
    return Path(cache).expanduser() / "heads" / name


def add_records(folder: Path, records: Iterable[HeadRecord]) -> None:
    """Adds records to those in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_entries(folder, entries_in(folder) | {each.digest: each.stored() for each in records})


def write_entries(folder: Path, entries: Mapping[str, Any]) -> None:
    """Writes stored records, by the digests of the weights that they describe."""
    write_atomically(folder / FILE, json_text(entries))


def entries_in(folder: Path) -> dict[str, Any]:
    """What `write_entries` has written. Empty if the file is missing or damaged."""
    content = read_json(folder / FILE)
    return content if isinstance(content, dict) else {}


def record_in(folder: Path, digest: str, model: GPT) -> HeadRecord | None:
    """The record of `model` in a folder, or None."""
    return record_from(entries_in(folder).get(digest), model, digest)


def settings_in(folder: Path, model: GPT) -> dict[str, Any]:
    """How the run with this folder measures its heads on its validation split, as options of
    `head_recorder`. A stranger's file cannot make this slow."""
    for digest, entry in entries_in(folder).items():
        record = record_from(entry, model, digest)
        if record and record.source == VALIDATION and record.measured_tokens <= MOST_TOKENS:
            return {"thresholds": record.thresholds, "windows": record.windows}
    return {}
