"""Writes the report on the heads of a checkpoint: tables, pictures and an HTML page."""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from pandas import DataFrame

from headscope.analysis import pictures
from headscope.analysis.ablation import Decider
from headscope.analysis.examples import example_rows, find_examples, shown_examples
from headscope.analysis.head_outputs import Track, parse_head
from headscope.analysis.head_statistics import head_similarity
from headscope.analysis.head_types import Thresholds
from headscope.analysis.reading import Reading
from headscope.analysis.snapshot import Snapshot
from headscope.analysis.why import POSITION_BIAS, Why, why_of_all
from headscope.errors import UserError
from headscope.files import json_text, read_json, replacing, write_atomically
from headscope.show.reading_page import page_of, shown_tokens
from headscope.show.report import tables
from headscope.show.report.patch_texts import PatchedTexts
from headscope.show.report.tables import MANY, HeadsAtStep, ReportInput, deciding_heads
from headscope.trained import TrainedModel, load
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
    history: Mapping[int, Path] | None = None,
    measuring: Mapping[str, Any] | None = None,
    event_file: Callable[[Mapping[int, Sequence[bytes]]], bytes] | None = None,
    track: Track = iter,
) -> tuple[HeadsAtStep, list[Decider], int]:
    """Write the tables, the pictures (PNG and SVG) and attention.html.

    - `thresholds` give other names than those of the record of the heads.
    - `ablation` measures the effect of removing each head of a model.
    - `patching`: the effect of exchanging each head between two texts.
    - `history`: the checkpoints of other steps, by step. Their metrics are drawn over the steps.
    - `measuring`: how heads are measured, if not as always (see `TrainedModel.record`).
    - `event_file` encodes the blobs of a snapshot for each step, for TensorBoard's tab Attention.

    If attention.html cannot hold all tokens of the text, it shows only the first tokens. Files of
    an earlier report are replaced or removed. Returns what was measured of the heads of the
    checkpoint, which part decides the prediction after the text, and how many tokens attention.html
    shows. Raises UserError if a file of someone else would be overwritten.
    """
    files_of(folder)  # fails before the long measurements
    loaded = report.loaded
    reading = loaded.read(report.tokens)
    files = {**(history or {}), loaded.step: loaded.path}
    shown = shown_tokens(reading, len(files))
    expected = reading.targets(shown)[shown - 1]
    steps: dict[Any, ReportStep] = {}
    for step, file in track(sorted(files.items())):
        model = loaded if step == loaded.step else load(file, device=loaded.model.device)
        own = reading if model is loaded else model.read(report.tokens)
        record = own.record(**(measuring or {}))
        record = replace(record, thresholds=thresholds) if thresholds else record
        removed = ablation(model.model) if ablation else None
        heads = HeadsAtStep(record, head_similarity(model.model, report.windows), removed)
        steps[step] = measure_step(report, model, own, heads, shown, expected)
        del model, own  # before the next one is loaded
    at_end = steps[loaded.step]
    over_steps = {step: steps[step].heads for step in sorted(history or ())}
    content = tables.summary(report, at_end.heads, patching)
    written = tables.tables_of(reading, at_end.heads, shown)
    written["heads.csv"] = tables.with_uniform(at_end.heads)
    written["columns.csv"] = DataFrame(content["metrics"])
    for name in at_end.rows:
        rows = [{"step": step, **row} for step in steps for row in steps[step].rows[name]]
        written |= {f"{name}.csv": DataFrame(rows)} if rows else {}
    if over_steps:
        written["history.csv"] = tables.history_table(over_steps)
    if patching:
        written["patching.csv"] = tables.patching_table(patching.result)
    contents = {name: table.to_csv(index=False).encode() for name, table in written.items()}
    snapshots, losses = zip(*((each.snapshot, each.loss) for each in steps.values()), strict=True)
    page = page_of(reading, snapshots, losses, at_end.rows["deciders"])
    contents["attention.html"] = page.encode()
    if event_file:
        blobs = {step: each.snapshot.blobs() for step, each in steps.items()}
        # TensorBoard sorts event files by the seconds in their names.
        contents[f"events.out.tfevents.{int(time.time())}.headscope"] = event_file(blobs)
    deciders = at_end.rows["deciders"]
    drawn = pictures_of(reading, at_end.heads, deciders, patching, over_steps, at_end.reads)
    write_files(folder, content, contents, track(drawn))
    return at_end.heads, deciders, shown


@dataclass(frozen=True)
class ReportStep:
    """What a report says of one training step: `heads`, the `snapshot` and the `loss` for the text
    of attention.html, what each head `reads`, and the `rows` of tables, by their names."""

    heads: HeadsAtStep
    snapshot: Snapshot
    loss: float | None
    reads: dict[str, Why]
    rows: dict[str, list[dict[str, Any]]]


def measure_step(
    report: ReportInput,
    model: TrainedModel,
    reading: Reading,
    heads: HeadsAtStep,
    shown: int,
    expected: int,
) -> ReportStep:
    """What a report says of one training step, besides its `heads`. attention.html has the first
    `shown` tokens of the text. Deciders are those of the token `expected` after them."""
    rows: dict[str, list[dict[str, Any]]] = {"deciders": [], "examples": [], "reads": []}
    snapshot = reading.snapshot(heads.record, shown, more_metrics=heads.changes)
    if report.source == VALIDATION:
        found = find_examples(model.model, report.windows, model.tokenizer)
        elsewhere = shown_examples(found, report.windows, report.source)
        snapshot = snapshot.with_json("examples", elsewhere)
        rows["examples"] = [*example_rows(found)]
    of_page = model.read(report.tokens[:shown])
    rows["deciders"] = of_page.deciders(token=expected).to_dict("records")
    reads = {why.head: why for why in why_of_all(of_page)}
    for head, why in reads.items():
        rows["reads"] += [{"head": head, **row} for row in why.rows(READ)]
    return ReportStep(heads, snapshot, reading.loss(shown), reads, rows)


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
    deciders: Sequence[Decider],
    patching: PatchedTexts | None,
    history: Mapping[int, HeadsAtStep],
    reads: Mapping[str, Why],
) -> Iterator[tuple[str, Figure]]:
    """All pictures of a report, each with its file name without extension. With more than MANY
    heads, only layers with a head that decides are drawn."""
    record = heads.record
    drawn = {parse_head(row["part"], reading.model)[0] for row in deciding_heads(deciders)}
    for layer, weights in enumerate(reading.attention):
        if len(record.heads) > MANY and layer not in drawn:
            continue
        picture = pictures.attention_maps(weights, reading.labels, title=f"Layer {layer}")
        yield f"attention_layer_{layer}", picture
    texts: Any = {"title": "Metrics of all heads", "marks": record.uniform_of_all}
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
