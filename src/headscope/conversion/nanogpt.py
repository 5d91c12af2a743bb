"""Reads and writes checkpoints of nanoGPT (https://github.com/karpathy/nanoGPT), whose model is
GPT-2 with exact GELU.

nanoGPT's `sample.py` finds the tokens in a file `meta.pkl`. If there is none, it uses GPT-2's.
"""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.checkpoint import Checkpoint, build_model
from headscope.checkpoint.building import WithoutInitialization, check_shapes
from headscope.checkpoint.file import is_finite
from headscope.config import parse
from headscope.config.model import ModelConfig
from headscope.conversion.classes import GPT2, PLAIN, Transform, Unfit, part
from headscope.conversion.imported import imported_config, with_block_size
from headscope.conversion.new_folder import new_folder
from headscope.conversion.proof import compare, converted, find_class, logits, probe, words
from headscope.data.base_tokenizer import Tokenizer
from headscope.data.char_tokenizer import CharTokenizer
from headscope.data.text_file import text_chunks
from headscope.data.tokenizer import char, gpt2, with_vocab_size
from headscope.errors import UserError
from headscope.files import replacing
from headscope.nn import GPT

GPT2_SIZES = (50257, 50304)
"""The sizes of GPT-2's vocabulary: its tokens, and the next multiple of 64, to which nanoGPT pads
the embedding."""

COMPILED = "_orig_mod."
"""The prefix that torch.compile adds to the names of weights."""


class NanoGPT(GPT2):
    """nanoGPT's model, with the names of GPT-2's parameters, and linear layers that are not
    transposed. It has all biases or none. `build` returns a model of ours: a test compares it with
    nanoGPT's equations."""

    name = "nanoGPT"

    def entries(self, gpt: GPT, config: ModelConfig) -> dict[str, Any]:
        theirs = super().entries(gpt, config)  # raises Unfit if a part is not GPT-2's
        if theirs["layer_norm_epsilon"] != 1e-5:
            raise Unfit("norm.eps")
        return {
            **{key: theirs[key] for key in ("n_layer", "n_head", "n_embd", "vocab_size")},
            "block_size": gpt.block_size,
            "bias": config.bias or config.qkv_bias,
            "dropout": config.dropout,
        }

    def build(self, config: Any) -> GPT:
        with WithoutInitialization():
            model = nanogpt_config(config)
            return build_model(model, vocab_size=config["vocab_size"]).eval()

    def parameters(self, theirs: Any) -> dict[str, Any]:
        return dict(theirs.named_parameters())

    def counterpart(self, ours: str) -> list[str]:
        return [ours]

    def transform(self, ours: str, gpt: GPT) -> Transform:
        return Transform()

    def name_in_file(self, ours: str) -> str:
        return super().counterpart(ours)[0]


def nanogpt_config(model_args: dict[str, Any]) -> ModelConfig:
    """The configuration of a model of nanoGPT. Raises UserError if a size is not valid."""
    bias = model_args.get("bias", True)
    return parse(
        ModelConfig,
        {
            **PLAIN,
            "block_size": model_args.get("block_size"),
            "embed_dim": model_args.get("n_embd"),
            "layers": model_args.get("n_layer"),
            "heads": model_args.get("n_head"),
            "dropout": model_args.get("dropout", 0.0),
            "bias": bias,
            "qkv_bias": bias,
            "tied_head": True,
            "attention": part("multi_head", scale=None, qk_norm=False, out_proj=True),
            "position": part("Learned"),
            "norm": part("layer_norm", eps=1e-5),
            "activation": part("gelu"),
            "feed_forward": part("FeedForward"),
        },
    )


# --- in ---


def is_nanogpt(path: Path) -> bool:
    """Whether the name of a file looks like a nanoGPT checkpoint, such as ckpt.pt."""
    return path.suffix == ".pt" and path.is_file()


def read_nanogpt(path: Path, text: Path | None, block_size: int | None = None) -> Checkpoint:
    """The model in a nanoGPT checkpoint, on the CPU and in evaluation mode.

    `text` is the file that a model of characters was trained on: the tokens are its characters.
    Without it, the model must have GPT-2's tokens. `block_size` shortens the context length.

    Raises UserError if the file is damaged or not a nanoGPT checkpoint, or if the characters do not
    fit the model.
    """
    gpt, model, step = read_model(path)
    tokenizer = tokenizer_of(gpt.vocab_size, path, text)
    gpt, model = with_block_size(gpt, model, block_size)
    return Checkpoint(
        path=path,
        model=gpt,
        tokenizer=tokenizer,
        config=imported_config(model, tokenizer, name=path.stem, text=text),
        step=step,
        precision="32-true",
    )


def tokenizer_of(vocab_size: int, path: Path, text: Path | None) -> Tokenizer:
    if text is None:
        if vocab_size in GPT2_SIZES:
            return with_vocab_size(gpt2([]), vocab_size)
        raise UserError(
            f"{path} has {vocab_size} tokens, which are not GPT-2's: give text=, the file "
            "that the model was trained on, whose characters are its tokens"
        )
    made = char(text_chunks(text))
    assert isinstance(made, CharTokenizer)
    alphabet = made.alphabet
    if len(alphabet) != vocab_size:
        raise UserError(
            f"text={text} has {len(alphabet)} different characters, but {path} has {vocab_size} "
            "tokens: name the text that the model was trained on, or if headscope exported the "
            "model, use the run that it came from"
        )
    return CharTokenizer(alphabet, special_tokens=False)


def read_model(path: Path) -> tuple[GPT, ModelConfig, int]:
    """The model, its configuration and the training step of a nanoGPT checkpoint. No code in the
    file is run. Raises UserError if the file is damaged or not a nanoGPT checkpoint."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip():  # torch.load does not verify the checksums
                raise ValueError("a wrong checksum")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        sizes, step, state = (content[key] for key in ("model_args", "iter_num", "model"))
        found = {str(name).removeprefix(COMPILED): weight for name, weight in state.items()}
        vocab_size, step = int(sizes["vocab_size"]), max(0, int(step))
    except Exception as error:  # a malformed file can raise almost any exception
        raise UserError(f"{path} is not a checkpoint of nanoGPT, or is damaged") from error
    try:
        if len(found) < len(state):
            raise UserError(f"a weight is there twice: with and without the prefix {COMPILED}")
        config = nanogpt_config(sizes)
        weights = our_weights(config, found, vocab_size)
    except UserError as error:
        raise UserError(f"{path} is not a checkpoint of nanoGPT: {error}") from None
    with WithoutInitialization():
        gpt = build_model(config, vocab_size=vocab_size).eval()
    gpt.load_state_dict(weights)
    return gpt, config, step


def our_weights(config: ModelConfig, found: dict[str, Any], vocab_size: int) -> dict[str, Tensor]:
    """The weights under our names. Raises UserError if a weight is missing, unknown or not finite,
    or has the wrong shape."""
    with torch.device("meta"):
        model = build_model(config, vocab_size=vocab_size)
    names = {NanoGPT().name_in_file(name): name for name in model.state_dict()}
    weights: dict[str, Tensor] = {}
    for name, weight in found.items():
        if name.endswith(".attn.bias"):  # without fused attention, nanoGPT stores causal masks
            continue
        dense = isinstance(weight, Tensor) and weight.layout is torch.strided
        if not dense or not weight.is_floating_point() or not is_finite(weight.float()):
            raise UserError(f"{name[:80]!r} is not a tensor of finite numbers")
        weights[names.get(name, name)] = weight.float()
    check_shapes(lambda: model, weights)
    return weights


# --- out ---


@torch.no_grad()
def export_nanogpt(loaded: Checkpoint, output: Path) -> list[str]:
    """Writes ckpt.pt, and for a tokenizer of characters meta.pkl, to the new folder `output`.
    Returns lines to print. Raises UserError if nanoGPT cannot express the model or the tokenizer.
    Raises NotEqual, and leaves no files, if the logits differ."""
    gpt, model, tokenizer = loaded.model, loaded.config.model, loaded.tokenizer
    theirs = find_class(gpt, model, [NanoGPT()])
    if theirs is None:
        raise UserError(
            f"to=nanogpt: nanoGPT cannot express this model ({words(model)}): it has "
            "model=gpt2 with model/activation=gelu and sizes that follow from embed_dim and heads; "
            "use to=huggingface or to=safetensors"
        )
    if not isinstance(tokenizer, CharTokenizer) and tokenizer.name != "gpt2":
        raise UserError(
            f"to=nanogpt: its tokenizer is {tokenizer.name}, and nanoGPT's sample.py knows char "
            "and gpt2; use to=huggingface or to=safetensors"
        )
    lines = []
    with new_folder(output) as folder:
        with replacing(folder / "ckpt.pt") as file:
            torch.save(content(loaded, output.name), file)
        if isinstance(tokenizer, CharTokenizer):
            (folder / "meta.pkl").write_bytes(pickle.dumps(meta(tokenizer)))
            data = f"data/{output.name}"
            lines = [f"  mkdir -p {data} && cp {output.absolute() / 'meta.pkl'} {data}/"]
        again, _, _ = read_model(folder / "ckpt.pt")
        tokens, positions = probe(gpt.vocab_size, gpt.block_size, tokenizer.end_of_text)
        difference = compare(logits(gpt, tokens, positions), logits(again, tokens, positions))
    return [
        f"Checked: {output}/ckpt.pt was read again, and its logits differ by at most "
        f"{difference:.1e}.",
        f"Written: {output}/. To sample, in the folder of nanoGPT:",
        *lines,
        f"  python sample.py --out_dir={output.absolute()} --device=cpu",
    ]


def content(loaded: Checkpoint, dataset: str) -> dict[str, Any]:
    """The content of nanoGPT's ckpt.pt. `dataset` is the folder in nanoGPT's data/ in which its
    sample.py looks for meta.pkl."""
    entries, filled = converted(NanoGPT(), loaded.model, loaded.config.model)
    weights = {NanoGPT().name_in_file(name): each for name, each in filled.state_dict().items()}
    return {
        "model": weights,
        "model_args": entries,
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
