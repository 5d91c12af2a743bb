"""Converts a headscope model to GPT-2 of the package transformers, to compare the two."""

from typing import Any

from benchmarks.runner import Request
from headscope.config.parts import Part
from headscope.conversion.classes import GPT2
from headscope.conversion.proof import converted
from headscope.conversion.settings import require_transformers
from headscope.errors import UserError
from headscope.nn import GPT


def gpt2_of(model: GPT, config: Part) -> Any:
    """A GPT2LMHeadModel with the weights of `model`, so that both give the same logits. `config` is
    the configuration of `model`, which must have the architecture of GPT-2. Biases that it does not
    have are zero."""
    _, made = converted(GPT2(), model, config)
    made.set_attn_implementation("sdpa")  # its default; conversions use eager attention
    return made.to(model.device, model.embedding.weight.dtype).train(model.training)


def check_gpt2(model: Part, request: Request) -> None:
    """Raises UserError when `model` does not have the architecture of GPT-2, model=gpt2, or when
    transformers is not installed."""
    require_transformers("suite.peers=true")
    any_value = ("block_size", "embed_dim", "layers", "heads", "bias", "qkv_bias")
    same = {key: getattr(model, key) for key in any_value}
    if model != Part(request.compose("model/gpt2", [], key="model"), **same):
        raise UserError(
            "suite.peers=true compares with GPT-2 of transformers: add model=gpt2, change only its "
            "sizes and biases, or set suite.peers=false"
        )
