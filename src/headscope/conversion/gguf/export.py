"""Writes a checkpoint as a GGUF file, the format of llama.cpp: convert.py to=gguf.

The names of the fields are those of the package gguf.
"""

import copy
import errno
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.checkpoint import Checkpoint
from headscope.config.model import AlibiConfig, RotaryConfig
from headscope.conversion.gguf.fit import architecture
from headscope.conversion.gguf.weights import FUSED, gguf_weights
from headscope.conversion.huggingface.tokenizer_files import tokenizer_files
from headscope.conversion.new_folder import new_folder
from headscope.conversion.proof import NotEqual
from headscope.data.tokenizer import END_OF_TEXT
from headscope.errors import UserError
from headscope.terminal import printable

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
    name, reason = architecture(loaded.config.model)
    if name is None:
        raise UserError(f"to=gguf: {reason}; use to=huggingface or to=safetensors")
    if loaded.tokenizer.name not in ("bpe", "gpt2"):
        raise UserError(
            f"to=gguf: llama.cpp has no tokenizer={loaded.tokenizer.name}, only byte-level BPE "
            "(tokenizer=bpe or gpt2); use to=huggingface or to=safetensors"
        )
    weights = gguf_weights(copy.deepcopy(loaded.model).cpu(), name)
    with new_folder(output) as folder:
        write(loaded, name, weights, folder / "model.gguf")
        check(folder / "model.gguf", name, weights)
    return [
        f"Checked: model.gguf was read again, and its {len(weights)} tensors are equal. llama.cpp "
        "was not run.",
        f"Written: {output}/model.gguf (architecture {name}). To run it:",
        f"  llama-cli --model {output}/model.gguf --prompt 'My fellow citizens' --no-conversation",
    ]


def write(loaded: Checkpoint, name: str, weights: Mapping[str, Tensor], path: Path) -> None:
    """Writes the GGUF file of the architecture `name`."""
    import gguf

    writer = gguf.GGUFWriter(path, name)
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

    gpt, model = loaded.model, loaded.config.model
    layer: Any = gpt.attentions[0]
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
    eps = block.attention_norm.eps
    (writer.add_layer_norm_eps if name in FUSED else writer.add_layer_norm_rms_eps)(eps)
    if name == "gptneox":
        writer.add_parallel_residual(False)
    if isinstance(model.position, AlibiConfig):
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
    content = json.loads(tokenizer_files(loaded.tokenizer)["tokenizer.json"])
    vocabulary = {**content["model"]["vocab"], END_OF_TEXT: end}
    tokens, kinds = [f"[PAD{row}]" for row in rows], [gguf.TokenType.UNUSED for _ in rows]
    for token, row in vocabulary.items():
        tokens[row], kinds[row] = token, gguf.TokenType.NORMAL
    kinds[end] = gguf.TokenType.CONTROL
    merges = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)


def check(path: Path, name: str, weights: Mapping[str, Tensor]) -> None:
    """Reads the file again. Raises NotEqual if its architecture or its tensors differ."""
    import gguf

    reader = gguf.GGUFReader(path)
    found = reader.fields["general.architecture"].contents()
    if found != name:
        raise NotEqual(f"the architecture is {found} instead of {name}")
    tensors = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    if tensors.keys() != weights.keys():
        raise NotEqual(f"tensors differ: {sorted(tensors.keys() ^ weights.keys())[:3]}")
    for tensor_name, weight in weights.items():
        if not torch.equal(tensors[tensor_name], weight):
            raise NotEqual(f"the tensor {tensor_name} differs")
