"""Our model as GPT-2 of the package transformers, to be measured beside ours."""

import importlib.util
import math
from typing import Any

import torch
from torch import nn

from headscope.errors import UserError
from headscope.nn import GPT, Learned, MultiHeadAttention, gelu

LAYERS = {
    "ln_1": "attention_norm",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out_proj",
    "ln_2": "feed_forward_norm",
    "mlp.c_fc": "feed_forward.up_proj",
    "mlp.c_proj": "feed_forward.down_proj",
}
"""Layers of a block by their names in GPT-2, with our names."""


def gpt2_of(model: GPT) -> Any:
    """GPT2LMHeadModel with a copy of our weights, which gives the same logits; biases that ours
    lacks are zero. Raises UserError when the package is missing, or the model has another form."""
    require_transformers()
    from transformers import GPT2Config, GPT2LMHeadModel

    check_form(model)
    sizes: dict[str, Any] = {
        "vocab_size": model.embedding.num_embeddings,
        "n_positions": model.block_size,
        "n_embd": model.embedding.embedding_dim,
        "n_layer": len(model.blocks),
        "n_head": model.attentions[0].heads,
    }
    sizes |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(**sizes, activation_function="gelu", bos_token_id=None, eos_token_id=None)
    theirs: Any = GPT2LMHeadModel(config)
    copied = {
        "transformer.wte.weight": model.embedding.weight,
        "transformer.wpe.weight": model.position.get_parameter("table.weight"),
        "lm_head.weight": model.embedding.weight,
    }
    layers = {"transformer.ln_f": model.norm}
    for number, block in enumerate(model.blocks):
        for name, ours in LAYERS.items():
            layers[f"transformer.h.{number}.{name}"] = block.get_submodule(ours)
    for name, layer in layers.items():
        for part, value in layer.named_parameters():  # GPT-2 stores linear layers transposed
            transposed = isinstance(layer, nn.Linear) and part == "weight"
            copied[f"{name}.{part}"] = value.T if transposed else value
    with torch.no_grad():
        for name, value in theirs.state_dict().items():
            value.copy_(copied[name]) if name in copied else value.zero_()
    return theirs.to(model.device, model.embedding.weight.dtype).train(model.training)


def require_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise UserError(
            "this needs the package transformers: pip install -e '.[peers]'; suite=training and "
            "suite=memory run without it with suite.peers=false"
        )


def check_form(model: GPT) -> None:
    attention = model.attentions[0]
    activation = model.get_submodule("blocks.0.feed_forward").activation
    fits = (
        isinstance(model.position, Learned)
        and type(attention) is MultiHeadAttention
        and attention.kv_heads == attention.heads
        and not attention.qk_norm
        and attention.has_out_proj
        and attention.scale == 1 / math.sqrt(attention.head_dim)
        and attention.dropout == 0
        and attention.heads * attention.head_dim == model.embedding.embedding_dim
        and isinstance(model.norm, nn.LayerNorm)
        and getattr(activation, "func", activation) is gelu
        and model.head.weight is model.embedding.weight
        and model.logit_cap is None
        and model.ngrams == 1
        and isinstance(model.embedding_norm, nn.Identity)
        and model.embedding_scale == 1
    )
    if not fits:
        raise UserError(
            "suite.peers=true compares with GPT-2 of transformers: learned positions, multi-head "
            "attention, LayerNorm, GELU, a tied output head, no dropout; keep these defaults, or "
            "set suite.peers=false"
        )
