"""The report of a checkpoint's heads: tables, pictures and a page to explore, as files in a folder.

Shapes: L layers, H heads of a layer, T tokens.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from headscope.analysis.diversity import jensen_shannon
from headscope.analysis.head_types import Thresholds
from headscope.analysis.page import attention_page
from headscope.analysis.repeats import REPEAT_FIGURES
from headscope.analysis.report import drawing
from headscope.analysis.report.chosen import Head
from headscope.analysis.report.subject import Ablation, AblationResult, Subject, Track
from headscope.analysis.report.tables import (
    between_heads,
    column_rows,
    csv_text,
    head_rows,
    history_rows,
    largest_weight_rows,
    matrix_rows,
    with_uniform,
)
from headscope.analysis.study import HeadStatistics, study_heads
from headscope.checkpoint import Checkpoint
from headscope.errors import UserError
from headscope.files import json_text, read_json, replacing, write_atomically

REPORT_FILE = re.compile(
    r"(heads|columns|similarity|jensen_shannon|largest_weights|history)\.(csv|json)|attention\.html"
    r"|(attention|single_and_multi|difference|figures|similarity|jensen_shannon|ablation|position"
    r"|history)(_\w+)?\.(png|svg)"
)
"""Names of the files that a report can have."""


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
) -> tuple[HeadStatistics, AblationResult | None]:
    """Write heads.csv, heads.json, columns.csv, similarity.csv, jensen_shannon.csv,
    largest_weights.csv, pictures (PNG and SVG) and attention.html. Returns what was found about the
    heads and, with an `ablation`, what the loss is without each.

    Also the difference of a `pair` of heads, that to an `other` checkpoint and, over `moments` of
    the run, history.csv and its picture. The page, and the distances of heads, are of as much of
    the text as the page can hold. What an earlier report left there and this one does not write is
    removed.
    """
    loaded = subject.loaded
    folder.mkdir(parents=True, exist_ok=True)  # told now, if it cannot be made
    before = files_of(folder)
    study_of = partial(
        study_heads, windows=subject.windows, kinds=subject.kinds, thresholds=thresholds
    )
    study = study_of(loaded.model, track=track)
    worth = ablation.run(loaded, track) if ablation else None
    history = [
        (one.step, study_of(one.model)) for one in track(sorted(moments, key=lambda one: one.step))
    ]
    shown = subject.reading.first(subject.shown_tokens)
    distances = jensen_shannon(shown.weights.flatten(0, 1))
    rows = head_rows(study, worth.figures if worth else {})
    columns = column_rows(study, measured_on(subject, study, worth))
    texts = {
        "heads.csv": csv_text(with_uniform(rows, study)),
        "columns.csv": csv_text(columns),
        "similarity.csv": csv_text(matrix_rows(study.similarity, study.names)),
        "jensen_shannon.csv": csv_text(matrix_rows(distances, study.names)),
        "largest_weights.csv": csv_text(largest_weight_rows(subject.reading)),
        "attention.html": attention_page(
            weights=shown.weights,
            labels=shown.labels,
            figures=rows,
            title=f"{loaded.config.name}, step {loaded.step:,}",
        ),
    }
    if history:
        texts["history.csv"] = csv_text(history_rows(history))
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
    about = summary(subject, study, worth) | {"figures": columns, "heads": rows}
    note_files = partial(_note_files, folder / "heads.json", about)
    note_files([*files, *before])
    for name, text in texts.items():
        write_atomically(folder / name, text)
    for name, figure in track(chain(*drawn)):
        files += [f"{name}.png", f"{name}.svg"]
        note_files([*files, *before])
        for file in files[-2:]:
            with replacing(folder / file) as stream:
                figure.savefig(stream, format=file.rpartition(".")[2])
    note_files(files)
    for name in set(before) - set(files):
        (folder / name).unlink(missing_ok=True)
    return study, worth


def _note_files(file: Path, about: dict[str, Any], files: Sequence[str]) -> None:
    """Write heads.json with the names of the report's files: before each is written, so that after
    a kill the next report recognizes them."""
    names = list(dict.fromkeys(files))
    write_atomically(file, json_text(about | {"files": names}, indent=2))


def measured_on(
    subject: Subject, study: HeadStatistics, worth: AblationResult | None
) -> dict[str, str]:
    """The text that each figure in the table of heads was measured on."""
    texts = dict.fromkeys([*study.figures, "uniqueness"], subject.source)
    texts |= {name: "repeated random texts" for name in REPEAT_FIGURES if name in study.figures}
    return texts | dict.fromkeys(worth.figures if worth else [], "validation windows")


def summary(
    subject: Subject, study: HeadStatistics, worth: AblationResult | None
) -> dict[str, Any]:
    """What the report is of, and what holds for all heads together."""
    about = {
        "checkpoint": str(subject.loaded.path),
        "step": subject.loaded.step,
        "windows": len(subject.windows),
        "tokens": subject.windows.size(1),
        "text": subject.loaded.tokenizer.decode(subject.reading.tokens),
        "measured_on": {
            "similarity.csv": subject.source,
            "jensen_shannon.csv": "the text of attention.html",
            "attention.html": "the beginning of `text`",
        },
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
    """What an earlier report wrote into the folder, by its own account.

    Raises UserError when a file there has the name of one of a report and is not of one: it would
    be replaced.
    """
    before = read_json(folder / "heads.json")
    listed = before.get("files", []) if isinstance(before, Mapping) else []
    # Names of a report alone, so that a foreign heads.json cannot have other files removed.
    names = [name for name in listed if isinstance(name, str) and REPORT_FILE.fullmatch(name)]
    for file in folder.iterdir():
        if REPORT_FILE.fullmatch(file.name) and file.name not in names:
            raise UserError(
                f"output_dir={folder}: {file.name} is there and not of an earlier report: name "
                "another folder, or move it away"
            )
    return names
