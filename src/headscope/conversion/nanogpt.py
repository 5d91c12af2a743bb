"""Reads and writes checkpoints of nanoGPT (https://github.com/karpathy/nanoGPT).

nanoGPT's `sample.py` finds the tokens in a file `meta.pkl`. If there is none, it uses GPT-2's.
"""

import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.config.parse import parse_part
from headscope.config.parts import Part
from headscope.conversion.classes import GPT2, INSTEAD, Unfit, part, table
from headscope.conversion.imported import check_block_size, imported
from headscope.conversion.proof import compare, converted, find_class, logits, probe, words
from headscope.data.text_file import text_chunks
from headscope.data.tokenizer import CharTokenizer, Tokenizer, char, gpt2, with_vocab_size
from headscope.errors import UserError
from headscope.files import new_folder, replacing
from headscope.nn import GPT
from headscope.trained import TrainedModel
from headscope.trained.checkpoint import build_model
from headscope.trained.checkpoint.file import is_finite
from headscope.trained.checkpoint.loading import WithoutInitialization, load_weights

COMPILED = "_orig_mod."
"""The prefix that torch.compile adds to the names of weights."""


class NanoGPT(GPT2):
    """nanoGPT's model: GPT-2 with exact GELU, all biases or none, and linear layers that are not
    transposed. Its entries are nanoGPT's `model_args`. `build` returns a model of ours."""

    name = "nanoGPT"
    keys = table("layers=n_layer heads=n_head embed_dim=n_embd block_size=block_size")

    def entries(self, gpt: GPT, config: Part) -> dict[str, Any]:
        entries = super().entries(gpt, config)  # raises Unfit if a part is not GPT-2's
        if gpt.norm.eps != 1e-5:
            raise Unfit("norm.eps")
        args = {key: entries[key] for key in (*self.keys.values(), "vocab_size")}
        return args | {"bias": config.bias or config.qkv_bias, "dropout": config.dropout}

    def config(self, args: dict[str, Any]) -> Part:
        """The configuration of a model. Raises UserError if an entry is not valid."""
        bias = args.get("bias", True)
        keys = {
            "_target_": "headscope.GPT",
            **{ours: args.get(theirs) for ours, theirs in self.keys.items()},
            "dropout": args.get("dropout", 0.0),
            "bias": bias,
            "qkv_bias": bias,
            "attention": part("MultiHead"),
            "position": part("Learned"),
            "norm": part("LayerNorm"),
            "activation": part("Gelu"),
            "feed_forward": part("FeedForward"),
            "block": part("Block"),
        }
        return parse_part(keys, "model", composed=False)

    def build(self, config: Any) -> GPT:
        with WithoutInitialization():
            return build_model(self.config(config), vocab_size=config["vocab_size"]).eval()

    def parameters(self, theirs: Any, rows: int | None = None) -> dict[str, Tensor]:
        return {self.counterpart(name)[0]: each for name, each in theirs.named_parameters()}

    def arrange(self, ours: str, weight: Tensor, gpt: GPT, *, to_ours: bool) -> Tensor:
        return weight


def read_nanogpt(path: Path, text: Path | None, block_size: int | None = None) -> TrainedModel:
    """The model in a nanoGPT checkpoint, on the CPU and in evaluation mode. `text` is the file that
    a model of characters was trained on: the tokens are its characters. Without it, the model must
    have GPT-2's tokens. Raises UserError as `read_model` does, or if the tokens do not fit."""
    gpt, model, step = read_model(path, block_size)
    tokenizer = tokenizer_of(gpt.vocab_size, path, text)
    return imported(path, gpt, model, tokenizer, name=path.stem, text=text, step=step)


def tokenizer_of(vocab_size: int, path: Path, text: Path | None) -> Tokenizer:
    if text is None:
        if vocab_size in (50257, 50304):  # GPT-2's, which nanoGPT pads to a multiple of 64
            return with_vocab_size(gpt2([]), vocab_size)
        problem = f"{path} has {vocab_size} tokens, which are not GPT-2's"
        raise UserError(f"{problem}: give text=, the file whose characters are its tokens")
    alphabet = char(text_chunks(text)).state()["alphabet"]
    if len(alphabet) != vocab_size:
        problem = f"text={text} has {len(alphabet)} characters, not {vocab_size} as {path}"
        raise UserError(f"{problem}: name the text of its training, or use the run it came from")
    return CharTokenizer(alphabet, special_tokens=False)


def read_model(path: Path, block_size: int | None = None) -> tuple[GPT, Part, int]:
    """The model, its configuration and the training step of a nanoGPT checkpoint. `block_size`
    shortens the context length. No code in the file is run. Raises UserError if it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip():  # torch.load does not verify the checksums
                raise ValueError("a wrong checksum")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        args, step, state = (content[key] for key in ("model_args", "iter_num", "model"))
        stored = {str(name).removeprefix(COMPILED): weight for name, weight in state.items()}
        args |= {key: int(args[key]) for key in ("vocab_size", "block_size")}
        step = max(0, int(step))
    except Exception as error:  # a malformed file can raise almost any exception
        raise UserError(f"{path} is not a checkpoint of nanoGPT, or is damaged") from error
    check_block_size(block_size, args["block_size"])
    args["block_size"] = block_size or args["block_size"]
    try:
        if len(stored) < len(state):
            raise UserError(f"a weight is there twice: with and without the prefix {COMPILED}")
        gpt = NanoGPT().build(args)
        names = {NanoGPT().counterpart(name)[0]: name for name in gpt.state_dict()}
        weights = {
            names.get(name, name): finite(name, weight)
            for name, weight in stored.items()
            if not name.endswith(".attn.bias")  # causal masks, stored without fused attention
        }
        if block_size and (table := "position.table.weight") in weights:
            weights[table] = weights[table][:block_size]
        load_weights(gpt, weights)
    except UserError as error:
        raise UserError(f"{path} is not a checkpoint of nanoGPT: {error}") from None
    return gpt, NanoGPT().config(args), step


def finite(name: str, weight: Any) -> Tensor:
    """The weight in float32. Raises UserError if it is not a tensor of finite numbers."""
    with suppress(Exception):  # it may be a sparse tensor, or no tensor
        if weight.is_floating_point() and is_finite(weight.float()):
            return weight.float()
    raise UserError(f"{name[:80]!r} is not a tensor of finite numbers")


@torch.no_grad()
def export_nanogpt(loaded: TrainedModel, output: Path) -> list[str]:
    """Writes ckpt.pt, and for a tokenizer of characters meta.pkl, to the new folder `output`.
    Returns lines to print. Raises UserError if nanoGPT cannot express the model or the tokenizer.
    Raises NotEqual, and leaves no files, if the logits differ."""
    gpt, model, tokenizer = loaded.model, loaded.config.model, loaded.tokenizer
    theirs = find_class(gpt, model, [NanoGPT()])
    if theirs is None:
        problem = f"to=nanogpt: nanoGPT cannot express this model ({words(model)})"
        those = "model/activation=gelu and sizes that follow from embed_dim and heads"
        raise UserError(f"{problem}: it has model=gpt2 with {those}; {INSTEAD}")
    if not isinstance(tokenizer, CharTokenizer) and tokenizer.name != "gpt2":
        problem = f"to=nanogpt: its tokenizer is {tokenizer.name}"
        raise UserError(f"{problem}, and nanoGPT's sample.py knows char and gpt2; {INSTEAD}")
    args, filled = converted(theirs, gpt, model)
    content = {
        "model": {theirs.counterpart(name)[0]: w for name, w in filled.state_dict().items()},
        "model_args": args,
        "iter_num": loaded.step,
        "config": {"dataset": output.name},  # sample.py finds meta.pkl in data/<dataset>/
    }
    lines = []
    with new_folder(output) as folder:
        with replacing(folder / "ckpt.pt") as file:
            torch.save(content, file)
        if isinstance(tokenizer, CharTokenizer):
            # The model can also predict the special tokens, so they have texts too.
            texts = [*tokenizer.alphabet, "\ufffd", "<|endoftext|>"][: tokenizer.vocab_size]
            stoi = {text: number for number, text in enumerate(tokenizer.alphabet)}
            meta = {"vocab_size": len(texts), "itos": dict(enumerate(texts)), "stoi": stoi}
            (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
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
