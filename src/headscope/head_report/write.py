"""The report of a checkpoint's heads: tables, pictures and a page to explore, as files in a folder.

Shapes: L layers, H heads of a layer, T tokens.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from headscope.analysis.diversity import jensen_shannon
from headscope.analysis.head_types import Thresholds
from headscope.analysis.page import attention_page
from headscope.analysis.study import Study, study_heads
from headscope.checkpoint import Checkpoint, Reading
from headscope.files import write_atomically
from headscope.head_report import drawing
from headscope.head_report.chosen import Head
from headscope.head_report.subject import Ablation, Subject, Track, Worth
from headscope.head_report.tables import (
    between_heads,
    csv_text,
    head_rows,
    history_rows,
    matrix_rows,
)
from headscope.json_file import json_text, read_json


def write_report(
    subject: Subject,
    folder: Path,
    *,
    thresholds: Thresholds,
    ablation: Ablation | None = None,
    pair: tuple[Head, Head] | None = None,
    other: Checkpoint | None = None,
    moments: Sequence[Checkpoint] = (),
    track: Track = iter,
) -> Study:
    """Write heads.csv, heads.json, similarity.csv, jensen_shannon.csv, pictures (PNG and SVG) and
    attention.html.

    Also the difference of a `pair` of heads, that to an `other` checkpoint and, over `moments` of
    the run, history.csv and its picture. The page, and the distances of heads, are of as much of
    the text as the page can hold. What an earlier report left there and this one does not write is
    removed.
    """
    loaded = subject.loaded
    folder.mkdir(parents=True, exist_ok=True)  # told now, if it cannot be made
    study = study_heads(loaded.model, subject.windows, thresholds=thresholds, track=track)
    worth = ablation.run(loaded, track) if ablation else None
    history = [
        (one.step, study_heads(one.model, subject.windows, thresholds=thresholds))
        for one in track(sorted(moments, key=lambda one: one.step))
    ]
    shown = beginning(subject.reading, subject.shown_tokens)
    distances = jensen_shannon(shown.weights.flatten(0, 1))
    rows = head_rows(study, worth.figures if worth else {})
    texts = {
        "heads.csv": csv_text(rows),
        "similarity.csv": csv_text(matrix_rows(study.similarity, study.names)),
        "jensen_shannon.csv": csv_text(matrix_rows(distances, study.names)),
        "attention.html": attention_page(
            weights=shown.weights,
            labels=shown.labels,
            figures=rows,
            title=f"{loaded.config['name']}, step {loaded.step:,}",
        ),
    }
    if history:
        texts["history.csv"] = csv_text(history_rows(history))
    before = files_of(folder)
    for name, text in texts.items():
        write_atomically(folder / name, text)
    drawn = [
        drawing.maps(subject.reading),
        drawing.figures(study),
        drawing.distance(distances, study.names),
        drawing.worth(worth) if worth else (),
        drawing.position(loaded),
        drawing.difference_of_heads(subject.reading, *pair) if pair else (),
        drawing.difference_of_checkpoints(subject.reading, loaded, other) if other else (),
        drawing.history(history) if history else (),
    ]
    files = ["heads.json", *texts]
    for name, figure in track(chain(*drawn)):
        for file in (f"{name}.png", f"{name}.svg"):
            figure.savefig(folder / file)
            files.append(file)
    about = summary(subject, study, worth) | {"heads": rows, "files": files}
    write_atomically(folder / "heads.json", json_text(about, indent=2))
    for name in set(before) - set(files):
        if (folder / name).is_file():
            (folder / name).unlink()
    return study


def summary(subject: Subject, study: Study, worth: Worth | None) -> dict[str, Any]:
    """What the report is of, and what holds for all heads together."""
    about = {
        "checkpoint": str(subject.loaded.path),
        "step": subject.loaded.step,
        "windows": len(subject.windows),
        "tokens": subject.windows.size(1),
        "text": subject.loaded.tokenizer.decode(subject.reading.tokens),
        **between_heads(study),
    }
    if worth:
        about["ablation"] = {
            "replace_by": worth.replace_by,
            "windows": worth.windows,
            "loss": worth.loss,
        }
    return about


def files_of(folder: Path) -> list[str]:
    """What an earlier report wrote into the folder, by its own account."""
    before = read_json(folder / "heads.json")
    names = before.get("files", []) if isinstance(before, Mapping) else []
    # Names alone, so that no other folder's file is ever meant.
    return [name for name in names if isinstance(name, str) and Path(name).name == name]


def beginning(reading: Reading, length: int) -> Reading:
    """The first tokens of a text; what they see does not depend on those after them."""
    return Reading(
        tokens=reading.tokens[:length],
        labels=reading.labels[:length],
        weights=reading.weights[..., :length, :length],
    )
