"""Sampling from a model: tokens, and text of them. Prints nothing, opens nothing."""

from headscope.generation.compiled import compile_reading
from headscope.generation.picking import check_sampling, check_stop, pick
from headscope.generation.texts import generate_text, generate_texts
from headscope.generation.tokens import Read, generate_tokens

__all__ = [
    "Read",
    "check_sampling",
    "check_stop",
    "compile_reading",
    "generate_text",
    "generate_texts",
    "generate_tokens",
    "pick",
]
