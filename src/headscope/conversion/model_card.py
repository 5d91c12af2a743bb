"""The model card (README.md) of an exported folder. Its names and numbers may come from a stranger:
texts are escaped for Markdown or JSON, and numbers must be numbers."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from headscope.files import json_text, read_summary
from headscope.terminal import printable
from headscope.trained import TrainedModel

LONGEST = 200
"""The most characters of a text that the card shows outside the configuration."""


def model_card(loaded: TrainedModel, *, load: str, checked: str) -> str:
    """The README.md. `load` is code that opens the folder, `checked` says how it was checked."""
    config, run = loaded.config, loaded.path.parent.parent
    imported = config.trainer.max_steps == 0 or config.data is None
    recipe = () if imported else ("init_from", "seed", "optimizer", "schedule", "trainer")
    settings = {"tokenizer": loaded.tokenizer.name, "vocab_size": loaded.tokenizer.vocab_size}
    given = without_folders(asdict(config))
    settings |= {key: given[key] for key in ("model", "data", *recipe) if key in given}
    summary = read_summary(run) or {}
    results = {k: f"{round(v, 4):,}" for k, v in summary.items() if type(v) in (int, float)}
    types = heads_by_type(loaded)
    after = f"These are the weights after step {loaded.step:,}."
    made = "imported into" if imported else "trained with"
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- headscope
---
# {escaped(config.name)}

A language model with {loaded.model.parameter_count():,} parameters, {made} headscope, a project
that trains small GPTs and shows what their attention heads do.
{"How it was trained is unknown." if imported else after}

## How to load it
```python
{load.strip()}
```

{escaped(checked)}

## Configuration
```json
{json_text(settings, indent=2)}
```

## Figures
{table(results) or "The run folder has no summary of the results."}

## Attention heads
headscope names the heads after what they do. L0H1 is head 1 of layer 0, and - is a head without a
name.

{table(types) or "The heads had not been measured when the model was exported."}

## Licence
The licence of these weights is not stated yet. Their author must choose one and replace this
sentence. The licences of the training text, and of the weights that training started from, may
limit the choice.
"""


def without_folders(options: Any) -> Any:
    """The options of a part that are given, and of the parts inside it. Of a path, only the name of
    the file or of the run, because the folders of a machine are nobody's business."""
    if not isinstance(options, dict):
        return options
    given = {key: without_folders(each) for key, each in options.items() if each is not None}
    given.pop("_error_", None)
    for key in given.keys() & {"path", "init_from"}:
        path = PurePath(str(given[key]))
        given[key] = (path.parent.parent if path.suffix == ".safetensors" else path).name
    return given


def heads_by_type(loaded: TrainedModel) -> dict[str, str]:
    """The heads of each type, if they have been measured."""
    heads: dict[str, list[str]] = {}
    if record := loaded.known_record():
        for head, head_type in zip(record.heads, record.types, strict=True):
            heads.setdefault(head_type.name, []).append(head)
    return {name: ", ".join(of_type) for name, of_type in sorted(heads.items())}


def table(rows: Mapping[str, str]) -> str:
    lines = [f"| {escaped(key)} | {escaped(value)} |" for key, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines]) if rows else ""


def escaped(text: str) -> str:
    """The beginning of `text` as one line, in which Markdown and HTML see no markup or link."""
    text = " ".join(printable(text[: LONGEST + 1], keep="\n\t").split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#!|~$:@]|(?<=www)\.)", r"\\\1", text)
