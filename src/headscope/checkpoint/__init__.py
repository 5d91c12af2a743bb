"""Finds and reads checkpoint files, and builds models from them. Reading never runs code from a
file."""

from headscope.checkpoint.building import build_model, build_model_for
from headscope.checkpoint.file import Stored, contents, read, write
from headscope.checkpoint.finding import find, pick_device
from headscope.checkpoint.loading import (
    AttentionReading,
    Checkpoint,
    check_weights,
    load,
    load_weights,
    own_tokenizer,
    sources,
    stored_corpus,
    with_block_size,
)

__all__ = [
    "AttentionReading",
    "Checkpoint",
    "Stored",
    "build_model",
    "build_model_for",
    "check_weights",
    "contents",
    "find",
    "load",
    "load_weights",
    "own_tokenizer",
    "pick_device",
    "read",
    "sources",
    "stored_corpus",
    "with_block_size",
    "write",
]
