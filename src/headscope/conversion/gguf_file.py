"""Opens a GGUF file, the format of llama.cpp, with the package gguf alone.

The file must have no fields of its architecture and no tensors but those that are read here. Tests
compare the logits of each architecture with those of transformers.

Shapes: D head_dim.
"""

from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library
from torch import Tensor

from headscope.config.parts import Part
from headscope.conversion.classes import CLASSES, HuggingFaceClass, Unfit, part, table
from headscope.conversion.folder import check_weights, empty_model, with_context
from headscope.conversion.imported import imported
from headscope.data.tokenizer import Tokenizer, with_vocab_size
from headscope.data.tokenizer_state import tokenizer_from_state
from headscope.errors import UserError, library_errors, short
from headscope.nn import GPT
from headscope.trained import TrainedModel

Fields = dict[str, Any]
"""The fields of a GGUF file by name."""

ARCHITECTURES: dict[str, HuggingFaceClass] = {
    each.model_type.replace("_", ""): each
    for each in CLASSES
    if each.model_type in ("llama", "qwen2", "qwen3", "arcee", "gpt2", "gpt_neox", "mpt")
}
"""The class of transformers with the parts of each architecture of llama.cpp."""

KEYS = table(
    "block_size=context_length embed_dim=embedding_length layers=block_count "
    "ff_dim=feed_forward_length heads=attention.head_count kv_heads=attention.head_count_kv "
    "head_dim=attention.key_length base=rope.freq_base"
)
"""Maps our keys to fields of an architecture."""

NORM_EPS = {
    "LayerNorm": "attention.layer_norm_epsilon",
    "RMSNorm": "attention.layer_norm_rms_epsilon",
}

LIKE_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
ONLY_OF = {"gptneox": "use_parallel_residual", "mpt": "attention.max_alibi_bias"}
"""The fields that only one architecture has."""

byte_level = partial(pre_tokenizers.ByteLevel, add_prefix_space=False)
by_pattern = partial(pre_tokenizers.Split, behavior="isolated")
SPLITS: dict[str, list[Any]] = {
    "gpt-2": [byte_level()],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), byte_level()],
    "qwen2": [by_pattern(Regex(LIKE_GPT4 % "")), byte_level(use_regex=False)],
    "llama-bpe": [by_pattern(Regex(LIKE_GPT4 % "{1,3}")), byte_level(use_regex=False)],
}
"""How a tokenizer splits a text (`tokenizer.ggml.pre`). `byte_level` has the pattern of GPT-2."""


def is_gguf(path: Path) -> bool:
    """Whether `path` is a GGUF file, by its first bytes or its suffix. Ollama's have no suffix."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        return file.read(4) == b"GGUF" or path.suffix == ".gguf"
    return False


def load_gguf(path: Path, *, name: str, block_size: int | None = None) -> TrainedModel:
    """The model in a GGUF file, on the CPU, in evaluation mode, with weights in float32.

    `block_size` is as in `load_folder`. Raises UserError if the file is damaged, if headscope lacks
    its architecture, its tokenizer, a field or a tensor, or if its weights are not finite.
    """
    import gguf
    from gguf.quants import dequantize

    with library_errors(f"{path} is not a whole GGUF file: download it again"):
        reader = gguf.GGUFReader(path)
        fields: Fields = {key: field.contents() for key, field in reader.fields.items()}
        tensors = {str(tensor.name): tensor for tensor in reader.tensors}
    try:
        architecture, entries = of_architecture(fields)
        theirs: Any = copy(ARCHITECTURES[architecture])
        theirs.arrange = partial(arranged, architecture)
        named = tensors_by_name(architecture, entries.get("block_count"), tensors)
        model = with_context(read_model(architecture, entries, set(named)), block_size)
        embedding = named.get(theirs.counterpart("embedding.weight")[0])
        if embedding is None or len(embedding.shape) != 2:
            raise Unfit("it has no embedding (token_embd.weight)")
        tokenizer = with_vocab_size(read_tokenizer(fields), int(embedding.shape[1]))
        gpt = empty_model(model, tokenizer.vocab_size)
        with library_errors("its weights cannot be read"):
            weights = {
                key: torch.from_numpy(np.array(dequantize(each.data, each.tensor_type), np.float32))
                for key, each in named.items()
            }
        theirs.copy_to_ours(weights, gpt)
        check_weights(gpt)
    except (Unfit, UserError) as error:
        raise UserError(f"{path}: {error}") from None
    return imported(path, gpt, model, tokenizer, name=name)


def of_architecture(fields: Fields) -> tuple[str, Fields]:
    """The architecture of a file, and its fields without this prefix. Raises Unfit if headscope
    does not read one of them."""
    name = str(fields.get("general.architecture"))
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise Unfit(f"it has the architecture {short(name)}, and headscope reads {known}")
    of_all = ((key.partition(f"{name}."), value) for key, value in fields.items())
    mine = {key: value for (before, prefix, key), value in of_all if prefix and not before}
    read = {*KEYS.values(), *NORM_EPS.values(), "vocab_size", "attention.value_length"}
    read |= {"rope.dimension_count", ONLY_OF.get(name, "")}
    for key, value in mine.items():
        if key not in read and (value not in (0, False, "none") or key.endswith("causal")):
            field = f"{name}.{short(key)}={short(value)}"
            raise Unfit(f"{field} is a field that headscope does not read")
    return name, mine


def arranged(name: str, ours: str, weight: Tensor, gpt: GPT, *, to_ours: bool) -> Tensor:
    """The parameter `ours` in the other layout: in that of files of the architecture `name`, or in
    ours if `to_ours`. Queries and keys of llama rotate the pairs of dimensions (2i, 2i + 1) of a
    head, and ours (i, i + D / 2)."""
    if ".qkv." not in ours or name not in ("llama", "arcee"):
        return weight
    layer = gpt.attentions[0]
    axes = (-1, layer.head_dim // 2, 2) if to_ours else (-1, 2, layer.head_dim // 2)
    rotated, values = weight.unflatten(0, axes).tensor_split([layer.heads + layer.kv_heads])
    return torch.cat([rotated.transpose(1, 2).flatten(0, 2), values.flatten(0, 2)])


def tensors_by_name(name: str, layers: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a file of the architecture `name` by their names in transformers. Raises Unfit
    for an unknown one."""
    import gguf

    theirs = ARCHITECTURES[name]
    if type(layers) is not int or not 0 < layers <= len(tensors):
        raise Unfit(f"{name}.block_count={short(layers)}, but there are {len(tensors)} tensors")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], layers)
    places = ["", *(f"blocks.{layer}." for layer in range(layers))]
    of_ours = [f"{place}{module}" for place in places for module in theirs.names]
    found = {}
    for ours in (f"{module}.{kind}" for module in of_ours for kind in ("weight", "bias")):
        for key in theirs.counterpart(ours):
            found[names.get_name(key, (".weight", ".bias"))] = key
    if unknown := [each for each in tensors if each not in found]:
        raise Unfit(f"{short(unknown[0])} is a tensor that headscope does not read")
    return {found[each]: tensor for each, tensor in tensors.items()}


def read_model(name: str, mine: Fields, names: set[str]) -> Part:
    """Our configuration for the fields of the architecture `name`. `names` are those of tensors.
    Raises UserError for an impossible value, and Unfit for one that headscope does not have."""
    theirs = ARCHITECTURES[name]
    values = {ours: mine.get(key) for ours, key in KEYS.items()}
    values["eps"] = mine.get(NORM_EPS[theirs.norm])
    for key, value in values.items():
        if isinstance(value, list):
            raise Unfit(f"{name}: {key} is another number in each layer, {short(value)}")
        if isinstance(value, float):  # 1e-6, which is stored in float32, and not 9.99999997e-7
            values[key] = float(str(np.float32(value)))
    values["activation"] = "relu2" if name == "arcee" else "gelu"
    entries = {theirs.keys[ours]: value for ours, value in values.items() if ours in theirs.keys}
    entries |= {
        "tie_word_embeddings": not theirs.has("head.weight", names),
        "use_parallel_residual": mine.get("use_parallel_residual"),
        "rotary_pct": 1.0,
        "scale_attn_weights": True,
        "sliding_window": None,
        "attn_config": SimpleNamespace(clip_qkv=None, softmax_scale=None),
    }
    model = theirs.read(SimpleNamespace(**entries), names)
    if theirs.norm == "LayerNorm":  # llama.cpp computes GELU with tanh
        model.activation = Part(part("GeluTanh"))
    width = model.head_dim or model.embed_dim // model.heads
    rotated = mine.get("rope.dimension_count", width)
    same: dict[str, Any] = {"attention.value_length": width, "rope.dimension_count": width}
    if name == "gptneox" and rotated in range(2, width):
        model.position.share = rotated / width
        same["rope.dimension_count"] = rotated
    if name == "mpt":
        same["attention.max_alibi_bias"] = 8.0
        mine.setdefault("attention.max_alibi_bias", 0.0)
    for key, value in same.items():
        if mine.get(key, value) != value:
            raise Unfit(f"{name}.{key}={short(mine[key])}, and headscope has {value}")
    if name == "gptneox" and type(mine.get("use_parallel_residual")) is not bool:
        raise Unfit(f"{name}.use_parallel_residual is not true or false")
    return model


def read_tokenizer(fields: Fields) -> Tokenizer:
    """The tokenizer of a file, a byte-level BPE. Raises Unfit for any other one."""
    from gguf import TokenType

    of = {key.removeprefix("tokenizer.ggml."): value for key, value in fields.items()}
    if of.get("model") != "gpt2":
        named = {"llama": "SentencePiece", "bert": "WordPiece", "t5": "Unigram"}
        kind = named.get(str(of.get("model")), short(of.get("model")))
        raise Unfit(f"its tokenizer is {kind}, and headscope reads only byte-level BPE here")
    if str(of.get("pre")) not in SPLITS:
        problem = f"tokenizer.ggml.pre={short(of.get('pre'))}, which says how a text is split"
        raise Unfit(f"{problem}: headscope reads {', '.join(SPLITS)}")
    pre = of["pre"]
    with library_errors("its tokenizer cannot be used"):
        kinds = [*map(TokenType, of["token_type"])]
        tokens = [*enumerate(zip(of["tokens"], kinds, strict=True))]
        rows = {name: row for row, (name, kind) in tokens if kind != TokenType.UNUSED}
        merges = [tuple(pair.split(" ", 1)) for pair in of["merges"]]
        # A word that is a token of Llama 3 is not merged from parts.
        made = Library(models.BPE(rows, merges, ignore_merges=pre == "llama-bpe"))
        made.normalizer = normalizers.NFC() if pre == "qwen2" else None
        made.pre_tokenizer = pre_tokenizers.Sequence(SPLITS[pre])
        made.decoder = decoders.ByteLevel()
        special = (TokenType.CONTROL, TokenType.UNKNOWN)
        made.add_tokens(
            [
                AddedToken(name, special=kinds[row] in special, normalized=False)
                for name, row in rows.items()
                if kinds[row] in (*special, TokenType.USER_DEFINED)
            ]
        )
        text = made.to_str()
    return tokenizer_from_state(
        {
            "kind": "tokenizers",
            "json": text,
            "end_of_text": of.get("eos_token_id"),
            "begin_token": of.get("bos_token_id"),
            "adds_begin": of.get("add_bos_token", pre == "llama-bpe"),
            "chat_template": of.get("tokenizer.chat_template"),
        }
    )
