"""Writes files again that are generated from conf/ and from the viewer:

    python -m benchmarks.pages [docs/configuration.md ...]    # without a name, all of GENERATED

`python -m benchmarks.docs demo` also trains the model of the demo again, in three minutes.
"""

import html
import json
import re
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from headscope.cli.conf import CONF, choices_of
from headscope.cli.help import Key, heading, keys_in
from headscope.cli.main import COMMANDS
from headscope.config.parse import parse_part
from headscope.conversion.proof import find_class
from headscope.files import write_atomically
from headscope.show.viewer.page import attention_page
from headscope.trained.checkpoint import build_model

CAPTIONS = (
    {"text": "← The documentation of headscope", "href": "index.html"},
    {
        "text": "The attention heads of a small model of English, which was trained for two "
        "minutes. Press Play to see them form. Click a head, and point at a token: where does it "
        "look? “?” explains the words."
    },
)
"""The lines above the demo: the way back, and what it shows."""

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "docs" / "demo.html"

PREFACE = """\
# Configuration

The keys and choices of `conf/`. Set a key with `key=value`, and choose from a group with
`group=choice`. If only some choices set a key, or set it to this default, they are named in
brackets. A choice that is based on another one, such as `gpt2` on `gpt`, sets only what differs.
`--help` shows the keys of your choices: `python scripts/train.py model=modern --help`.

<!-- Generated: python -m benchmarks.pages docs/configuration.md -->"""

WITHOUT_KEYS = ("experiment", "debug", "suite", "compare")
"""Groups whose keys are not listed: they are those of other groups, or --help shows them."""

PARTS = ("block", "attention", "position", "norm", "activation", "feed_forward")
"""The groups in conf/model/."""

ORDER = (
    *("model", *(f"model/{part}" for part in PARTS), "tokenizer", "data", "optimizer", "schedule"),
    *("trainer", "logger", "callbacks", "thresholds", "compare", "experiment", "debug"),
    *("hydra/launcher", "hydra/sweeper", "suite"),
)
"""The groups, in the order of the page."""

FOUND = {file.parent.relative_to(CONF).as_posix() for file in CONF.glob("*/**/*.yaml")}
GROUPS = sorted(FOUND, key=lambda group: ORDER.index(group) if group in ORDER else len(ORDER))

ROOTS = [*COMMANDS, "benchmark"]
"""The scripts with keys. The suites of benchmark.py are in benchmarks/, outside the package."""

CLASSES = {
    "GPT2LMHeadModel": "model=gpt2",
    "GPTNeoXForCausalLM": "model=gpt",
    "MptForCausalLM": "model=gpt model/position=alibi",
    "LlamaForCausalLM": "model=gpt model/norm=rms model/feed_forward=swiglu",
    "MistralForCausalLM": "model=gpt model/norm=rms model/feed_forward=swiglu model.windows=[9]",
    "ArceeForCausalLM": "model=gpt model/norm=rms model/activation=relu_squared",
    "Qwen3ForCausalLM": "model=gpt model/norm=rms model/feed_forward=swiglu "
    "model.attention.qk_norm=true model.norm.eps=1e-6",
}
"""For each class of transformers, words that select a model which it expresses exactly."""

SIZES = "model.layers=2 model.embed_dim=48 model.block_size=24"

CHANGES = (
    *(f"model/{part}={name}" for part in PARTS for name in choices_of(f"model/{part}")),
    *("model.bias=true", "model.bias=false", "model.qkv_bias=true", "model.qkv_bias=false"),
    *("model.tied_head=true", "model.tied_head=false", "model.scale_embedding=true"),
    *("model.ngrams=2", "model.logit_cap=15", "model.document_mask=true", "model.dropout=0.1"),
    *("model.head_dim=64", "model.ff_dim=100", "model.norm.eps=1e-3", "model.attention.scale=0.1"),
    *("model.attention.qk_norm=true", "model.attention.qk_norm=false"),
    *("model.attention.out_proj=false", "model.position.interleaved=true"),
    *("model.position.share=0.5", "model.windows=[5]", "model.windows=[0,5]"),
    "model/norm=rms model.norm.gain=false",
)
"""The rows of the matrix: every choice of a part, and values of the other keys."""


def configuration(_: str) -> str:
    """docs/configuration.md: all keys and choices of conf/."""
    blocks = [PREFACE]
    for root in ROOTS:
        file = CONF / f"{root}.yaml"
        blocks += [f"## {root}.py", heading(file), key_table({root: file})]
    for group in GROUPS:
        files = {choice: CONF / group / f"{choice}.yaml" for choice in choices_of(group)}
        rows = [[f"`{choice}`", heading(file)] for choice, file in files.items()]
        blocks += [f"## {group}", table(["choice", "meaning"], rows)]
        if group not in WITHOUT_KEYS:
            blocks.append(key_table(files))
    return "\n\n".join(filter(None, blocks)) + "\n"


def key_table(files: dict[str, Path]) -> str:
    """A Markdown table of the keys that `files` set, with their defaults and comments. `files` maps
    each choice of a group to its file in conf/."""
    choices: dict[tuple[str, str], list[str]] = {}
    for choice, file in files.items():
        for key in keys_of(file):
            if key.value != {}:
                meaning = key.comment or comment_elsewhere(key.name)
                choices.setdefault((f"`{key.name}={key.shown}`", meaning), []).append(choice)
    rows = [
        [setting if len(having) == len(files) else f"{setting} ({', '.join(having)})", meaning]
        for (setting, meaning), having in choices.items()
    ]
    return table(["key", "meaning"], rows) if rows else ""


def keys_of(file: Path) -> Iterator[Key]:
    """The keys of a file in conf/, with their full names."""
    package = re.match(r"# @package (\S+)", file.read_text(encoding="utf-8"))
    group = file.parent.relative_to(CONF).as_posix().replace("/", ".")
    name = package[1] if package else group
    return keys_in(file, "" if name in (".", "_global_") else name)


@cache
def comment_elsewhere(name: str) -> str:
    """Finds a comment for a key in the files of all choices. It is used when a choice sets the key
    without a comment."""
    files = [CONF / group / f"{choice}.yaml" for group in GROUPS for choice in choices_of(group)]
    keys = [key for file in files for key in keys_of(file) if key.name == name]
    return next((key.comment for key in keys if key.comment), "")


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table. In `<name>_<date>`, `_` would begin italics."""
    cells = [
        [cell.replace("|", r"\|") for cell in row] for row in [head, ["---"] * len(head), *rows]
    ]
    text = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    return html.escape(text, quote=False).replace("_&lt;", r"\_&lt;")


def with_matrix(page: str) -> str:
    """docs/ecosystem.md with a new matrix between two comments. For each choice in conf/model, it
    says whether a class of transformers computes the same function."""
    names = [name.removesuffix("ForCausalLM").removesuffix("LMHeadModel") for name in CLASSES]
    lines = [
        f"| a model of each class, with | {' | '.join(names)} |",
        f"|{'---|' * (1 + len(names))}",
    ]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for change in CHANGES:
            cells = [exact(base, change) for base in CLASSES.values()]
            lines.append(f"| `{change}` | {' | '.join(cells)} |")
    begin, end = "<!-- matrix -->\n", "<!-- end matrix -->"
    before, _, rest = page.partition(begin)
    return "\n".join([f"{before}{begin}", *lines, f"\n{end}{rest.partition(end)[2]}"])


def exact(base: str, change: str) -> str:
    """Whether a class of transformers computes the same function as the model that the words `base`
    and `change` select, which is found with a small vocabulary. "-" if this model has no key that
    `change` sets."""
    root, *words = f"{base} {SIZES} {change}".split()
    if change == "model/norm=none":
        words = [word for word in words if not word.startswith("model.norm.")]
    try:
        composed = compose(root.replace("=", "/"), words).model
    except ConfigCompositionException:
        return "-"
    config = parse_part(OmegaConf.to_container(composed, resolve=True), "model")
    found = find_class(build_model(config, vocab_size=64), config)
    return "own class" if found is None else "exact"


def data_of(page: str) -> dict[str, Any]:
    """The arguments of `attention_page` for a page that it wrote."""
    [text] = re.findall(r'id="data">(.*)</script>', page)
    data = json.loads(text)
    parts = re.findall(r'id="part-(\d+)">(.*)</script>', page)
    decoded = {number: b64decode(part) for number, part in parts}
    return {**data, "runs": [{**run, "parts": decoded} for run in data["runs"]]}


def with_current_viewer(page: str) -> str:
    """docs/demo.html with the current viewer, the same data, and captions for a visitor."""
    data = data_of(page)
    own = [caption for caption in data["captions"] if caption not in CAPTIONS]
    return attention_page(**data | {"captions": [*CAPTIONS, *own]})


GENERATED: dict[str, Callable[[str], str]] = {
    "docs/configuration.md": configuration,
    "docs/ecosystem.md": with_matrix,
    "docs/demo.html": with_current_viewer,
}
"""The generated files. Each function gets the text of its file, and returns the new text."""


if __name__ == "__main__":
    for name in sys.argv[1:] or GENERATED:
        file = ROOT / name
        write_atomically(file, GENERATED[name](file.read_text(encoding="utf-8")))
