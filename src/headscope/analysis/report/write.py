"""Writes the report on the heads of a checkpoint: a folder with tables, pictures and an HTML page.

Shapes: L layers, H heads per layer, T tokens.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.analysis.circuits import WEIGHT_METRICS
from headscope.analysis.diversity import jensen_shannon
from headscope.analysis.head_outputs import Head
from headscope.analysis.head_statistics import HeadStatistics, measure_heads, visible_in
from headscope.analysis.head_types import Thresholds
from headscope.analysis.in_context import in_context_score
from headscope.analysis.patching import PatchingResult, PatchTexts
from headscope.analysis.repeats import REPEAT_METRICS
from headscope.analysis.report import drawing
from headscope.analysis.report.inputs import Ablation, AblationResult, ReportInput, Track
from headscope.analysis.report.page import page_of, shown_tokens
from headscope.analysis.report.tables import (
    between_heads,
    column_rows,
    composition_rows,
    csv_text,
    head_rows,
    history_rows,
    largest_weight_rows,
    lens_rows,
    matrix_rows,
    patching_rows,
    push_rows,
    with_uniform,
)
from headscope.errors import UserError
from headscope.files import json_text, read_json, replacing, write_atomically

if TYPE_CHECKING:
    from headscope.trained import TrainedModel

EVENTS = "events.out.tfevents.{seconds}.headscope"
"""The name of the event file. TensorBoard sorts event files by the seconds in their names."""

REPORT_FILE = re.compile(
    r"(heads|columns|similarity|jensen_shannon|largest_weights|lens|pushes|composition|history"
    r"|patching)\.(csv|json)"
    r"|attention\.html"
    r"|(attention|single_and_multi|difference|metrics|figures|similarity|jensen_shannon|ablation"
    r"|position|gradient_importance|patching|predictions|history)(_\w+)?\.(png|svg)"
    r"|events\.out\.tfevents\.\d{1,20}\.headscope"
)
"""The names of all files that a report can contain."""

EventFile = Callable[[Mapping[int, Sequence[bytes]]], bytes]
"""Encodes the blobs of a snapshot for each step as an event file of TensorBoard. This folder does
not depend on TensorBoard, so the caller passes such a function."""


def write_report(
    report: ReportInput,
    folder: Path,
    *,
    thresholds: Thresholds,
    ablation: Ablation | None = None,
    patching: tuple[PatchTexts, PatchingResult] | None = None,
    pair: tuple[Head, Head] | None = None,
    other: "TrainedModel | None" = None,
    history: Sequence["TrainedModel"] = (),
    event_file: EventFile | None = None,
    track: Track = iter,
    known: "Callable[[TrainedModel], HeadStatistics | None]" = lambda loaded: None,
) -> tuple[HeadStatistics, AblationResult | None]:
    """Measure the heads and write the tables, the pictures (PNG and SVG) and attention.html.

    Optional parts of the report:

    - `ablation`: the effect of removing each head.
    - `patching`: the effect of exchanging each head between two texts.
    - `pair`: the difference between the attention maps of two heads.
    - `other`: the difference to the attention maps of another checkpoint.
    - `history`: the metrics over the training steps of these checkpoints.
    - `known` gives the metrics of a checkpoint that were measured before, on the same windows.
    - `event_file` encodes the snapshots of attention.html for TensorBoard's tab Attention.

    If attention.html cannot hold all tokens of the text, it shows only the first tokens. The
    Jensen-Shannon distances are measured on the same tokens. Files of an earlier report that are
    not part of this report are removed.

    Returns the statistics of the heads, and the result of the ablation or None.
    """
    loaded = report.loaded
    folder.mkdir(parents=True, exist_ok=True)  # fails before the long measurements
    old_files = files_of(folder)

    def measure(model: "TrainedModel", **options: Any) -> HeadStatistics:
        measured = measure_heads(
            model.model,
            report.windows,
            source=report.source,
            kinds=report.kinds,
            thresholds=thresholds,
            **options,
        )
        before = known(model)
        if before is None:
            return measured
        return replace(measured, metrics=measured.metrics | before.metrics, types=before.types)

    statistics = measure(loaded, track=track)
    ablation_result = ablation.run(loaded, track) if ablation else None
    measured = [
        (each, measure(each, uniform_metrics=statistics.uniform)) for each in track(history)
    ]
    statistics_over_steps = sorted(
        ((stored.step, measurement) for stored, measurement in measured), key=lambda each: each[0]
    )
    if all(stored.step != loaded.step for stored in history):
        measured.append((loaded, statistics))
    measured.sort(key=lambda each: each[0].step)
    reading = report.reading
    shown = shown_tokens(reading, len(measured))
    visible = visible_in(loaded.model, reading.tokens[None])
    visible = None if visible is None else visible[0]  # (1, T, T)
    maps = reading.attention.flatten(0, 1)
    cut = None if visible is None else visible[:, :shown, :shown]
    distances = jensen_shannon(maps[:, :shown, :shown], cut).cpu()
    ablated = ablation_result.metrics if ablation_result else {}
    rows = head_rows(statistics, ablated)
    columns = column_rows(statistics, measured_on(report, statistics, ablation_result))
    texts = {
        "heads.csv": csv_text(with_uniform(rows, statistics)),
        "columns.csv": csv_text(columns),
        "similarity.csv": csv_text(matrix_rows(statistics.similarity, statistics.heads)),
        "jensen_shannon.csv": csv_text(matrix_rows(distances, statistics.heads)),
        "largest_weights.csv": csv_text(largest_weight_rows(reading, visible)),
    }
    predicted = reading.predictions(reading.targets(shown))
    described = predicted, reading.labels[:shown], loaded.tokenizer.label
    texts["lens.csv"] = csv_text(lens_rows(*described))
    if shown > 1:
        texts["pushes.csv"] = csv_text(push_rows(*described))
    if len(loaded.model.blocks) > 1 and "composition" in statistics.metrics:
        texts["composition.csv"] = csv_text(composition_rows(loaded.model))
    snapshots, losses = {}, []
    for stored, of_step in measured:
        same = stored is loaded
        found = reading if same else stored.read(reading.tokens.tolist())
        more = ablated if same else {}
        snapshots[stored.step] = found.snapshot(of_step, shown, more_metrics=more)
        losses.append(found.loss(shown))
    texts["attention.html"] = page_of(reading, list(snapshots.values()), losses)
    if statistics_over_steps:
        texts["history.csv"] = csv_text(history_rows(statistics_over_steps))
    if patching:
        texts["patching.csv"] = csv_text(patching_rows(patching[1]))
    contents = {name: text.encode() for name, text in texts.items()}
    if event_file:
        contents[EVENTS.format(seconds=int(time.time()))] = event_file(
            {step: each.blobs() for step, each in snapshots.items()}
        )
    pictures = [
        drawing.maps(reading),
        drawing.metrics(statistics),
        drawing.ablation(ablation_result) if ablation_result else (),
        drawing.patching(*patching) if patching else (),
        drawing.position(loaded),
        drawing.difference_of_heads(reading, *pair) if pair else (),
        drawing.difference_of_checkpoints(reading, loaded, other) if other else (),
        drawing.history(statistics_over_steps) if statistics_over_steps else (),
    ]
    files = ["heads.json", *contents]
    content = summary(report, statistics, ablation_result) | {"metrics": columns, "heads": rows}
    if patching:
        content["patching"] = patching_summary(*patching)
    list_files = partial(_write_json, folder / "heads.json", content)
    list_files([*files, *old_files])
    for name, data in contents.items():
        with replacing(folder / name, size=len(data)) as stream:
            stream.write(data)
    for name, picture in track(chain(*pictures)):
        files += [f"{name}.png", f"{name}.svg"]
        list_files([*files, *old_files])
        for file in files[-2:]:
            with replacing(folder / file) as stream:
                picture.savefig(stream, format=file.rpartition(".")[2])
    list_files(files)
    for name in set(old_files) - set(files):
        (folder / name).unlink(missing_ok=True)
    return statistics, ablation_result


def _write_json(file: Path, content: dict[str, Any], files: Sequence[str]) -> None:
    """Write heads.json with a list of the report's files. Every file is added to the list before
    the file is written. So the next report recognizes all files of this report, even if this
    process is killed."""
    names = list(dict.fromkeys(files))
    write_atomically(file, json_text(content | {"files": names}, indent=2))


def measured_on(
    report: ReportInput, statistics: HeadStatistics, ablation_result: AblationResult | None
) -> dict[str, str]:
    """For each metric in the table of heads, a description of the text that the metric was measured
    on."""
    texts = dict.fromkeys([*statistics.metrics, "uniqueness"], report.source)
    texts |= {
        name: "repeated random texts" for name in REPEAT_METRICS if name in statistics.metrics
    }
    of_weights = [name for name in WEIGHT_METRICS if name in statistics.metrics]
    texts |= dict.fromkeys(of_weights, "the weights of the model")
    for name in ablation_result.metrics if ablation_result else ():
        texts[name] = "repeated random texts" if "induction" in name else "validation windows"
    return texts


def summary(
    report: ReportInput, statistics: HeadStatistics, ablation_result: AblationResult | None
) -> dict[str, Any]:
    """The part of heads.json that describes the report as a whole, not single heads or metrics."""
    content = {
        "checkpoint": str(report.loaded.path),
        "step": report.loaded.step,
        "windows": len(report.windows),
        "tokens": report.windows.size(1),
        "in_context_score": in_context_score(report.loaded.model, report.windows, report.answers),
        "text": report.loaded.tokenizer.decode(report.reading.tokens.tolist()),
        "measured_on": {
            "similarity.csv": report.source,
            "jensen_shannon.csv": "the text of attention.html",
            "lens.csv": "the text of attention.html",
            "pushes.csv": "the text of attention.html",
            "attention.html": "the beginning of `text`",
        },
        **between_heads(statistics),
    }
    if ablation_result:
        content["ablation"] = {
            "replace_by": ablation_result.replace_by,
            "windows": ablation_result.windows,
            "loss": ablation_result.loss,
            "correlation_with_loss_change": {
                name: ablation_result.correlation(name)
                for name in ("gradient_importance", "loss_change_estimate")
            },
        }
    return content


def patching_summary(texts: PatchTexts, result: PatchingResult) -> dict[str, Any]:
    """The part of heads.json that describes the activation patching."""
    return {
        "clean": texts.clean_labels,
        "corrupted": texts.corrupted_labels,
        "position": texts.position,
        "metric": texts.metric_name,
        "metric_clean": result.clean,
        "metric_corrupted": result.corrupted,
        "heads": patching_rows(result),
    }


def files_of(folder: Path) -> list[str]:
    """The files of an earlier report in the folder. The heads.json of that report lists them.

    Raises UserError if a file that is not listed has the name of a report file, because this report
    could overwrite it.
    """
    content = read_json(folder / "heads.json")
    listed = content.get("files", []) if isinstance(content, Mapping) else []
    # The caller deletes the returned files. So accept only names of report files, in case
    # heads.json is from another source.
    names = [name for name in listed if isinstance(name, str) and REPORT_FILE.fullmatch(name)]
    for file in folder.iterdir():
        if REPORT_FILE.fullmatch(file.name) and file.name not in names:
            raise UserError(
                f"output_dir={folder}: {file.name} is not from an earlier report and would be "
                "overwritten: choose another folder, or move the file away"
            )
    return names
