"""Writes a checkpoint in the format of nanoGPT, and proves that the logits agree.

nanoGPT's `sample.py` finds the tokens in a file `meta.pkl`. If there is none, it uses GPT-2's.
"""

import pickle
from pathlib import Path
from typing import Any

import torch

from headscope.checkpoint import Checkpoint, build_model
from headscope.config.model import SingleHeadConfig
from headscope.conversion.huggingface.classes.fit import choice_of
from headscope.conversion.nanogpt.checkpoint import nanogpt_config, read_model, weight_names
from headscope.conversion.new_folder import new_folder
from headscope.conversion.proof import compare_logits, probe
from headscope.conversion.weights_file import save_torch
from headscope.data.char_tokenizer import CharTokenizer
from headscope.errors import UserError


def export_nanogpt(loaded: Checkpoint, output: Path) -> list[str]:
    """Writes ckpt.pt, and for a tokenizer of characters meta.pkl, to the new folder `output`.
    Returns lines to print. Raises UserError if nanoGPT cannot express the model or the tokenizer.
    Raises NotEqual, and leaves no files, if the logits differ."""
    reason = reason_against(loaded)
    if reason:
        raise UserError(f"to=nanogpt: nanoGPT cannot express this model: {reason}")
    name, tokenizer = output.name, loaded.tokenizer
    lines = []
    with new_folder(output) as folder:
        save_torch(nanogpt_content(loaded, name), folder / "ckpt.pt")
        if isinstance(tokenizer, CharTokenizer):
            (folder / "meta.pkl").write_bytes(pickle.dumps(meta(tokenizer)))
            data = f"data/{name}"
            lines = [f"  mkdir -p {data} && cp {output.absolute() / 'meta.pkl'} {data}/"]
        difference = largest_difference(loaded, folder / "ckpt.pt")
    return [
        f"Checked: {output}/ckpt.pt was read again, and its logits differ by at most "
        f"{difference:.1e}.",
        f"Written: {output}/. To sample, in the folder of nanoGPT:",
        *lines,
        f"  python sample.py --out_dir={output.absolute()} --device=cpu",
    ]


@torch.no_grad()
def largest_difference(loaded: Checkpoint, path: Path) -> float:
    """The largest difference of two logits of the model `loaded` and of the nanoGPT checkpoint
    `path`, on random tokens. Raises NotEqual if it is too large."""
    config, weights, _ = read_model(path)
    model = build_model(config, vocab_size=loaded.model.vocab_size).eval()
    model.load_state_dict(weights)
    tokens, _ = probe(loaded)
    return compare_logits(loaded.model(tokens.to(loaded.model.device)).cpu(), model(tokens))


def reason_against(loaded: Checkpoint) -> str | None:
    """The reason why nanoGPT cannot express the model or the tokenizer, or None if it can."""
    config = loaded.config.model
    theirs = nanogpt_config(
        block_size=config.block_size,
        embed_dim=config.embed_dim,
        layers=config.layers,
        heads=config.heads,
        dropout=config.dropout,
        bias=config.bias,
    )
    free = {"qkv_bias", "ngram_buckets"}
    multi_head = vars(theirs.attention)
    same: dict[str, tuple[Any, ...]] = {
        "attention": (theirs.attention, SingleHeadConfig(**multi_head)),
        "kv_heads": (None, config.heads),
        "head_dim": (None, config.embed_dim // config.heads),
        "ff_dim": (None, 4 * config.embed_dim),
    }
    for key, value in vars(config).items():
        allowed = same.get(key, (getattr(theirs, key),))
        if key not in free and value not in allowed:
            alike = (each for each in allowed if type(each) is type(value))
            return first_difference(key, value, next(alike, allowed[0]))
    tokenizer = loaded.tokenizer
    if not isinstance(tokenizer, CharTokenizer) and tokenizer.name != "gpt2":
        return f"its tokenizer is {tokenizer.name}, and nanoGPT's sample.py knows char and gpt2"
    return None


def first_difference(key: str, ours: Any, theirs: Any) -> str:
    """The first difference of two values of `model.<key>`, in the words of the command line."""
    if type(ours) is type(theirs) and hasattr(ours, "_target_"):
        pairs = [(name, each, getattr(theirs, name)) for name, each in vars(ours).items()]
        name, ours, theirs = next(pair for pair in pairs if pair[1] != pair[2])
        key = f"{key}.{name}"
    separator = "/" if hasattr(ours, "_target_") else "."
    return f"model{separator}{key}={_shown(key, ours)}, and nanoGPT has {_shown(key, theirs)}"


def _shown(key: str, value: Any) -> str:
    """The name of a part in conf/model/<key>, or another value as YAML."""
    if hasattr(value, "_target_"):
        return choice_of(key, type(value))
    return "null" if value is None else str(value).lower()


def nanogpt_content(loaded: Checkpoint, dataset: str) -> dict[str, Any]:
    """The content of nanoGPT's ckpt.pt. `dataset` is the folder in nanoGPT's data/ in which its
    sample.py looks for meta.pkl."""
    config, model = loaded.config.model, loaded.model
    bias = config.bias or config.qkv_bias
    ours = {name: weight.float().cpu() for name, weight in model.state_dict().items()}
    weights = {}
    for theirs, name in weight_names(config.layers, bias=bias).items():
        # nanoGPT has all biases or none, so a bias that the model lacks is zero.
        rows = ours[f"{name.rpartition('.')[0]}.weight"].size(0)
        weights[theirs] = ours[name] if name in ours else torch.zeros(rows)
    return {
        "model": weights,
        "model_args": {
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_embd": config.embed_dim,
            "block_size": config.block_size,
            "bias": bias,
            "vocab_size": model.vocab_size,
            "dropout": config.dropout,
        },
        "iter_num": loaded.step,
        "config": {"dataset": dataset},
    }


def meta(tokenizer: CharTokenizer) -> dict[str, Any]:
    """The content of nanoGPT's meta.pkl, with a text for every token. The unknown character and the
    end-of-text token have texts too, because the model can predict them, but no text is encoded as
    one of them."""
    stoi = {character: number for number, character in enumerate(tokenizer.alphabet)}
    special = ["\ufffd", "<|endoftext|>"] if tokenizer.special_tokens else []
    itos = dict(enumerate([*tokenizer.alphabet, *special]))
    return {"vocab_size": tokenizer.vocab_size, "itos": itos, "stoi": stoi}
