"""The model card (README.md) of an exported folder.

Names and numbers come from a checkpoint and from files of its run, which may be from a stranger. So
texts are escaped for Markdown, and numbers must be numbers.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from headscope.checkpoint import Checkpoint
from headscope.config.text import UnknownTextConfig
from headscope.config.training import TrainConfig
from headscope.files import read_json, read_summary
from headscope.terminal import printable

LONGEST = 200
"""The most characters of a text that the card shows."""

LOSSES = {
    "val_loss": "validation loss at the end of training, nats per token",
    "val_bits_per_byte": "validation loss at the end of training, bits per byte",
    "best_val_loss": "lowest loss of the validations during training, nats per token",
    "tokens": "training tokens",
    "train_seconds": "training time, seconds",
}
"""The entries of summary.json that the card shows."""

HEADER = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- headscope
---
"""


def model_card(loaded: Checkpoint, *, load: str, checked: str) -> str:
    """The text of README.md. `load` is Python code that opens the folder. `checked` is a sentence
    that says how the export was checked."""
    config = loaded.config
    run = loaded.path.parent.parent
    summary, report = read_summary(run), read_json(run / "analysis" / "heads.json")
    parts = [
        HEADER + f"# {escaped(config.name)}",
        f"A language model with {loaded.model.parameter_count():,} parameters, "
        f"{'imported into' if is_imported(config) else 'trained with'} headscope, a project that "
        "trains small GPTs and shows what their attention heads do. These are the weights after "
        f"step {loaded.step:,}.",
        f"## How to load it\n\n```python\n{load.strip()}\n```\n\n{escaped(checked)}",
        "## Model\n\n" + table(flat(asdict(config.model))),
        "## Data and tokenizer\n\n" + table(data_rows(loaded)),
        "## Recipe\n\n" + recipe(loaded),
        "## Losses\n\n" + losses(summary),
        "## Attention heads\n\n" + heads(report),
        "## Licence\n\nThe licence of these weights is not stated yet. Their author must choose "
        "one and replace this sentence. The licences of the training text, and of the weights that "
        "training started from, may limit the choice.",
    ]
    return "\n\n".join(parts) + "\n"


def data_rows(loaded: Checkpoint) -> dict[str, Any]:
    """What the model was trained on. Of a path, only the last part, because the folders of a
    machine are nobody's business."""
    data = asdict(loaded.config.data)
    if isinstance(data.get("path"), str):
        data["path"] = PurePath(data["path"]).name
    tokenizer = {"tokenizer": loaded.tokenizer.name, "vocab_size": loaded.tokenizer.vocab_size}
    return flat({"data": data}) | tokenizer


def recipe(loaded: Checkpoint) -> str:
    config = loaded.config
    if is_imported(config):
        return "The model was imported from another tool. How it was trained is unknown."
    groups = {"optimizer": asdict(config.optimizer), "schedule": asdict(config.schedule)}
    keys = ("max_steps", "batch_size", "gradient_clip")
    trainer = {f"trainer.{key}": getattr(config.trainer, key) for key in keys}
    start = {} if config.init_from is None else {"init_from": run_name(PurePath(config.init_from))}
    other = {"seed": config.seed, "precision": loaded.precision}
    return table(start | flat(groups) | trainer | other)


def is_imported(config: TrainConfig) -> bool:
    """Whether the weights are those of another tool, without training by headscope."""
    return config.trainer.max_steps == 0 or isinstance(config.data, UnknownTextConfig)


def run_name(path: PurePath) -> str:
    """The name of the run folder of a checkpoint, or of `path` itself if it is a folder."""
    return (path.parent.parent if path.suffix == ".safetensors" else path).name


def losses(summary: Any) -> str:
    if not isinstance(summary, Mapping):
        return "The run folder has no summary of the losses."
    return table(
        {text: number(summary[key]) for key, text in LOSSES.items() if is_number(summary.get(key))}
    )


def heads(report: Any) -> str:
    """The number of heads of each type in a report of scripts/analyze.py."""
    rows = report.get("heads") if isinstance(report, Mapping) else None
    if not isinstance(rows, list) or not rows:
        return (
            "There was no report on the attention heads when the model was exported. "
            "`python scripts/analyze.py` of headscope writes one."
        )
    names: dict[str, list[str]] = {}
    for row in rows:
        if isinstance(row, Mapping) and all(type(row.get(k)) is int for k in ("layer", "head")):
            kind = str(row.get("type"))
            names.setdefault(kind, []).append(f"L{row['layer']}H{row['head']}")
    shown = {kind: ", ".join(found[:32]) for kind, found in sorted(names.items())[:32]}
    return (
        "The types of the heads, as `python scripts/analyze.py` of headscope names them. L0H1 is "
        "head 1 of layer 0, and - is a head without a type.\n\n" + table(shown)
    )


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one dictionary with keys such as position.base. The name of a part is the
    last word of its `_target_`."""
    rows: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "_target_" and prefix:
            rows[prefix.removesuffix(".")] = str(value).rpartition(".")[2]
        elif isinstance(value, Mapping):
            rows |= flat(value, f"{prefix}{key}.")
        elif not key.startswith("_") and value is not None:
            rows[f"{prefix}{key}"] = value
    return rows


def table(rows: Mapping[str, Any]) -> str:
    lines = [f"| {escaped(str(key))} | {escaped(str(value))} |" for key, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def escaped(text: str) -> str:
    """One line of `text` in which Markdown and HTML see no markup and no link. A long text is
    shortened."""
    text = " ".join(printable(text[: LONGEST + 1], keep="\n\t").split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#!|~$:@]|(?<=www)\.)", r"\\\1", text)
