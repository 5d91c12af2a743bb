"""Writes a checkpoint as a GGUF file, the format of llama.cpp: convert.py to=gguf.

A model fits an architecture of llama.cpp if the class of transformers with this architecture
computes the same function. The names of the fields and tensors are those of the package gguf.
"""

import errno
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.checkpoint import Checkpoint
from headscope.config.model import GeluConfig, ModelConfig, RotaryConfig
from headscope.conversion.classes import name_of, projection_rows
from headscope.conversion.new_folder import new_folder
from headscope.conversion.proof import NotEqual, converted, find_class, words
from headscope.conversion.settings import quiet_transformers, require_transformers
from headscope.conversion.standard_form import standard_form
from headscope.conversion.tokenizer_files import tokenizer_files
from headscope.errors import UserError
from headscope.terminal import printable

PAIRS_ADJACENT = ("llama", "arcee")
"""They rotate the pairs of dimensions (2i, 2i + 1). The others rotate (i, i + D / 2)."""

ALIBI_BIAS = 8.0
"""With this value of max_alibi_bias, the slopes of llama.cpp are those of `alibi_slopes`."""


@torch.no_grad()
def export_gguf(loaded: Checkpoint, output: Path) -> list[str]:
    """Writes `loaded` to model.gguf in the new folder `output`. Returns lines to print.

    Raises UserError if llama.cpp has no architecture that fits the model, or no tokenizer that fits
    its tokenizer. Raises NotEqual if the file, read again, has other weights.
    """
    if find_spec("gguf") is None:
        raise UserError("to=gguf needs the package gguf: pip install -e '.[gguf]'")
    require_transformers("to=gguf")
    with quiet_transformers():
        architecture, weights = fitting(loaded)
    if loaded.tokenizer.name not in ("bpe", "gpt2"):
        raise UserError(
            f"to=gguf: llama.cpp has no tokenizer={loaded.tokenizer.name}, only byte-level BPE "
            "(tokenizer=bpe or gpt2); use to=huggingface or to=safetensors"
        )
    with new_folder(output) as folder:
        write(loaded, architecture, weights, folder / "model.gguf")
        check(folder / "model.gguf", architecture, weights)
    return [
        f"Checked: model.gguf was read again, and its {len(weights)} tensors are equal. llama.cpp "
        "was not run.",
        f"Written: {output}/model.gguf (architecture {architecture}). To run it:",
        f"  llama-cli --model {output}/model.gguf --prompt 'My fellow citizens' --no-conversation",
    ]


def fitting(loaded: Checkpoint) -> tuple[str, dict[str, Tensor]]:
    """The architecture in llama.cpp that computes the function of the model, and its tensors, with
    axes in PyTorch's order. Raises UserError if there is none."""
    import gguf

    gpt, model = loaded.model, loaded.config.model
    provable = as_in_transformers(model)
    found = None if provable is None else find_class(gpt, provable)
    if provable is None or found is None:
        raise UserError(
            f"to=gguf: no architecture of llama.cpp computes this model ({words(model)}): with "
            "LayerNorm it has model/activation=gelu_tanh, with RMSNorm swiglu or relu_squared; "
            "use to=huggingface or to=safetensors"
        )
    name, head_dim = found.model_type.replace("_", ""), gpt.attentions[0].head_dim
    weights: dict[str, Tensor] = {}
    for ours, weight in standard_form(gpt, provable)[1].items():
        theirs, parts = found.counterpart(ours), [weight]
        if len(theirs) == 3:
            q, k, v = weight.split(projection_rows(gpt.attentions[0]))
            if name in PAIRS_ADJACENT:
                q, k = pairs_adjacent(q, head_dim), pairs_adjacent(k, head_dim)
            parts = [q, k, v]
        weights |= zip(theirs, parts, strict=True)
    # Gains that ours does not have are ones, and with LayerNorm, missing biases are zeros.
    for key, constant in found.parameters(converted(found, gpt, provable)[1]).items():
        if found.norm == "layer_norm" or key.endswith("weight"):
            weights.setdefault(key, constant)
    if name == "gptneox":
        weights.setdefault(found.head, gpt.head.weight)  # llama.cpp needs it, even if it is tied
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], len(gpt.blocks))
    return name, {
        str(names.get_name(key, (".weight", ".bias"))): weight.detach().cpu().float().contiguous()
        for key, weight in weights.items()
    }


def as_in_transformers(model: ModelConfig) -> ModelConfig | None:
    """The model that a class of transformers must compute, so that its architecture in llama.cpp
    computes `model`. With LayerNorm, llama.cpp computes GELU with tanh where transformers computes
    it exactly. None if llama.cpp has no such feed-forward network."""
    activation = name_of(model.activation)
    if name_of(model.norm) == "layer_norm":
        return replace(model, activation=GeluConfig()) if activation == "gelu_tanh" else None
    arcee = activation == "relu_squared" and not model.bias
    return model if arcee or name_of(model.feed_forward) == "SwiGLU" else None


def pairs_adjacent(rows: Tensor, head_dim: int) -> Tensor:
    """Queries or keys (H D, ...), with the dimensions i and i + D / 2 of each head next to each
    other."""
    order = torch.arange(head_dim).view(2, -1).T.flatten()
    return rows.unflatten(0, (-1, head_dim))[:, order].flatten(0, 1)


def write(loaded: Checkpoint, name: str, weights: Mapping[str, Tensor], path: Path) -> None:
    """Writes the GGUF file of the architecture `name`."""
    import gguf

    writer: Any = gguf.GGUFWriter(path, name)
    try:
        add_model(writer, loaded, name)
        add_tokenizer(writer, loaded)
        for tensor_name, weight in weights.items():
            writer.add_tensor(tensor_name, weight.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    except OSError as error:
        if error.errno is None:  # NumPy wrote only a part of a tensor
            raise OSError(errno.ENOSPC, f"the disk is full ({error})") from error
        raise
    finally:
        writer.close()


def add_model(writer: Any, loaded: Checkpoint, name: str) -> None:
    """Adds the sizes and settings of the model."""
    import gguf

    gpt, model, layer = loaded.model, loaded.config.model, loaded.model.attentions[0]
    block: Any = gpt.blocks[0]
    writer.add_name(printable(loaded.config.name)[:200])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(gpt.vocab_size)
    writer.add_context_length(gpt.block_size)
    writer.add_embedding_length(layer.embed_dim)
    writer.add_block_count(len(gpt.blocks))
    writer.add_feed_forward_length(block.feed_forward.up_proj.out_features)
    writer.add_head_count(layer.heads)
    writer.add_head_count_kv(layer.kv_heads)
    writer.add_key_length(layer.head_dim)
    writer.add_value_length(layer.head_dim)
    layer_norm = name_of(model.norm) == "layer_norm"
    (writer.add_layer_norm_eps if layer_norm else writer.add_layer_norm_rms_eps)(gpt.norm.eps)
    if name == "gptneox":
        writer.add_parallel_residual(False)
    if name == "mpt":
        writer.add_max_alibi_bias(ALIBI_BIAS)
    if isinstance(model.position, RotaryConfig):
        writer.add_rope_dimension_count(layer.head_dim)
        writer.add_rope_freq_base(model.position.base)


def add_tokenizer(writer: Any, loaded: Checkpoint) -> None:
    """Adds the tokens, in the byte-level alphabet of GPT-2, and the merges. llama.cpp needs a token
    for each row of the embedding, so rows without a token get an unused one."""
    import gguf

    rows, end = range(loaded.tokenizer.vocab_size), loaded.tokenizer.end_of_text
    assert end is not None  # a byte-level BPE has one
    content = json.loads(tokenizer_files(loaded.tokenizer)["tokenizer.json"])["model"]
    tokens, kinds = [f"[PAD{row}]" for row in rows], [gguf.TokenType.UNUSED for _ in rows]
    for token, row in content["vocab"].items():
        tokens[row], kinds[row] = token, gguf.TokenType.NORMAL
    kinds[end] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in content["merges"]])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)


def check(path: Path, name: str, weights: Mapping[str, Tensor]) -> None:
    """Reads the file again. Raises NotEqual if its architecture or its tensors differ."""
    import gguf

    reader = gguf.GGUFReader(path)
    found = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    same = found.keys() == weights.keys() and all(
        torch.equal(found[each], weight) for each, weight in weights.items()
    )
    if not same or reader.fields["general.architecture"].contents() != name:
        raise NotEqual(f"{path.name} has other tensors than the model when it is read again")
