"""Generates the matrix in docs/ecosystem.md, with the command
`python -m headscope.cli.conversion_page docs/ecosystem.md`. For each choice in conf/model, it says
which classes of transformers compute the same function, and why the others do not.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from headscope.cli.words import CONF
from headscope.config import SCHEMAS, from_hydra, parse, register_schemas
from headscope.config.model import ModelConfig
from headscope.config.training import TrainConfig
from headscope.conversion.huggingface.classes import reasons
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

CHANGES = [*(f"model/{group}={name}" for group in GROUPS for name in SCHEMAS[group]), *KEYS]
"""The rows of the matrix: every choice of a part, and values of the other keys."""


def matrix() -> str:
    """The matrix in Markdown, and the numbered reasons."""
    numbers: dict[str, int] = {}
    names = [name.removesuffix("ForCausalLM").removesuffix("LMHeadModel") for name in BASES]
    lines = [
        f"| a model of each class, with | {' | '.join(names)} | our class |",
        f"|---|{'---|' * (len(names) + 1)}",
    ]
    for change in CHANGES:
        cells = []
        for name, base in BASES.items():
            model = changed(base, change)
            why = reasons(model)[name] if model else None
            number = number_of(short(why, name), numbers) if why else None
            cells.append(str(number or ("yes" if model else "-")))
        lines.append(f"| `{change}` | {' | '.join(cells)} | yes |")
    listed = [f"{number}. {why}" for why, number in numbers.items()]
    return "\n".join([*lines, "", *listed])


def number_of(why: str, numbers: dict[str, int]) -> int:
    """The number of a reason, which gets the next number if it is new."""
    return numbers.setdefault(why, len(numbers) + 1)


def short(why: str, name: str) -> str:
    """A reason without the key, which is in the row, and without the name of the class."""
    return why.partition(": ")[2].replace(name, "the class")


def changed(base: str, change: str) -> ModelConfig | None:
    """The model that the words `base` select, with the words `change` applied. Keys that `change`
    does not set keep their values in `base`. None if this model has no key that `change` sets."""
    set_keys = [tuple(word.partition("=")[0].split(".")[1:]) for word in change.split()]
    model, before, after = dict(settings(base)), settings(""), settings(change)
    for key, value in after.items():
        if not isinstance(value, dict):
            if value != before[key] or (key,) in set_keys:
                model[key] = value
        elif f"model/{key}=" in change and model[key]["_target_"] != value["_target_"]:
            # All attentions have the same keys, so their values are kept.
            model[key] = (
                model[key] | {"_target_": value["_target_"]} if key == "attention" else value
            )
    for key, *inner in filter(None, set_keys):
        if inner and inner[0] not in model[key]:
            return None
        if inner:
            model[key] = model[key] | {inner[0]: after[key][inner[0]]}
    return parse(ModelConfig, model)


@cache
def settings(words: str) -> dict[str, Any]:
    """The `model` part of the configuration that scripts/train.py composes from `words`."""
    register_schemas()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return asdict(from_hydra(TrainConfig, compose("train", words.split())).model)


def page(text: str) -> str:
    """`text` with a new matrix between the comments `<!-- matrix -->` and `<!-- end matrix -->`."""
    begin, end = "<!-- matrix -->\n", "<!-- end matrix -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{matrix()}\n\n{end}{rest.partition(end)[2]}"


def exact_models() -> Iterator[tuple[str, str, ModelConfig]]:
    """For each cell `yes` of the matrix: the name of the class, the change, and the model."""
    for change in CHANGES:
        for name, base in BASES.items():
            model = changed(base, change)
            if model and reasons(model)[name] is None:
                yield name, change, model


if __name__ == "__main__":
    file = Path(sys.argv[1])
    write_atomically(file, page(file.read_text(encoding="utf-8")))
