"""Small models of every choice in conf/model, as checkpoints."""

import copy
from pathlib import Path

import torch
from checkpoint_files import configuration, content, save
from choices import EACH

from headscope import checkpoint
from headscope.checkpoint import Checkpoint
from headscope.data.tokenizer import Tokenizer

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
    "model.ngrams=3 model.ngram_buckets=31",
    "model.document_mask=true",
    "model.document_mask=true model.ngrams=2 model.ngram_buckets=31 model/position=learned",
    "model.scale_embedding=true model.attention.qk_norm=true model.attention.scale=0.3",
    "model.head_dim=6 model.ff_dim=10 model.dropout=0.1",
    "model.attention.out_proj=false model/position=rotary model.position.interleaved=true",
]
"""Words that select models: each attention, position and switch at least once."""


def saved(folder: Path, words: str, tokenizer: Tokenizer | None = None, **config) -> Checkpoint:
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
    return checkpoint.load(folder / "best.safetensors")
