"""Finds and reads checkpoint files, and builds models from them. Reading never runs code from a
file."""

from headscope.checkpoint.building import build_model, build_model_for, check_model
from headscope.checkpoint.file import read, read_foreign
from headscope.checkpoint.finding import find, pick_device
from headscope.checkpoint.loading import (
    AttentionReading,
    Checkpoint,
    check_same_tokenizer,
    config_of,
    contents,
    load,
    load_weights,
    model_weights,
    sources,
    stored_corpus,
    with_block_size,
)

__all__ = [
    "AttentionReading",
    "Checkpoint",
    "build_model",
    "build_model_for",
    "check_model",
    "check_same_tokenizer",
    "config_of",
    "contents",
    "find",
    "load",
    "load_weights",
    "model_weights",
    "pick_device",
    "read",
    "read_foreign",
    "sources",
    "stored_corpus",
    "with_block_size",
]
