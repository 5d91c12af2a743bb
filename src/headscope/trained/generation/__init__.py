"""Generates tokens and text from a model. Prints nothing and loads no checkpoints."""

from headscope.trained.generation.choose_token import check_sampling, choose_tokens
from headscope.trained.generation.compiled import compile_decoding
from headscope.trained.generation.texts import generate_text, generate_texts
from headscope.trained.generation.tokens import DecodeStep, check_samples, generate_tokens

__all__ = ["DecodeStep", "check_samples", "check_sampling", "choose_tokens", "compile_decoding"]
__all__ += ["generate_text", "generate_texts", "generate_tokens"]
