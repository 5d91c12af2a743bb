"""Logs sampled text after every validation."""

from typing import Annotated, Any

from lightning.pytorch import Callback, Trainer

from headscope.config.parse import NonNegative, Positive
from headscope.nn.capture import evaluating
from headscope.trained.generation.generate import generate_text
from headscope.training.loggers import log_text
from headscope.training.module import LanguageModel


class Samples(Callback):
    """Logs up to `max_new_tokens` tokens of text that the model generates from `prompt`, under the
    tag `samples`. The seed is always that of the run."""

    def __init__(
        self,
        *,
        prompt: str = "",
        max_new_tokens: Annotated[int, 0, 100_000] = 100,
        temperature: NonNegative = 0.8,
        top_k: Positive | None = None,
    ) -> None:
        self.prompt, self.max_new_tokens = prompt, max_new_tokens
        self.temperature, self.top_k = temperature, top_k

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.max_new_tokens and not pl_module.tokenizer.encode_prompt(self.prompt):
            pl_module.tokenizer.first_token()  # raises UserError if there is none

    def sample(self, module: LanguageModel, prompt: str) -> str:
        """`prompt`, followed by the text that the model generates."""
        options: Any = {"temperature": self.temperature, "top_k": self.top_k, "seed": module.seed}
        options["max_new_tokens"] = self.max_new_tokens
        with evaluating(module.model):
            pieces = generate_text(module.model, module.tokenizer, prompt, **options)
            return prompt + "".join(pieces)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        training = trainer.state.fn == "fit" and not trainer.sanity_checking
        if training and self.max_new_tokens and trainer.loggers and trainer.is_global_zero:
            text = self.sample(pl_module, self.prompt)
            log_text(trainer, "samples", text, trainer.global_step)
