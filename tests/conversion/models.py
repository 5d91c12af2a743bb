"""Small models of every choice in conf/model, as checkpoints."""

import copy
from pathlib import Path

import torch
from checkpoint_files import configuration, content, save
from choices import EACH

from headscope import trained
from headscope.data.tokenizer import Tokenizer
from headscope.trained import TrainedModel

PARTS = [f"model/attention={attention} model/position={position}" for attention, position in EACH]
CHOICES = [
    *PARTS,
    "model=gpt2",
    "model=modern",
    "model/norm=rms",
    "model/norm=rms model.norm.gain=false model/activation=relu_squared model.logit_cap=15",
    "model/norm=layer model.bias=true model.norm.eps=1e-3",
    "model/activation=gelu_tanh model.qkv_bias=true model.tied_head=false",
    "model/feed_forward=swiglu model.ff_dim=24 model.bias=true",
    "model/feed_forward=none model/norm=none model/position=rotary",
    "model/feed_forward=none model.bias=true model/position=learned",
    "model.ngrams=3 model.ngram_buckets=31",
    "model.document_mask=true",
    "model.document_mask=true model.ngrams=2 model.ngram_buckets=31 model/position=learned",
    "model.scale_embedding=true model.attention.qk_norm=true model.attention.scale=0.3",
    "model.head_dim=6 model.ff_dim=10 model.dropout=0.1",
    "model.attention.out_proj=false model/position=rotary model.position.interleaved=true",
    "model/block=parallel model.windows=[0,3] model.head_dim=4 model/position=rotary "
    "model.position.share=0.5",
    "model/block=parallel model/attention=additive model.windows=[4] model.bias=true",
]
"""Words that select models: each attention, position and switch at least once."""

OWN = "model/attention=additive model/position=relative"
"""A model that only our own class can express."""

GPT2 = "model=gpt2 model.bias=false model.qkv_bias=false"
SCALED = "model.scale_embedding=true model.attention.scale=0.6"
SHARE = "model.heads=2 model.position.share=0.5"
INTERLEAVED = "model.position.interleaved=true"
OTHER_HEADS = "model.head_dim=12 model.tied_head=false"
RMS = "model/norm=rms model/position=rotary"
RELU = f"{RMS} model/activation=relu_squared"
SWIGLU = f"{RMS} model/feed_forward=swiglu"
QWEN3 = f"{SWIGLU} model.norm.eps=1e-6 model.attention.qk_norm=true"
GROUPED = "model/attention=grouped_query"
EXACT = {
    "GPT2LMHeadModel": {
        "model=gpt2": "gpt2",
        f"{GPT2} model.tied_head=false model.ff_dim=40 model.norm.eps=0.01": "gpt2",
        "model=gpt2 model/activation=gelu model.tied_head=false model.bias=false": None,
        "model=gpt2 model/attention=stacked_heads model/activation=relu_squared": None,
        "model=gpt2 model/position=sinusoidal model/attention=stacked_heads": "gpt2",
        f"model=gpt2 model/position=sinusoidal model.qkv_bias=false {SCALED}": "gpt2",
        "model=gpt2 model/position=none model.attention.out_proj=false": "gpt2",
        "model=gpt2 model/position=digits model/attention=single_head": "gpt2",
    },
    "GPTNeoXForCausalLM": {
        "model.bias=false": None,
        "model=gpt2 model/position=rotary model.heads=2 model.position.base=500": "gptneox",
        f"model.qkv_bias=true model.tied_head=false {INTERLEAVED} {SCALED}": None,
        f"{GPT2} model/position=rotary model.attention.out_proj=false {INTERLEAVED}": "gptneox",
        f"model=gpt2 model/position=rotary model/attention=stacked_heads {INTERLEAVED}": "gptneox",
        f"model=gpt2 model/position=rotary model/block=parallel {SHARE}": "gptneox",
        f"{GPT2} model/position=rotary {SHARE} {INTERLEAVED}": "gptneox",
    },
    "MistralForCausalLM": {
        f"{SWIGLU} model.windows=[4] {GROUPED}": None,
        f"{SWIGLU} model.windows=[3,3] model/attention=multi_query {OTHER_HEADS}": None,
    },
    "MptForCausalLM": {
        "model/position=alibi model.norm.eps=0.01": None,
        f"model/position=alibi model.heads=2 {SCALED}": None,
        "model/position=alibi model.heads=6 model.embed_dim=24 model.tied_head=false": None,
    },
    "ArceeForCausalLM": {
        f"{RELU} model.position.base=100": "arcee",
        f"{RELU} model.attention.scale=0.3 model.qkv_bias=true {GROUPED}": "arcee",
        f"{RMS} model/activation=gelu model.norm.gain=true model.bias=true": None,
    },
    "LlamaForCausalLM": {
        f"{SWIGLU} model.norm.gain=true model.norm.eps=0.01 {GROUPED}": "llama",
        f"{SWIGLU} model.bias=true model.qkv_bias=true": "llama",
        f"{SWIGLU} model.qkv_bias=true model.ff_dim=24 model.norm.gain=false": "llama",
        f"{SWIGLU} model/attention=multi_query {OTHER_HEADS} {INTERLEAVED}": "llama",
    },
    "Qwen3ForCausalLM": {
        f"{QWEN3} model.norm.gain=true": "qwen3",
        f"{QWEN3} model.qkv_bias=true {INTERLEAVED}": "qwen3",
        f"{QWEN3} model.attention.scale=0.2 {GROUPED} {OTHER_HEADS}": "qwen3",
    },
}
"""Models that the classes of transformers compute, and the architecture of llama.cpp that does."""


def saved(folder: Path, words: str, tokenizer: Tokenizer | None = None, **config) -> TrainedModel:
    """A checkpoint of a model whose every parameter is far from its initial value. `config` are
    other keys of the configuration."""
    chosen = copy.deepcopy(configuration(*words.split())) | config
    stored, model = content(chosen, tokenizer)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    save(stored, folder / "best.safetensors")
    return trained.load(folder / "best.safetensors")
