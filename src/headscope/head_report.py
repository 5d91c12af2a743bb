"""The report of a checkpoint's heads: tables, pictures and a page to explore, as files in a folder.

Shapes: L layers, H heads of a layer, N windows, T tokens.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from headscope.analysis import pictures
from headscope.analysis.ablation import Replacement, ablate_heads
from headscope.analysis.head_types import Thresholds
from headscope.analysis.page import attention_page
from headscope.analysis.study import Study, study_heads
from headscope.checkpoint import Checkpoint, Reading
from headscope.data.batches import spread_windows
from headscope.evaluation import ValidationText
from headscope.files import write_atomically


@dataclass(frozen=True)
class Ablation:
    """What to replace a head by, and on how many windows of the validation split."""

    replace_by: Replacement
    windows: int


def write_report(
    loaded: Checkpoint,
    reading: Reading,
    folder: Path,
    *,
    windows: Tensor,
    validation: ValidationText | None,
    ablation: Ablation | None,
    thresholds: Thresholds,
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Study:
    """Write heads.csv, heads.json, similarity.csv, pictures (PNG and SVG) and attention.html.

    The maps are of `reading`, the figures means over `windows` (N, T). Heads are ablated on
    `validation`.
    """
    study = study_heads(loaded.model, windows, thresholds=thresholds)
    worth = {}
    if ablation and validation:
        worth = ablated(loaded, validation, ablation, track)
    rows = head_rows(study, worth)
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "heads.csv", rows)
    heads = {
        "checkpoint": str(loaded.path),
        "step": loaded.step,
        "windows": len(windows),
        "tokens": windows.size(1),
        "heads": rows,
    }
    write_atomically(folder / "heads.json", json.dumps(heads, indent=2))
    alike = [
        {"head": name, **dict(zip(study.names, row, strict=True))}
        for name, row in zip(study.names, study.similarity.tolist(), strict=True)
    ]
    write_table(folder / "similarity.csv", alike)
    page = attention_page(
        weights=reading.weights,
        labels=reading.labels,
        figures=rows,
        title=f"{loaded.config['name']}, step {loaded.step:,}",
    )
    write_atomically(folder / "attention.html", page)
    for name, figure in track(list(drawn(loaded, reading.weights, reading.labels, study, worth))):
        for kind in ("png", "svg"):
            figure.savefig(folder / f"{name}.{kind}")
    return study


def drawn(
    loaded: Checkpoint, weights: Tensor, labels: list[str], study: Study, worth: dict[str, Tensor]
) -> Iterator[tuple[str, Figure]]:
    """Every picture by the name of its file; weights (L, H, T, T) of the text with these labels."""
    for layer, maps in enumerate(weights):
        title = f"Layer {layer}"
        yield f"attention_layer_{layer}", pictures.attention_maps(maps, labels, title=title)
        mean = f"Layer {layer}, the mean over its heads"
        yield f"attention_mean_{layer}", pictures.mean_map(maps, labels, title=mean)
    yield "figures", pictures.heatmaps_of(study.figures, title="What every head does")
    alike = {"title": "How alike heads are", "label": "cosine similarity of two heads"}
    yield "similarity", pictures.similarity_matrix(study.similarity, study.names, **alike)
    yield "similarity_histogram", pictures.similarity_histogram(study.similarity, **alike)
    if worth:
        yield (
            "ablation",
            pictures.layers_by_heads(
                1e3 * worth["loss_without"],
                title="What every head is worth",
                label="change of the loss without it, in thousandths of a nat per token",
                diverging=True,
            ),
        )
    position = pictures.position_picture(loaded.model.position)
    if position is not None:
        yield "position", position


def head_rows(study: Study, worth: dict[str, Tensor]) -> list[dict[str, Any]]:
    """What is known of each head, as plain data."""
    rows = []
    layers, heads = study.figures["self"].shape
    for number, (layer, head) in enumerate(np.ndindex(layers, heads)):
        numbers = {**study.figures, **worth}
        values = {name: float(each[layer, head]) for name, each in numbers.items()}
        rows.append({"layer": layer, "head": head, "type": study.types[number], **values})
    return rows


def ablated(
    loaded: Checkpoint,
    validation: ValidationText,
    ablation: Ablation,
    track: Callable[[Iterable[Any]], Iterable[Any]],
) -> dict[str, Tensor]:
    """What the loss changes by without each head: `loss_without` in nats per token, the standard
    error of that as `loss_without_error`, and `bits_per_byte_without`, (L, H) each."""
    chosen = spread_windows(
        validation.tokens, windows=ablation.windows, length=loaded.model.block_size + 1
    )
    inputs, targets = chosen[:, :-1], chosen[:, 1:]
    change = ablate_heads(
        loaded.model, inputs, targets, replace_by=ablation.replace_by, track=track
    )
    bytes_per_token = validation.byte_lengths[targets.numpy()].mean()
    return {
        "loss_without": change["nats_per_token"],
        "loss_without_error": change["standard_error"],
        "bits_per_byte_without": change["nats_per_token"] / math.log(2) / bytes_per_token,
    }


def write_table(file: Path, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(file, text.getvalue())
