"""Generates tokens and text from a model. Prints nothing and loads no checkpoints."""

from headscope.trained.generation.choose_token import check_sampling as check_sampling
from headscope.trained.generation.choose_token import choose_tokens as choose_tokens
from headscope.trained.generation.compiled import compile_decoding as compile_decoding
from headscope.trained.generation.texts import generate_text as generate_text
from headscope.trained.generation.texts import generate_texts as generate_texts
from headscope.trained.generation.tokens import DecodeStep as DecodeStep
from headscope.trained.generation.tokens import check_samples as check_samples
from headscope.trained.generation.tokens import generate_tokens as generate_tokens
