"""The classes of Hugging Face transformers that compute the same function as some of our models.

Each class says which of our models it expresses exactly, and converts configurations and weights in
both directions. Nothing here opens a file or imports transformers.
"""

from headscope.config.model import ModelConfig
from headscope.conversion.huggingface.classes.base import HuggingFaceClass
from headscope.conversion.huggingface.classes.gpt2 import GPT2
from headscope.conversion.huggingface.classes.gpt_neox import GPTNeoX
from headscope.conversion.huggingface.classes.llama import Arcee, Llama, Qwen3
from headscope.conversion.huggingface.classes.mpt import Mpt
from headscope.conversion.huggingface.classes.nanochat import NanoChat

__all__ = ["CLASSES", "HuggingFaceClass", "class_of_type", "find_class", "reasons"]

CLASSES: tuple[HuggingFaceClass, ...] = (
    GPT2(),
    GPTNeoX(),
    Mpt(),
    Llama(),
    Arcee(),
    Qwen3(),
    NanoChat(),
)
"""All classes. No model of ours fits two of them, so the order has no effect on `find_class`."""


def find_class(model: ModelConfig) -> HuggingFaceClass | None:
    """The first class that expresses `model` exactly, or None if there is none."""
    return next((each for each in CLASSES if each.reason(model) is None), None)


def reasons(model: ModelConfig) -> dict[str, str | None]:
    """For the name of each class: None if it expresses `model` exactly, or else the reason why it
    does not."""
    return {each.name: each.reason(model) for each in CLASSES}


def class_of_type(model_type: str) -> HuggingFaceClass | None:
    """The class with this `model_type` in its config.json, or None if there is none."""
    return next((each for each in CLASSES if each.model_type == model_type), None)
