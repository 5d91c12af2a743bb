"""Generates the matrix in docs/ecosystem.md, with the command
`python -m benchmarks.conversion_page docs/ecosystem.md`. For each choice in conf/model, it says
whether a class of transformers computes the same function.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from headscope.checkpoint import build_model
from headscope.cli.conf import CONF, choices_of
from headscope.config.parse import parse_part
from headscope.config.parts import Part
from headscope.conversion.classes import HuggingFaceClass
from headscope.conversion.proof import find_class
from headscope.files import write_atomically

BASES = {
    "GPT2LMHeadModel": "model=gpt2",
    "GPTNeoXForCausalLM": "model=gpt",
    "MptForCausalLM": "model/position=alibi",
    "LlamaForCausalLM": "model/norm=rms model/feed_forward=swiglu",
    "ArceeForCausalLM": "model/norm=rms model/activation=relu_squared",
    "Qwen3ForCausalLM": "model/norm=rms model/feed_forward=swiglu model.attention.qk_norm=true "
    "model.norm.eps=1e-6",
}
"""For each class, words that select a model which it expresses exactly."""

SIZES = "model.layers=2 model.embed_dim=48 model.block_size=24"

GROUPS = ("attention", "position", "norm", "activation", "feed_forward")

KEYS = (
    *("model.bias=true", "model.bias=false", "model.qkv_bias=true", "model.qkv_bias=false"),
    *("model.tied_head=true", "model.tied_head=false", "model.scale_embedding=true"),
    *("model.ngrams=2", "model.logit_cap=15", "model.document_mask=true", "model.dropout=0.1"),
    *("model.head_dim=64", "model.ff_dim=100", "model.norm.eps=1e-3", "model.attention.scale=0.1"),
    *("model.attention.qk_norm=true", "model.attention.qk_norm=false"),
    *("model.attention.out_proj=false", "model.position.interleaved=true"),
    "model/norm=rms model.norm.gain=false",
)

PARTS = [f"model/{group}" for group in GROUPS]
CHANGES = [*(f"{part}={name}" for part in PARTS for name in choices_of(part)), *KEYS]
"""The rows of the matrix: every choice of a part, and values of the other keys."""


def matrix() -> str:
    """The matrix in Markdown."""
    names = [name.removesuffix("ForCausalLM").removesuffix("LMHeadModel") for name in BASES]
    lines = [
        f"| a model of each class, with | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for change in CHANGES:
        models = [changed(f"{base} {SIZES}", change) for base in BASES.values()]
        cells = ["-" if model is None else cell(model) for model in models]
        lines.append(f"| `{change}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(model: Part) -> str:
    return "own class" if found(model) is None else "exact"


def found(model: Part) -> HuggingFaceClass | None:
    """The class of transformers that computes the same function, found with a small vocabulary."""
    return find_class(build_model(model, vocab_size=64), model)


def changed(base: str, change: str) -> Part | None:
    """The model that the words `base` select, with the words `change` applied. Keys that `change`
    does not set keep their values in `base`. None if this model has no key that `change` sets."""
    set_keys = [tuple(word.partition("=")[0].split(".")[1:]) for word in change.split()]
    model, before, after = dict(settings(base)), settings(""), settings(change)
    for key, value in after.items():
        if not isinstance(value, dict):
            if value != before[key] or (key,) in set_keys:
                model[key] = value
        elif f"model/{key}=" in change and model[key]["_target_"] != value["_target_"]:
            kept = model[key] if key == "attention" else {}  # attentions share most keys
            common = value.keys() & kept.keys() - {"_target_"}
            model[key] = value | {name: kept[name] for name in common}
    for key, *inner in filter(None, set_keys):
        if inner and inner[0] not in model[key]:
            return None
        if inner:
            model[key] = model[key] | {inner[0]: after[key][inner[0]]}
    return parse_part(model, "model")


@cache
def settings(words: str) -> dict[str, Any]:
    """The `model` part of the configuration that scripts/train.py composes from `words`."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("train", words.split()).model
    return parse_part(OmegaConf.to_container(composed, resolve=True), "model")


def page(text: str) -> str:
    """`text` with a new matrix between the comments `<!-- matrix -->` and `<!-- end matrix -->`."""
    begin, end = "<!-- matrix -->\n", "<!-- end matrix -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{matrix()}\n\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    write_atomically(file, page(file.read_text(encoding="utf-8")))
