"""Reads checkpoints of nanoGPT (https://github.com/karpathy/nanoGPT), whose model is GPT-2 with
exact GELU."""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.checkpoint import build_model
from headscope.checkpoint.building import check_shapes
from headscope.config.model import (
    GeluConfig,
    LayerNormConfig,
    LearnedConfig,
    MlpConfig,
    ModelConfig,
    MultiHeadConfig,
)
from headscope.data.base_tokenizer import Tokenizer
from headscope.data.char_tokenizer import CharTokenizer
from headscope.data.text_file import text_chunks
from headscope.data.tokenizer import char, gpt2, with_vocab_size
from headscope.errors import UserError

GPT2_SIZES = (50257, 50304)
"""The sizes of GPT-2's vocabulary: its tokens, and the next multiple of 64, to which nanoGPT pads
the embedding."""

COMPILED = "_orig_mod."
"""The prefix that torch.compile adds to the names of weights."""

LAYERS = {
    "ln_1": "attention_norm",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out_proj",
    "ln_2": "feed_forward_norm",
    "mlp.c_fc": "feed_forward.up_proj",
    "mlp.c_proj": "feed_forward.down_proj",
}
"""Maps the name of each layer in a block of nanoGPT to its name in a block of headscope."""

ENDS = {
    "transformer.wte": "embedding",
    "transformer.wpe": "position.table",
    "transformer.ln_f": "norm",
    "lm_head": "head",
}
"""The same for the layers outside the blocks."""

WITHOUT_BIAS = ("transformer.wte", "transformer.wpe", "lm_head")


def weight_names(layers: int, *, bias: bool) -> dict[str, str]:
    """Maps the name of each weight of a nanoGPT model with `layers` blocks to its name in
    headscope."""
    blocks = {
        f"transformer.h.{number}.{theirs}": f"blocks.{number}.{ours}"
        for number in range(layers)
        for theirs, ours in LAYERS.items()
    }
    return {
        f"{theirs}.{part}": f"{ours}.{part}"
        for theirs, ours in (ENDS | blocks).items()
        for part in ("weight", "bias")
        if part == "weight" or (bias and theirs not in WITHOUT_BIAS)
    }


def is_nanogpt(path: Path) -> bool:
    """Whether the name of a file looks like a nanoGPT checkpoint, such as ckpt.pt."""
    return path.suffix == ".pt" and path.is_file()


def read_nanogpt(
    path: Path, text: Path | None, block_size: int | None = None
) -> tuple[ModelConfig, dict[str, Tensor], Tokenizer, int]:
    """The model, the weights, the tokenizer and the training step of a nanoGPT checkpoint.

    `text` is the file that a model of characters was trained on: the tokens are its characters.
    Without it, the model must have GPT-2's tokens. `block_size` shortens the context length.

    Raises UserError if the file is damaged or not a nanoGPT checkpoint, or if the characters do not
    fit the model.
    """
    config, weights, step = read_model(path)
    tokenizer = _tokenizer(text, len(weights["embedding.weight"]), path)
    if block_size is not None:
        if not 1 <= block_size <= config.block_size:
            raise UserError(f"block_size={block_size} must be from 1 to {config.block_size}")
        config.block_size = block_size
        table = "position.table.weight"
        weights[table] = weights[table][:block_size].clone()
    return config, weights, tokenizer, step


def read_model(path: Path) -> tuple[ModelConfig, dict[str, Tensor], int]:
    """The model, the weights and the training step of a nanoGPT checkpoint. Raises UserError if the
    file is damaged or not a nanoGPT checkpoint."""
    content = read_torch(path)
    sizes, step, state = (content.get(key) for key in ("model_args", "iter_num", "model"))
    if not isinstance(sizes, dict) or not isinstance(state, dict) or type(step) is not int:
        raise UserError(
            f"{path} is not a checkpoint of nanoGPT: it lacks model, model_args or iter_num"
        )
    if step >= 2**53:
        raise UserError(f"{path}: its iter_num={step} is not a number of steps")
    config = _model_config(sizes, path)
    weights = _our_weights(state, config, path)
    _check_shapes(weights, config, _size(sizes, "vocab_size", path), path)
    return config, weights, max(0, step)


def read_torch(path: Path) -> dict[Any, Any]:
    """The content of a file that `torch.save` wrote, with memory-mapped tensors. No code in the
    file is run. Raises UserError if the file is damaged, or contains anything else."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip():  # torch.load does not verify the checksums
                raise ValueError("a wrong checksum")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a malformed file can raise almost any exception
        raise UserError(f"{path} is not a checkpoint of nanoGPT, or is damaged") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a checkpoint of nanoGPT: it is not a dictionary")
    return content


def _size(sizes: dict[Any, Any], key: str, path: Path) -> int:
    value = sizes.get(key)
    if type(value) is not int or not 1 <= value < 2**31:
        raise UserError(f"{path}: its model_args.{key}={str(value)[:80]} is not a size")
    return value


def _model_config(sizes: dict[Any, Any], path: Path) -> ModelConfig:
    """The configuration of the model with nanoGPT's `model_args`."""
    bias, dropout = sizes.get("bias", True), sizes.get("dropout", 0.0)
    if type(bias) is not bool or type(dropout) not in (int, float) or not 0 <= dropout < 1:
        raise UserError(f"{path}: its model_args.bias or dropout is not valid")
    return nanogpt_config(
        block_size=_size(sizes, "block_size", path),
        embed_dim=_size(sizes, "n_embd", path),
        layers=_size(sizes, "n_layer", path),
        heads=_size(sizes, "n_head", path),
        bias=bias,
        dropout=float(dropout),
    )


def nanogpt_config(*, bias: bool, **sizes: Any) -> ModelConfig:
    """The configuration of a model that nanoGPT can express. `sizes` are block_size, embed_dim,
    layers, heads and dropout."""
    return ModelConfig(
        **sizes,
        bias=bias,
        qkv_bias=bias,
        kv_heads=None,
        head_dim=None,
        ff_dim=None,
        tied_head=True,
        scale_embedding=False,
        ngrams=1,
        ngram_buckets=8192,
        logit_cap=None,
        document_mask=False,
        attention=MultiHeadConfig(scale=None, qk_norm=False, out_proj=True),
        position=LearnedConfig(),
        norm=LayerNormConfig(eps=1e-5),
        activation=GeluConfig(),
        feed_forward=MlpConfig(),
    )


def _our_weights(state: dict[Any, Any], config: ModelConfig, path: Path) -> dict[str, Tensor]:
    """The weights under headscope's names. Raises UserError if a weight is missing, unknown or not
    finite."""
    found = {str(name).removeprefix(COMPILED): weight for name, weight in state.items()}
    if len(found) < len(state):
        raise UserError(f"{path} has a weight twice: with and without the prefix {COMPILED}")
    # Without fused attention, nanoGPT stores the causal mask of each block.
    found = {name: weight for name, weight in found.items() if not name.endswith(".attn.bias")}
    names = weight_names(min(config.layers, len(found)), bias=config.bias)
    for name in sorted(found.keys() - names.keys())[:1]:
        raise UserError(f"{path}: {name[:80]!r} is not a weight of nanoGPT's model")
    for name in sorted(names.keys() - found.keys())[:1]:
        raise UserError(f"{path}: the weight {name!r} of nanoGPT's model is missing")
    for name, weight in found.items():
        dense = isinstance(weight, Tensor) and weight.layout is torch.strided
        if not dense or not weight.is_floating_point() or weight.device.type != "cpu":
            raise UserError(f"{path}: its weight {name} is not a floating-point tensor")
        if not bool(weight.float().isfinite().all()):
            raise UserError(f"{path}: its weight {name} is not finite: training diverged")
    weights = {ours: found[theirs].float() for theirs, ours in names.items()}
    if not torch.equal(weights["head.weight"], weights["embedding.weight"]):
        raise UserError(f"{path}: lm_head and wte differ, but nanoGPT ties them")
    return weights


def _check_shapes(
    weights: dict[str, Tensor], config: ModelConfig, vocab_size: int, path: Path
) -> None:
    """Raises UserError if the weights do not have the shapes of the model."""
    try:
        check_shapes(lambda: build_model(config, vocab_size=vocab_size), weights)
    except UserError as error:
        raise UserError(f"{path} cannot be used: {error}") from None


def _tokenizer(text: Path | None, vocab_size: int, path: Path) -> Tokenizer:
    if text is not None:
        alphabet = characters(text_chunks(text))
        if len(alphabet) != vocab_size:
            raise UserError(
                f"text={text} has {len(alphabet)} different characters, but {path} has "
                f"{vocab_size} tokens: name the text that the model was trained on, or if "
                "headscope exported the model, use the run that it came from"
            )
        return CharTokenizer(alphabet, special_tokens=False)
    if vocab_size not in GPT2_SIZES:
        raise UserError(
            f"{path} has {vocab_size} tokens, which are not GPT-2's: give text=, the file "
            "that the model was trained on, whose characters are its tokens"
        )
    return with_vocab_size(gpt2([]), vocab_size)


def characters(chunks: Iterable[str]) -> str:
    """All different characters of a text, in the order of code points, as in nanoGPT."""
    made = char(chunks)
    assert isinstance(made, CharTokenizer)
    return made.alphabet
