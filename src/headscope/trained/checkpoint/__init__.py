"""Finds and reads checkpoint files, without running code from them, and builds models."""

from headscope.trained.checkpoint.building import build_model, build_model_for
from headscope.trained.checkpoint.file import Stored, contents, read, write
from headscope.trained.checkpoint.finding import find, is_model_folder, pick_device, steps_of
from headscope.trained.checkpoint.loading import check_sizes, load_weights, own_tokenizer, sources

__all__ = ["Stored", "build_model", "build_model_for", "check_sizes", "contents", "find"]
__all__ += ["is_model_folder", "load_weights", "own_tokenizer", "pick_device", "read", "sources"]
__all__ += ["steps_of", "write"]
