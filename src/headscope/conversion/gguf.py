"""Writes a checkpoint as a GGUF file, the format of llama.cpp: convert.py to=gguf.

A model fits an architecture of llama.cpp if the class of transformers with this architecture
computes the same function. The names of the fields and tensors are those of the package gguf.
"""

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.config.parts import Part
from headscope.conversion.classes import INSTEAD, divide, name_of, part, sizes, table
from headscope.conversion.gguf_file import arranged
from headscope.conversion.proof import NotEqual, converted, find_class, standard_form, words
from headscope.conversion.settings import quiet_transformers
from headscope.conversion.tokenizer_files import tokenizer_files
from headscope.errors import UserError
from headscope.files import new_folder
from headscope.terminal import printable
from headscope.trained import TrainedModel

SIZES = table(
    "context_length=block_size embedding_length=embed_dim block_count=layers head_count=heads "
    "head_count_kv=kv_heads key_length=head_dim value_length=head_dim feed_forward_length=ff_dim"
)
NORM_EPS = {"LayerNorm": "layer_norm_eps", "RMSNorm": "layer_norm_rms_eps"}


@torch.no_grad()
def export_gguf(loaded: TrainedModel, output: Path) -> list[str]:
    """Writes `loaded` to model.gguf in the new folder `output`. Returns lines to print.

    Raises UserError if llama.cpp has no architecture that fits the model, or no tokenizer that fits
    its tokenizer. Raises NotEqual if the file, read again, has other weights.
    """
    if loaded.tokenizer.name not in ("bpe", "gpt2"):
        problem = f"to=gguf: llama.cpp has no tokenizer={loaded.tokenizer.name}"
        raise UserError(f"{problem}, only byte-level BPE (tokenizer=bpe or gpt2); {INSTEAD}")
    with quiet_transformers("to=gguf"):
        architecture, tensors = fitting(loaded)
    with new_folder(output) as folder:
        write(folder / "model.gguf", architecture, fields(loaded, architecture), tensors)
    return [
        f"Checked: model.gguf was read again, and its {len(tensors)} tensors are equal. llama.cpp "
        "was not run.",
        f"Written: {output}/model.gguf (architecture {architecture}). To run it:",
        f"  llama-cli --model {output}/model.gguf --prompt 'My fellow citizens' --no-conversation",
    ]


def fitting(loaded: TrainedModel) -> tuple[str, dict[str, np.ndarray]]:
    """The architecture in llama.cpp that computes the function of the model, and its tensors, with
    axes in PyTorch's order. Raises UserError if there is none."""
    import gguf

    gpt, model = loaded.model, loaded.config.model
    activation, provable = name_of(model.activation), model
    if name_of(model.norm) == "LayerNorm":
        # llama.cpp computes GELU with tanh where the class of transformers computes it exactly.
        fits, provable = activation == "GeluTanh", Part(model, activation=Part(part("Gelu")))
    else:
        arcee = activation == "ReluSquared" and not model.bias
        fits = arcee or name_of(model.feed_forward) == "SwiGLU"
    theirs = find_class(gpt, provable) if fits and not model.windows else None
    if theirs is None:
        problem = f"to=gguf: no architecture of llama.cpp computes this model ({words(model)})"
        those = "with LayerNorm it has model/activation=gelu_tanh, with RMSNorm swiglu"
        raise UserError(f"{problem}: {those} or relu_squared; {INSTEAD}")
    name = theirs.model_type.replace("_", "")
    weights: dict[str, Tensor] = {}
    for ours, weight in standard_form(gpt, provable)[1].items():
        weight = arranged(name, ours, weight, gpt, to_ours=False)
        weights |= divide(weight, theirs.counterpart(ours), gpt)
    # Gains that ours does not have are ones, and with LayerNorm, missing biases are zeros.
    for key, constant in theirs.parameters(converted(theirs, gpt, provable)[1]).items():
        if theirs.norm == "LayerNorm" or key.endswith("weight"):
            weights.setdefault(key, constant)
    if name == "gptneox":
        # llama.cpp needs the output head, even if it is tied.
        weights.setdefault("embed_out.weight", gpt.head.weight)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], len(gpt.blocks))
    return name, {
        str(names.get_name(key, (".weight", ".bias"))): weight.detach().cpu().float().numpy()
        for key, weight in weights.items()
    }


def fields(loaded: TrainedModel, name: str) -> dict[str, Any]:
    """The fields of the architecture `name`: GGUFWriter has a method add_<key> for each key. The
    tokens are in the byte-level alphabet of GPT-2. llama.cpp needs one for each row of the
    embedding, so rows without a token get an unused one."""
    import gguf

    gpt, model = loaded.model, loaded.config.model
    of_model = sizes(gpt, model)
    rows, end = range(loaded.tokenizer.vocab_size), loaded.tokenizer.end_of_text
    assert end is not None  # a byte-level BPE has one
    content = json.loads(tokenizer_files(loaded.tokenizer)["tokenizer.json"])["model"]
    tokens, kinds = [f"[PAD{row}]" for row in rows], [gguf.TokenType.UNUSED for _ in rows]
    for token, row in content["vocab"].items():
        tokens[row], kinds[row] = token, gguf.TokenType.NORMAL
    kinds[end] = gguf.TokenType.CONTROL
    made = {
        "name": printable(loaded.config.name)[:200],
        "file_type": gguf.LlamaFileType.ALL_F32,
        "vocab_size": gpt.vocab_size,
        **{theirs: of_model[ours] for theirs, ours in SIZES.items()},
        NORM_EPS[name_of(model.norm)]: gpt.norm.eps,
        "tokenizer_model": "gpt2",
        "tokenizer_pre": "gpt-2",
        "token_list": tokens,
        "token_types": kinds,
        "token_merges": [" ".join(pair) for pair in content["merges"]],
        "bos_token_id": end,
        "eos_token_id": end,
        "add_bos_token": loaded.tokenizer.adds_begin,
    }
    if name == "gptneox":
        made["parallel_residual"] = name_of(model.block) == "ParallelBlock"
    if name == "mpt":
        made["max_alibi_bias"] = 8.0  # for the slopes of `alibi_slopes`
    if name_of(model.position) == "Rotary":
        made |= {"rope_dimension_count": gpt.position.rotated, "rope_freq_base": of_model["base"]}
    return made


def write(path: Path, name: str, settings: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Writes a GGUF file of the architecture `name`, and reads it. NotEqual if it differs."""
    import gguf

    writer: Any = gguf.GGUFWriter(path, name)
    try:
        for key, value in settings.items():
            getattr(writer, f"add_{key}")(value)
        for key, tensor in tensors.items():
            writer.add_tensor(key, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    except OSError as error:
        if error.errno is None:  # NumPy wrote only a part of a tensor
            raise OSError(errno.ENOSPC, f"the disk is full ({error})") from error
        raise
    finally:
        writer.close()
    reader = gguf.GGUFReader(path)
    written = {tensor.name: tensor.data for tensor in reader.tensors}
    same = written.keys() == tensors.keys() and all(
        np.array_equal(written[key], tensor) for key, tensor in tensors.items()
    )
    if not same or reader.fields["general.architecture"].contents() != name:
        raise NotEqual(f"{path.name} has other tensors than the model when it is read again")
