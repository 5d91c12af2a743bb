"""The report of a checkpoint's heads: tables, pictures and a page to explore, as files in a folder.

Shapes: L layers, H heads of a layer, T tokens.
"""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from headscope.analysis.diversity import jensen_shannon
from headscope.analysis.head_types import Thresholds
from headscope.analysis.page import attention_page
from headscope.analysis.study import Study, study_heads
from headscope.checkpoint import Checkpoint, Reading
from headscope.files import write_atomically
from headscope.head_report import drawing
from headscope.head_report.subject import Ablation, Head, Subject, Track, shown_tokens
from headscope.head_report.tables import (
    between_heads,
    head_rows,
    history_rows,
    matrix_rows,
    write_table,
)


def write_report(
    subject: Subject,
    folder: Path,
    *,
    thresholds: Thresholds,
    ablation: Ablation | None = None,
    pair: Sequence[Head] = (),
    other: Checkpoint | None = None,
    moments: Sequence[Checkpoint] = (),
    track: Track = iter,
) -> Study:
    """Write heads.csv, heads.json, similarity.csv, jensen_shannon.csv, pictures (PNG and SVG) and
    attention.html.

    Also the difference of a `pair` of heads, that to an `other` checkpoint and, over `moments` of
    the run, history.csv and its picture. The page, and the distances of heads, are of as much of
    the text as the page can hold.
    """
    loaded = subject.loaded
    study = study_heads(loaded.model, subject.windows, thresholds=thresholds)
    worth = ablation.run(loaded, track) if ablation else {}
    history = [
        (one.step, study_heads(one.model, subject.windows, thresholds=thresholds))
        for one in track(sorted(moments, key=lambda one: one.step))
    ]
    shown = beginning(subject.reading, shown_tokens(subject))
    distance = jensen_shannon(shown.weights.flatten(0, 1))
    rows = head_rows(study, worth)
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "heads.csv", rows)
    heads = {
        "checkpoint": str(loaded.path),
        "step": loaded.step,
        "windows": len(subject.windows),
        "tokens": subject.windows.size(1),
        **between_heads(study),
        "heads": rows,
    }
    write_atomically(folder / "heads.json", json.dumps(heads, indent=2))
    write_table(folder / "similarity.csv", matrix_rows(study.similarity, study.names))
    write_table(folder / "jensen_shannon.csv", matrix_rows(distance, study.names))
    if history:
        write_table(folder / "history.csv", history_rows(history))
    page = attention_page(
        weights=shown.weights,
        labels=shown.labels,
        figures=rows,
        title=f"{loaded.config['name']}, step {loaded.step:,}",
    )
    write_atomically(folder / "attention.html", page)
    drawn = [
        drawing.maps(subject.reading),
        drawing.figures(study, distance, worth),
        drawing.position(loaded),
        drawing.pair(subject.reading, *pair) if pair else (),
        drawing.other(subject.reading, loaded, other) if other else (),
        drawing.history(history) if history else (),
    ]
    for name, figure in track(list(chain(*drawn))):
        for kind in ("png", "svg"):
            figure.savefig(folder / f"{name}.{kind}")
    return study


def beginning(reading: Reading, length: int) -> Reading:
    """The first tokens of a text; what they see does not depend on those after them."""
    return Reading(
        tokens=reading.tokens[:length],
        labels=reading.labels[:length],
        weights=reading.weights[..., :length, :length],
    )
