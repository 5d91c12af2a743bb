"""What a report says of the heads of a checkpoint, and its tables.

Shapes: L layers, H heads per layer, N = L H, W windows, T tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pandas import DataFrame, concat
from torch import Tensor

from headscope.analysis.ablation import Decider
from headscope.analysis.circuits import KINDS, WEIGHT_METRICS, compositions, random_composition
from headscope.analysis.diversity import diversity, jensen_shannon, uniqueness
from headscope.analysis.head_statistics import visible_in
from headscope.analysis.in_context import in_context_score
from headscope.analysis.metrics import counted_queries, visible_keys
from headscope.analysis.patching import PatchingResult
from headscope.analysis.reading import Reading
from headscope.analysis.record import HeadRecord
from headscope.analysis.repeats import REPEAT_METRICS
from headscope.analysis.rows import per_cell, per_head
from headscope.analysis.snapshot import Predictions
from headscope.data.windows import first_passage
from headscope.nn import GPT
from headscope.show.report.patch_texts import PatchedTexts
from headscope.trained import TrainedModel
from headscope.trained.ablations import AblationResult
from headscope.trained.records import LONGEST, VALIDATION

MANY = 48
"""A report on more heads shows some of them, and a line for each name."""
LISTED = 5  # heads that decide, and most important heads

LabelOf = Callable[[int], str]  # gives the label of a token of the vocabulary


@dataclass(frozen=True)
class ReportInput:
    """The checkpoint that a report analyses, and the texts for this analysis.

    - `tokens`: the text of the attention maps.
    - `windows` (W, T): the tokens on which heads are compared, and in which examples are found.
    - `source`: a description of the windows, which the report contains.
    """

    loaded: TrainedModel
    tokens: list[int]
    windows: Tensor
    source: str

    @classmethod
    def of_validation(cls, loaded: TrainedModel, windows: int | None = None) -> "ReportInput":
        """A report on the validation split. The attention maps show the `probe_text` of the corpus,
        or the beginning of the split. `windows` is the number of windows from the whole split, by
        default the number with about 4,096 tokens."""
        text, length = loaded.validation, min(loaded.model.block_size, LONGEST)
        shown = loaded.tokens(text.probe or first_passage(text.tokens, length))[:length]
        return cls(loaded, shown, loaded.windows_elsewhere(windows)[0], VALIDATION)

    @classmethod
    def of_text(cls, loaded: TrainedModel, text: str, *, with_corpus: bool) -> "ReportInput":
        """A report on one text, with at most `block_size` of its tokens. With `with_corpus`, heads
        are compared on the validation split."""
        tokens = loaded.tokens(text)[: loaded.model.block_size]
        if with_corpus:
            return cls(loaded, tokens, loaded.windows_elsewhere()[0], VALIDATION)
        return cls(loaded, tokens, torch.tensor([tokens]), "the given text")


@dataclass(frozen=True)
class HeadsAtStep:
    """What a report says of all heads at one training step.

    - `record`: their metrics and names.
    - `similarity` (L H, L H): the cosine similarity of each pair of heads on the windows.
    - `ablation`: the effect of removing each head.
    """

    record: HeadRecord
    similarity: Tensor
    ablation: AblationResult | None

    @property
    def changes(self) -> Mapping[str, Tensor]:
        """The metrics (L, H) of the ablation, if there is one."""
        return self.ablation.metrics if self.ablation else {}


def tables_of(reading: Reading, heads: HeadsAtStep, shown: int) -> dict[str, DataFrame]:
    """The tables of pairs of heads, and of the first `shown` tokens of the text, by file names."""
    names, model = heads.record.heads, reading.model
    mask = visible_in(model, reading.tokens[None])
    visible = visible_keys(reading.attention, None if mask is None else mask[:, 0])
    visible = visible.expand_as(reading.attention)  # (L, H, T, T)
    first = slice(None), slice(None, shown), slice(None, shown)
    maps, seen = (each.flatten(0, 1)[first] for each in (reading.attention, visible))
    predicted = reading.predictions(reading.targets(shown))
    described = predicted, reading.labels[:shown], reading.tokenizer.label
    tables = {
        "similarity.csv": matrix_table(heads.similarity, names),
        "jensen_shannon.csv": matrix_table(jensen_shannon(maps, seen), names),
        "largest_weights.csv": largest_weights(reading, visible),
        "lens.csv": lens_table(*described),
    }
    if shown > 1:
        tables["pushes.csv"] = push_table(*described)
    if len(model.blocks) > 1 and "composition" in heads.record.metrics:
        tables["composition.csv"] = composition_table(model)
    return tables


def summary(
    report: ReportInput, heads: HeadsAtStep, patching: PatchedTexts | None
) -> dict[str, Any]:
    """The content of heads.json."""
    record, ablation = heads.record, heads.ablation
    texts = dict.fromkeys(record.metrics, record.source) | {"uniqueness": report.source}
    texts |= dict.fromkeys(heads.changes, VALIDATION)
    others = dict.fromkeys([*REPEAT_METRICS, "other_induction"], "repeated random texts")
    others |= dict.fromkeys(WEIGHT_METRICS, "the weights of the model")
    uniform = record.uniform_of_all
    loaded, page = report.loaded, "the text of attention.html"
    content = {
        "checkpoint": str(loaded.path),
        "step": loaded.step,
        "windows": record.windows,
        "tokens": record.tokens,
        "in_context_score": in_context_score(loaded.model, report.windows, loaded.answers),
        "text": loaded.tokenizer.decode(report.tokens),
        "measured_on": {
            **dict.fromkeys(["similarity.csv", "examples.csv"], report.source),
            **dict.fromkeys(["jensen_shannon.csv", "lens.csv", "pushes.csv", "reads.csv"], page),
            "deciders.csv": f"the last token of {page}",
            "attention.html": "the beginning of `text`",
        },
        "diversity": float(diversity(heads.similarity)),
        "metrics": [
            {"metric": name, "measured_on": others.get(name, text), "uniform": uniform.get(name)}
            for name, text in texts.items()
        ],
        "heads": head_table(heads).to_dict("records"),
    }
    if ablation:
        described = {name: getattr(ablation, name) for name in ("replace_by", "windows", "loss")}
        described["correlation_with_loss_change"] = ablation.correlations
        content["ablation"] = described
    if patching:
        result = patching.result
        content["patching"] = {
            "clean": patching.clean,
            "corrupted": patching.corrupted,
            "position": patching.position,
            "metric": patching.metric,
            "metric_clean": result.clean,
            "metric_corrupted": result.corrupted,
            "heads": patching_table(result).to_dict("records"),
        }
    return content


def head_table(heads: HeadsAtStep) -> DataFrame:
    """One row per head with its name and metrics."""
    metrics = heads.record.metrics
    unique = uniqueness(heads.similarity).view_as(metrics["self"])
    table = per_head({**metrics, "uniqueness": unique, **heads.changes})
    table.insert(2, "type", [head_type.name for head_type in heads.record.types])
    return table


def with_uniform(heads: HeadsAtStep) -> DataFrame:
    """The same with the number of tokens that were measured, and a column `uniform_<name>` per
    metric: its value for uniform attention."""
    record = heads.record
    uniform = {f"uniform_{name}": of_heads for name, of_heads in record.uniform.items()}
    return head_table(heads).assign(measured_tokens=record.measured_tokens, **uniform)


def deciding_heads(deciders: Sequence[Decider]) -> list[Decider]:
    """The heads without which the probability changes most, the largest change first."""
    rows = [row for row in deciders if "H" in row["part"]]
    return sorted(rows, key=lambda row: -abs(row["without"] - row["probability"]))[:LISTED]


def history_table(by_step: Mapping[int, HeadsAtStep]) -> DataFrame:
    """The table of heads for each training step."""
    tables = {step: with_uniform(heads) for step, heads in by_step.items()}
    return concat(tables, names=["step"]).reset_index("step")


def matrix_table(matrix: Tensor, names: Sequence[str]) -> DataFrame:
    """A matrix (N, N), with one row per head and one column per head."""
    table = DataFrame(matrix.tolist(), index=names, columns=names)
    return table.rename_axis("head").reset_index()


def largest_weights(reading: Reading, visible: Tensor) -> DataFrame:
    """One row per head: the largest weight in its attention map, with the query and the key of this
    weight, the first in row-major order if several are equal. A query that sees a single key counts
    only if no query sees more, because its weight is always 1."""
    candidates = visible & counted_queries(visible)[..., None]
    flat = torch.where(candidates, reading.attention, -1.0).flatten(-2)  # (L, H, T T)
    table, labels = per_head({"weight": flat.amax(dim=-1)}), reading.labels
    places = np.divmod(flat.argmax(dim=-1).flatten().numpy(force=True), len(labels))
    for side, tokens in zip(("query", "key"), places, strict=True):
        table[side], table[f"{side}_token"] = tokens, [labels[token] for token in tokens]
    return table


def patching_table(result: PatchingResult) -> DataFrame:
    """One row per head: the scores of activation patching, and the metric that they come from."""
    scores = {"denoising": result.denoising, "noising": result.noising}
    return per_head(scores | {"denoised_metric": result.denoised, "noised_metric": result.noised})


def lens_table(predicted: Predictions, labels: Sequence[str], label_of: LabelOf) -> DataFrame:
    """One row per token and layer: the most likely next token by the residual stream before this
    layer (last row: after the last layer), the true next token, and both probabilities."""
    cells = {
        "most_likely": predicted.tokens[..., 0].T,
        "probability": predicted.probabilities[..., 0].T,
        "next_probability": predicted.target_probabilities.T,
    }
    table = per_cell(cells, "position", "layer")
    table["most_likely"] = table["most_likely"].map(label_of)
    table.insert(1, "token", table["position"].map(labels.__getitem__))
    table.insert(5, "next_token", table["position"].map(dict(enumerate(labels[1:]))))
    table.loc[table["next_token"].isna(), "next_probability"] = None
    return table


def push_table(predicted: Predictions, labels: Sequence[str], label_of: LabelOf) -> DataFrame:
    """One row per token and head: its push on the next token, and the token that it raises most."""
    raised = [np.stack(arrays)[..., 0] for arrays in zip(*predicted.raised.values(), strict=True)]
    cells = dict(zip(("raised_most", "its_push"), raised, strict=False))  # (L, H, T) each
    cells = {"push": predicted.target_pushes} | cells
    of_tokens = {name: array[..., :-1].transpose(2, 0, 1) for name, array in cells.items()}
    table = per_cell(of_tokens, "position", "layer", "head")
    table.insert(1, "token", table["position"].map(labels.__getitem__))
    table.insert(2, "next_token", table["position"].map(labels[1:].__getitem__))
    if raised:
        table["raised_most"] = table["raised_most"].map(label_of)
    return table


def composition_table(model: GPT) -> DataFrame:
    """One row per head and earlier head: their compositions, and the value for random matrices."""
    pairs = per_cell(compositions(model), "late", "head", "early", "other").query("early < late")
    late, head, early, other = (pairs[name].astype(str) for name in pairs.columns[:4])
    names = {"head": "L" + late + "H" + head, "earlier": "L" + early + "H" + other}
    return DataFrame({**names, **pairs[[*KINDS]], "random": random_composition(model)})
