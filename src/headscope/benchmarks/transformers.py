"""Converts a headscope model to GPT-2 of the package transformers, to compare the two."""

import importlib.util
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from headscope.benchmarks.runner import Request
from headscope.config.model import ModelConfig
from headscope.errors import UserError
from headscope.nn import GPT

LAYERS = {
    "ln_1": "attention_norm",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out_proj",
    "ln_2": "feed_forward_norm",
    "mlp.c_fc": "feed_forward.up_proj",
    "mlp.c_proj": "feed_forward.down_proj",
}
"""Maps the name of each layer in a GPT-2 block to its name in a headscope block."""


def our_names(layers: int) -> dict[str, str]:
    """Maps the name of each layer in a GPT-2 with `layers` blocks to its name in headscope."""
    blocks = {
        f"transformer.h.{number}.{theirs}": f"blocks.{number}.{ours}"
        for number in range(layers)
        for theirs, ours in LAYERS.items()
    }
    ends = {"wte": "embedding", "wpe": "position.table", "ln_f": "norm"}
    return {f"transformer.{theirs}": ours for theirs, ours in ends.items()} | blocks


def gpt2_of(model: GPT) -> Any:
    """A GPT2LMHeadModel with a copy of the weights of `model`, so that both give the same logits.
    `model` must have the architecture of GPT-2. Biases that it does not have are zero."""
    require_transformers()
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {
        "vocab_size": model.embedding.num_embeddings,
        "n_positions": model.block_size,
        "n_embd": model.embedding.embedding_dim,
        "n_layer": len(model.blocks),
        "n_head": model.attentions[0].heads,
    }
    sizes |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes |= {"activation_function": "gelu_pytorch_tanh"}
    config = GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    made: Any = GPT2LMHeadModel(config)
    copied = {"lm_head.weight": model.embedding.weight}
    for theirs, ours in our_names(len(model.blocks)).items():
        layer = model.get_submodule(ours)
        for part, value in layer.named_parameters():
            # GPT-2 stores the weights of linear layers transposed.
            transposed = isinstance(layer, nn.Linear) and part == "weight"
            copied[f"{theirs}.{part}"] = value.T if transposed else value
    with torch.no_grad():
        for name, value in made.state_dict().items():
            value.copy_(copied[name]) if name in copied else value.zero_()
    return made.to(model.device, model.embedding.weight.dtype).train(model.training)


def require_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise UserError(
            "this needs the package transformers: pip install -e '.[huggingface]'; "
            "suite=training and suite=memory run without it with suite.peers=false"
        )


def check_gpt2(model: ModelConfig, request: Request) -> None:
    """Raises UserError when `model` does not have the architecture of GPT-2, model=gpt2."""
    any_value = ("block_size", "embed_dim", "layers", "heads", "bias", "qkv_bias")
    same = {key: getattr(model, key) for key in any_value}
    if model != replace(request.compose(ModelConfig, "model/gpt2", [], key="model"), **same):
        raise UserError(
            "suite.peers=true compares with GPT-2 of transformers: add model=gpt2, change only its "
            "sizes and biases, or set suite.peers=false"
        )
