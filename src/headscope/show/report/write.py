"""Writes the report on the heads of a checkpoint: tables, pictures and an HTML page."""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.head_types import Thresholds
from headscope.analysis.own_metrics import HeadMetric
from headscope.analysis.patching import PatchingResult
from headscope.analysis.reading import Reading
from headscope.analysis.record import HeadRecord, record_of
from headscope.analysis.why import POSITION_BIAS, Why
from headscope.errors import UserError
from headscope.files import json_text, read_json, replacing, write_atomically
from headscope.show.reading_page import page_of, shown_tokens
from headscope.show.report import tables
from headscope.show.report.inputs import ReportInput
from headscope.show.report.patch_texts import PatchTexts
from headscope.show.report.tables import History
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
    patching: tuple[PatchTexts, PatchingResult] | None = None,
    history: Sequence[TrainedModel] = (),
    own: Mapping[str, HeadMetric] | None = None,
    event_file: Callable[[Mapping[int, Sequence[bytes]]], bytes] | None = None,
    track: Track = iter,
) -> tuple[HeadRecord, AblationResult | None]:
    """Measure the heads and write the tables, the pictures (PNG and SVG) and attention.html.

    - `thresholds` give other names than those of the record.
    - `ablation` measures the effect of removing each head of a model.
    - `patching`: the effect of exchanging each head between two texts.
    - `history`: the checkpoints of other training steps, whose metrics are drawn over the steps.
    - `own`: metrics of the user (see `measure_heads`).
    - `event_file` encodes the blobs of a snapshot for each step, for TensorBoard's tab Attention.

    If attention.html cannot hold all tokens of the text, it shows only the first tokens. Files of
    an earlier report are replaced or removed. Returns the record of the heads, and the result
    of the ablation or None. Raises UserError if a file of someone else would be overwritten.
    """
    loaded, reading = report.loaded, report.reading
    files_of(folder)  # fails before the long measurements
    result = ablation(loaded.model, track=track) if ablation else None

    def measure(model: TrainedModel) -> HeadRecord:
        """The record of a checkpoint, with the similarity of heads on the windows. If these are
        not those of the record, or there are own metrics, with the metrics on the windows."""
        options: Any = {"source": report.source, "kinds": report.kinds, "own": own}
        measured = measure_heads(model.model, report.windows, **options)
        same = report.of_record and not own
        try:
            record = model.record(track=track)
        except UserError:  # its vocabulary cannot represent any other text that is here
            record, same = record_of(measured, model.model), False
        if thresholds:
            record = record.renamed(model.model, thresholds)
        return replace(record, **({"similarity": measured.similarity} if same else vars(measured)))

    record = measure(loaded)
    ablated = result.metrics if result else {}
    of_report = (loaded, record, ablated)
    by_step = {}
    for model in track(history):
        by_step[model.step] = of_report
        if model is not loaded:
            by_step[model.step] = (
                model,
                measure(model),
                ablation(model.model).metrics if ablation else {},
            )
    over_steps = [(step, *of_step[1:]) for step, of_step in sorted(by_step.items())]
    by_step = {loaded.step: of_report} | by_step
    shown = shown_tokens(reading, len(by_step))
    text, expected = reading.tokens[:shown].tolist(), reading.targets(shown)[shown - 1]
    snapshots, losses, reads = {}, [], {}
    rows: dict[str, Any] = {"deciders": [], "examples": [], "reads": []}
    for step, (stored, of_step, more) in track(sorted(by_step.items())):
        at_step = reading if stored is loaded else stored.read(reading.tokens.tolist())
        made = at_step.snapshot(of_step, shown, more_metrics=more)
        if report.source == VALIDATION:
            found = find_examples(stored.model, report.windows, stored.tokenizer)
            elsewhere = shown_examples(found, report.windows, report.source)
            made = made.with_json("examples", elsewhere)
            rows["examples"] += [{"step": step, **row} for row in example_rows(found)]
        snapshots[step] = made
        losses.append(at_step.loss(shown))
        of_page = stored.read(text)
        for row in of_page.decider_rows(token=expected):
            rows["deciders"].append({"step": step, **row})
        reads[step] = tables.reads_of(of_page, record.heads)
        for head, why in reads[step].items():
            rows["reads"] += [{"step": step, "head": head, **row} for row in why.rows()[:READ]]
    heads = tables.head_table(record, ablated)
    content = tables.summary(report, record, result, patching)
    content["heads"], rows["columns"] = heads.to_dict("records"), content["metrics"]
    written = tables.tables_of(report, record, shown)
    written["heads.csv"] = tables.with_uniform(heads, record)
    written |= {f"{name}.csv": DataFrame(listed) for name, listed in rows.items() if listed}
    if over_steps:
        written["history.csv"] = tables.history_table(over_steps)
    if patching:
        written["patching.csv"] = tables.patching_table(patching[1])
    contents = {name: table.to_csv(index=False).encode() for name, table in written.items()}
    decisive = [row for row in rows["deciders"] if row["step"] == loaded.step]
    page = page_of(reading, [*snapshots.values()], losses, decisive)
    contents["attention.html"] = page.encode()
    if event_file:
        blobs = {step: snapshot.blobs() for step, snapshot in snapshots.items()}
        # TensorBoard sorts event files by the seconds in their names.
        contents[f"events.out.tfevents.{int(time.time())}.headscope"] = event_file(blobs)
    drawn = pictures_of(reading, record, result, patching, over_steps, reads[loaded.step])
    write_files(folder, content, contents, track(drawn))
    return record, result


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
    record: HeadRecord,
    ablation: AblationResult | None,
    patching: tuple[PatchTexts, PatchingResult] | None,
    history: History,
    reads: Mapping[str, Why],
) -> Iterator[tuple[str, Figure]]:
    """All pictures of a report, each with its file name without extension."""
    for layer, weights in enumerate(reading.attention):
        picture = pictures.attention_maps(weights, reading.labels, title=f"Layer {layer}")
        yield f"attention_layer_{layer}", picture
    texts: Any = {"title": "Metrics of all heads", "marks": record.uniform}
    yield "metrics", pictures.heatmaps_of(record.metrics, ends=record.ends, **texts)
    texts = {"title": "Similarity of heads", "label": "cosine similarity of two heads"}
    picture = pictures.similarity_matrix(record.similarity, record.heads, **texts)
    yield "similarity", picture
    if ablation:
        yield "ablation", changes(ablation)
    if patching:
        yield "patching", scores(*patching)
    if position := pictures.position_picture(reading.model.position):
        yield "position", position
    if history:
        yield "history", lines(history)
    if reads:
        yield "reads", shares(reads)


def changes(result: AblationResult) -> Figure:
    replacement = "its mean" if result.replace_by == "mean" else "zero"
    label = (
        f"change of the loss in nats per token when a head is replaced by {replacement}; above 0, "
        "the head helps"
    )
    names = {"loss_change": "measured:", "loss_change_estimate": "estimated from gradients:"}
    values = {text: result.metrics[name] for name, text in names.items() if name in result.metrics}
    title = "Change of the loss without each head"
    return pictures.changes_of_heads(values, title=title, label=label)


def scores(texts: PatchTexts, result: PatchingResult) -> Figure:
    place = "at all tokens"
    if texts.position is not None:
        both = (texts.clean_labels, texts.corrupted_labels)
        labels = (of_text[texts.position] for of_text in both)
        place = f"at token {texts.position} ({' / '.join(labels)})"
    title = (
        f"Activation patching of heads {place}\nclean: {''.join(texts.clean_labels)}\n"
        f"corrupted: {''.join(texts.corrupted_labels)}\n{texts.metric_name}: "
        f"{result.clean:.3g} (clean), {result.corrupted:.3g} (corrupted)"
    )
    return pictures.patching_of_heads(result.denoising, result.noising, title=title)


def lines(history: History) -> Figure:
    every = [record.metrics | dict(ablated) for _, record, ablated in history]
    values = {
        name: torch.stack([metrics[name] for metrics in every])
        for name in every[0]
        if all(name in metrics for metrics in every)
    }
    steps = [step for step, _, _ in history]
    return pictures.history(steps, values, title="Metrics of all heads during training")


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
