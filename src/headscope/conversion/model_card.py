"""The model card (README.md) of an exported folder.

Names and numbers come from a checkpoint and from files of its run, which may be from a stranger. So
texts are escaped for Markdown, and numbers must be numbers.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from headscope.checkpoint import Checkpoint
from headscope.config.text import UnknownTextConfig
from headscope.files import read_json, read_summary
from headscope.terminal import printable

LONGEST = 200
"""The most characters of a text that the card shows."""

CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- headscope
---
# {name}

A language model with {parameters:,} parameters, {made} headscope, a project that trains small GPTs
and shows what their attention heads do. These are the weights after step {step:,}.

## How to load it
```python
{load}
```

{checked}

## Configuration
{configuration}

## Figures
{figures}

## Attention heads
{heads}

## Licence
The licence of these weights is not stated yet. Their author must choose one and replace this
sentence. The licences of the training text, and of the weights that training started from, may
limit the choice.
"""


def model_card(loaded: Checkpoint, *, load: str, checked: str) -> str:
    """The text of README.md. `load` is Python code that opens the folder. `checked` is a sentence
    that says how the export was checked."""
    config, run = loaded.config, loaded.path.parent.parent
    imported = config.trainer.max_steps == 0 or isinstance(config.data, UnknownTextConfig)
    recipe = ("init_from", "seed", "optimizer", "schedule", "trainer")
    keys = ("model", "data", *(() if imported else recipe))
    figures = {
        key: f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
        for key, value in (read_summary(run) or {}).items()
        if type(value) in (int, float)
    }
    return CARD.format(
        name=escaped(config.name),
        parameters=loaded.model.parameter_count(),
        made="imported into" if imported else "trained with",
        step=loaded.step,
        load=load.strip(),
        checked=escaped(checked),
        configuration=table(
            {"tokenizer": loaded.tokenizer.name, "vocab_size": loaded.tokenizer.vocab_size}
            | flat({key: asdict(config)[key] for key in keys})
        )
        + ("\n\nHow it was trained is unknown." if imported else ""),
        figures=table(figures) if figures else "The run folder has no summary of the figures.",
        heads=heads(read_json(run / "analysis" / "heads.json")),
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
    last word of its `_target_`. Of a path, only the name of the file or of the run, because the
    folders of a machine are nobody's business."""
    rows: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "_target_" and prefix:
            rows[prefix.removesuffix(".")] = str(value).rpartition(".")[2]
        elif isinstance(value, Mapping):
            rows |= flat(value, f"{prefix}{key}.")
        elif key in ("path", "init_from") and value is not None:
            path = PurePath(str(value))
            in_run = key == "init_from" and path.suffix == ".safetensors"
            rows[f"{prefix}{key}"] = (path.parent.parent if in_run else path).name
        elif not key.startswith("_") and value is not None:
            rows[f"{prefix}{key}"] = value
    return rows


def table(rows: Mapping[str, Any]) -> str:
    lines = [f"| {escaped(str(key))} | {escaped(str(value))} |" for key, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def escaped(text: str) -> str:
    """One line of `text` in which Markdown and HTML see no markup and no link. A long text is
    shortened."""
    text = " ".join(printable(text[: LONGEST + 1], keep="\n\t").split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#!|~$:@]|(?<=www)\.)", r"\\\1", text)
