"""Generates the matrix in docs/ecosystem.md, with the command
`python -m benchmarks.conversion_page docs/ecosystem.md`. For each choice in conf/model, it says
whether a class of transformers computes the same function.
"""

import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from headscope.cli.conf import CONF, choices_of
from headscope.config.parse import parse_part
from headscope.conversion.proof import find_class
from headscope.files import write_atomically
from headscope.trained.checkpoint import build_model

BASES = {
    "GPT2LMHeadModel": "model=gpt2",
    "GPTNeoXForCausalLM": "model=gpt",
    "MptForCausalLM": "model=gpt model/position=alibi",
    "LlamaForCausalLM": "model=gpt model/norm=rms model/feed_forward=swiglu",
    "ArceeForCausalLM": "model=gpt model/norm=rms model/activation=relu_squared",
    "Qwen3ForCausalLM": "model=gpt model/norm=rms model/feed_forward=swiglu "
    "model.attention.qk_norm=true model.norm.eps=1e-6",
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
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for change in CHANGES:
            cells = [cell(base, change) for base in BASES.values()]
            lines.append(f"| `{change}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(base: str, change: str) -> str:
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


def page(text: str) -> str:
    """`text` with a new matrix between the comments `<!-- matrix -->` and `<!-- end matrix -->`."""
    begin, end = "<!-- matrix -->\n", "<!-- end matrix -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{matrix()}\n\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    write_atomically(file, page(file.read_text(encoding="utf-8")))
