"""Writes the report on the heads of a checkpoint: tables, pictures and an HTML page."""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from pandas import DataFrame

from headscope.analysis import pictures
from headscope.analysis.examples import example_rows, find_examples, shown_examples
from headscope.analysis.head_outputs import Track
from headscope.analysis.head_statistics import head_similarity
from headscope.analysis.head_types import Thresholds
from headscope.analysis.reading import Reading
from headscope.analysis.why import POSITION_BIAS, Why
from headscope.errors import UserError
from headscope.files import json_text, read_json, replacing, write_atomically
from headscope.show.reading_page import page_of, shown_tokens
from headscope.show.report import tables
from headscope.show.report.patch_texts import PatchedTexts
from headscope.show.report.tables import HeadsAtStep, ReportInput
from headscope.trained import TrainedModel
from headscope.trained.ablations import AblationResult
from headscope.trained.records import VALIDATION

READ = 5  # pairs of parts for each head in reads.csv
REPORT_FILE = re.compile(
    r"(heads|columns|similarity|jensen_shannon|largest_weights|lens|pushes|composition|deciders"
    r"|examples|history|patching|reads|roles)\.csv"
    r"|heads\.json|attention\.html|(attention_layer_\d+|metrics|similarity|ablation|patching"
    r"|position|history|reads)\.(png|svg)"
    r"|events\.out\.tfevents\.\d{1,20}\.headscope"
)
"""The names of all files that a report can contain."""


def write_report(
    report: ReportInput,
    folder: Path,
    *,
    thresholds: Thresholds | None = None,
    ablation: Callable[..., AblationResult] | None = None,
    patching: PatchedTexts | None = None,
    history: Sequence[TrainedModel] = (),
    measuring: Mapping[str, Any] | None = None,
    event_file: Callable[[Mapping[int, Sequence[bytes]]], bytes] | None = None,
    track: Track = iter,
) -> tuple[HeadsAtStep, int]:
    """Write the tables, the pictures (PNG and SVG) and attention.html.

    - `thresholds` give other names than those of the record of the heads.
    - `ablation` measures the effect of removing each head of a model.
    - `patching`: the effect of exchanging each head between two texts.
    - `history`: the checkpoints of other training steps, whose metrics are drawn over the steps.
    - `measuring`: how heads are measured, if not as always (see `TrainedModel.record`).
    - `event_file` encodes the blobs of a snapshot for each step, for TensorBoard's tab Attention.

    If attention.html cannot hold all tokens of the text, it shows only the first tokens. Files of
    an earlier report are replaced or removed. Returns what was measured of the heads of the
    checkpoint, and how many tokens attention.html shows. Raises UserError if a file of someone else
    would be overwritten.
    """
    files_of(folder)  # fails before the long measurements
    loaded, windows = report.loaded, report.windows
    models = {model.step: model for model in (*history, loaded)}
    of_loaded = loaded.read(report.tokens)
    shown = shown_tokens(of_loaded, len(models))
    text, expected = report.tokens[:shown], of_loaded.targets(shown)[shown - 1]
    by_step, snapshots, losses = {}, {}, []
    reads: dict[int, dict[str, Why]] = {}
    rows: dict[str, Any] = {"deciders": [], "examples": [], "reads": []}
    for step, model in track(sorted(models.items())):
        reading = of_loaded if model is loaded else model.read(report.tokens)
        record = reading.record(**(measuring or {}))
        if thresholds:
            record = replace(record, thresholds=thresholds)
        removed = ablation(model.model) if ablation else None
        similarity = head_similarity(model.model, windows)
        by_step[step] = HeadsAtStep(record, similarity, removed)
        made = reading.snapshot(record, shown, more_metrics=by_step[step].changes)
        if report.source == VALIDATION:
            found = find_examples(model.model, windows, model.tokenizer)
            elsewhere = shown_examples(found, windows, report.source)
            made = made.with_json("examples", elsewhere)
            rows["examples"] += [{"step": step, **row} for row in example_rows(found)]
        snapshots[step] = made
        losses.append(reading.loss(shown))
        of_page = model.read(text)
        deciders = of_page.deciders(token=expected).to_dict("records")
        rows["deciders"] += [{"step": step, **row} for row in deciders]
        reads[step] = {}
        for head in record.heads:
            with suppress(UserError):  # its scores are not a sum over pairs, or do not differ
                reads[step][head] = why = of_page.why(head)
                rows["reads"] += [{"step": step, "head": head, **row} for row in why.rows()[:READ]]
    heads = by_step[loaded.step]
    over_steps = {step: by_step[step] for step in sorted(each.step for each in history)}
    content = tables.summary(report, heads, patching)
    rows["columns"] = content["metrics"]
    written = tables.tables_of(of_loaded, heads, shown)
    written["heads.csv"] = tables.with_uniform(heads)
    written |= {f"{name}.csv": DataFrame(listed) for name, listed in rows.items() if listed}
    if over_steps:
        written["history.csv"] = tables.history_table(over_steps)
    if patching:
        written["patching.csv"] = tables.patching_table(patching.result)
    contents = {name: table.to_csv(index=False).encode() for name, table in written.items()}
    decisive = [row for row in rows["deciders"] if row["step"] == loaded.step]
    page = page_of(of_loaded, [*snapshots.values()], losses, decisive)
    contents["attention.html"] = page.encode()
    if event_file:
        blobs = {step: snapshot.blobs() for step, snapshot in snapshots.items()}
        # TensorBoard sorts event files by the seconds in their names.
        contents[f"events.out.tfevents.{int(time.time())}.headscope"] = event_file(blobs)
    drawn = pictures_of(of_loaded, heads, patching, over_steps, reads[loaded.step])
    write_files(folder, content, contents, track(drawn))
    return heads, shown


def write_files(
    folder: Path,
    content: Mapping[str, Any],
    contents: dict[str, bytes],
    drawn: Iterable[tuple[str, Figure]] = (),
) -> None:
    """Writes the files of a report, with the pictures `drawn`, and heads.json, with `content` and
    the list of all files. Replaces or removes those of an earlier report (see `files_of`)."""
    for name, picture in drawn:
        for form in ("png", "svg"):
            stream = BytesIO()
            picture.savefig(stream, format=form)
            contents[f"{name}.{form}"] = stream.getvalue()
    names, old_files = ["heads.json", *contents], files_of(folder)

    def list_files(listed: Iterable[str]) -> None:
        text = json_text({**content, "files": sorted({*listed})}, indent=2)
        write_atomically(folder / "heads.json", text)

    list_files([*names, *old_files])  # the next report knows them, even if this process is killed
    for name, data in contents.items():
        with replacing(folder / name, size=len(data)) as file:
            file.write(data)
    for name in {*old_files} - {*names}:
        (folder / name).unlink(missing_ok=True)
    list_files(names)


def files_of(folder: Path) -> list[str]:
    """The files of an earlier report in the folder, which its heads.json lists. Makes the folder if
    it is missing. Raises UserError if another file has the name of a report file."""
    folder.mkdir(parents=True, exist_ok=True)
    content = read_json(folder / "heads.json")
    listed = content.get("files", []) if isinstance(content, Mapping) else []
    # The caller deletes these files, and heads.json may come from a stranger: check their names.
    names = [name for name in listed if isinstance(name, str) and REPORT_FILE.fullmatch(name)]
    for file in folder.iterdir():
        if REPORT_FILE.fullmatch(file.name) and file.name not in names:
            problem = f"{file.name} is not from an earlier report and would be overwritten"
            advice = "choose another folder, or move the file away"
            raise UserError(f"output_dir={folder}: {problem}: {advice}")
    return names


def pictures_of(
    reading: Reading,
    heads: HeadsAtStep,
    patching: PatchedTexts | None,
    history: Mapping[int, HeadsAtStep],
    reads: Mapping[str, Why],
) -> Iterator[tuple[str, Figure]]:
    """All pictures of a report, each with its file name without extension."""
    record = heads.record
    for layer, weights in enumerate(reading.attention):
        picture = pictures.attention_maps(weights, reading.labels, title=f"Layer {layer}")
        yield f"attention_layer_{layer}", picture
    texts: Any = {"title": "Metrics of all heads", "marks": record.uniform}
    yield "metrics", pictures.heatmaps_of(record.metrics, ends=record.ends, **texts)
    texts = {"title": "Similarity of heads", "label": "cosine similarity of two heads"}
    picture = pictures.similarity_matrix(heads.similarity, record.heads, **texts)
    yield "similarity", picture
    if heads.ablation:
        replacement = "its mean" if heads.ablation.replace_by == "mean" else "zero"
        yield "ablation", pictures.changes_of_heads(heads.ablation.metrics, replacement)
    if patching:
        yield "patching", scores(patching)
    if position := pictures.position_picture(reading.model.position):
        yield "position", position
    if history:
        by_step = {step: {**each.record.metrics, **each.changes} for step, each in history.items()}
        yield "history", pictures.history(by_step, title="Metrics of all heads during training")
    if reads:
        yield "reads", shares(reads)


def scores(patching: PatchedTexts) -> Figure:
    place, result = "at all tokens", patching.result
    if patching.position is not None:
        labels = (of_text[patching.position] for of_text in (patching.clean, patching.corrupted))
        place = f"at token {patching.position} ({' / '.join(labels)})"
    title = (
        f"Activation patching of heads {place}\nclean: {''.join(patching.clean)}\n"
        f"corrupted: {''.join(patching.corrupted)}\n{patching.metric}: "
        f"{result.clean:.3g} (clean), {result.corrupted:.3g} (corrupted)"
    )
    return pictures.patching_of_heads(result.denoising, result.noising, title=title)


def shares(reads: Mapping[str, Why]) -> Figure:
    # The last heads read most parts.
    parts = [*dict.fromkeys(part for why in reversed([*reads.values()]) for part in why.parts)]
    if any(why.position_bias for why in reads.values()):
        parts.append(POSITION_BIAS)
    panels = {}
    sides = ("of the query, the token that looks", "of the key, the token it looks at")
    for axis, side in enumerate(sides):
        rows = [
            dict(zip(why.parts, why.pairs.sum(dim=1 - axis).tolist(), strict=True))
            | {POSITION_BIAS: why.position_bias}
            for why in reads.values()
        ]
        cells = [[row.get(part, math.nan) for part in parts] for row in rows]
        panels[f"parts {side}"] = torch.tensor(cells)
    title = "What each head reads to decide where to look (below 0: a part works against it)"
    label = "share of the differences between scores"
    return pictures.parts_of_heads(panels, [*reads], parts, title=title, label=label)
