"""The same model as others have it, to be measured beside ours."""

import importlib.util
import math
from typing import Any

import torch
from torch import nn

from headscope.errors import UserError
from headscope.nn import GPT, Learned, MultiHeadAttention, gelu


def hugging_face(model: GPT) -> Any:
    """GPT-2 of the package `transformers` with a copy of our weights, which gives the same logits.

    Where ours has no biases, its own are zero. Raises UserError when the package is not here, or
    the model not in GPT-2's form.
    """
    require_transformers()
    from transformers import GPT2Config, GPT2LMHeadModel

    check_form(model)
    attention = model.attentions[0]
    theirs: Any = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=model.embedding.num_embeddings,
            n_positions=model.block_size,
            n_embd=model.embedding.embedding_dim,
            n_layer=len(model.blocks),
            n_head=attention.heads,
            activation_function="gelu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    copied = {
        "transformer.wte.weight": model.embedding.weight,
        "transformer.wpe.weight": model.position.get_parameter("table.weight"),
        "lm_head.weight": model.embedding.weight,
        **of_layer("transformer.ln_f", model.norm),
    }
    for number, block in enumerate(model.blocks):
        names = {
            "ln_1": "attention_norm",
            "attn.c_attn": "attention.qkv",
            "attn.c_proj": "attention.out_proj",
            "ln_2": "feed_forward_norm",
            "mlp.c_fc": "feed_forward.up_proj",
            "mlp.c_proj": "feed_forward.down_proj",
        }
        for name, ours in names.items():
            copied |= of_layer(f"transformer.h.{number}.{name}", block.get_submodule(ours))
    state = theirs.state_dict()
    with torch.no_grad():
        for name, value in state.items():
            value.copy_(copied[name]) if name in copied else value.zero_()
    return theirs.to(model.device, model.embedding.weight.dtype).train(model.training)


def require_transformers() -> None:
    """Raises UserError when the package is not here."""
    if importlib.util.find_spec("transformers") is None:
        raise UserError(
            "this needs the package transformers: pip install -e '.[peers]'; suite=training and "
            "suite=memory do without it when you say suite.peers=false"
        )


def of_layer(name: str, layer: nn.Module) -> dict[str, torch.Tensor]:
    """Its weights by their name there, where matrices of linear layers are turned on their side."""
    found = {}
    for part, value in layer.named_parameters():
        turned = isinstance(layer, nn.Linear) and part == "weight"
        found[f"{name}.{part}"] = value.T if turned else value
    return found


def check_form(model: GPT) -> None:
    """Raises UserError when GPT-2 of `transformers` cannot be this model."""
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
        and not len(model.previous_token_embeddings)
        and isinstance(model.embedding_norm, nn.Identity)
        and model.embedding_scale == 1
    )
    if not fits:
        raise UserError(
            "suite.peers=true compares with GPT-2 of transformers, which has learned positions, "
            "multi-head attention, LayerNorm, GELU and a tied head alone, here without dropout: "
            "leave these as they are, or say suite.peers=false"
        )
