"""Logs sampled text to TensorBoard after every validation."""

import re

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from headscope.data.batches import first_passage
from headscope.data.tokenizer import Tokenizer
from headscope.generation import generate_text
from headscope.nn import GPT
from headscope.training.callbacks.clock import timer_paused
from headscope.training.callbacks.tensorboard_log import tensorboard_writers
from headscope.training.module import LanguageModel


class Samples(Callback):
    """Logs text that the model generates from `prompt`, under the tag `samples`. Always uses the
    same `seed`."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        prompt: str,
        max_new_tokens: int,
        temperature: float,
        top_k: int | None,
        seed: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.prompt = prompt
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.top_k = top_k
        self.seed = seed

    def sample(self, model: GPT, prompt: str | None = None) -> str:
        """A prompt, by default `self.prompt`, followed by the text that `model` generates."""
        prompt = self.prompt if prompt is None else prompt
        training = model.training
        model.eval()
        try:
            pieces = generate_text(
                model,
                self.tokenizer,
                prompt,
                max_new_tokens=self.max_new_tokens,
                temperature=self.temperature,
                top_k=self.top_k,
                seed=self.seed,
            )
            return prompt + "".join(pieces)
        finally:
            model.train(training)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit" or not trainer.loggers or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, LanguageModel)
        with timer_paused(trainer):
            text = as_markdown(self.sample(pl_module.model))
            for writer in tensorboard_writers(trainer):
                writer.add_text("samples", text, trainer.global_step)


def first_words(tokenizer: Tokenizer, tokens: np.ndarray) -> str:
    """The first words of a text, or where words are not separated by spaces, its first characters.
    They begin a sample that one can read."""
    text = tokenizer.decode(first_passage(tokens, 32)).rstrip("\N{REPLACEMENT CHARACTER}")[:32]
    words = [word.span() for word in re.finditer(r"\S+", text)]
    words = words[text[:1].islower() and len(words) > 3 :]  # half a word: one text was split in two
    if len(words) < 3:
        return text[slice(*words[0])][:12] if words else ""
    return text[words[0][0] : words[-2][1]]


def as_markdown(text: str) -> str:
    """`text` as an indented code block, which TensorBoard shows unchanged."""
    return "\n".join(f"    {line}" for line in text.splitlines())
