"""A trained model for use from Python: logits, generated text and attention.

Shapes: T tokens, V vocab_size.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope import checkpoint
from headscope.analysis.report.notebook import ShownReading
from headscope.checkpoint import Checkpoint
from headscope.conversion.export import export_huggingface
from headscope.conversion.folder import is_model_folder, load_folder
from headscope.errors import UserError
from headscope.generation import generate_text, generate_tokens


class Loaded(Checkpoint):
    """A checkpoint, or the model in a Hugging Face folder, as `headscope.load` returns it.

    `model` is a `GPT` in evaluation mode. `tokenizer` and `config` are those of its run. `step` is
    the training step at which the file `path` was saved, and `precision` the precision of training.
    """

    @torch.no_grad()
    def logits(self, text: str | Sequence[int]) -> Tensor:
        """The logits (T, V), on the CPU, of the next token after each token of a text or token ids.

        Raises UserError if there are no tokens or more than `block_size`, or if the vocabulary
        cannot represent the text.
        """
        tokens = self.tokens(text)
        if not tokens:
            raise UserError("the text is empty: give at least one token")
        return self.model(torch.tensor([tokens], device=self.model.device))[0].cpu()

    def attention(self, text: str | Sequence[int]) -> ShownReading:
        """The attention of the model on a text or on token ids. Only the first `block_size` tokens
        are used. A notebook shows the result as the attention viewer; its `save_html` writes it to
        a file.

        Raises UserError if there are no tokens, if the vocabulary cannot encode the text, or if a
        token id is not in the vocabulary.
        """
        return ShownReading(**vars(super().attention(text)), loaded=self)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = 100,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> str | list[int]:
        """The prompt, a text or token ids, with its continuation. The continuation ends with the
        end-of-text token, or after `max_new_tokens` tokens.

        Without `do_sample`, each new token is the most likely one. With it, a token is sampled from
        softmax(logits / `temperature`), among the `top_k` most likely tokens, and among the most
        likely tokens with a total probability of `top_p`. The same `seed` gives the same text.

        Raises UserError if an option is out of range, or if the vocabulary cannot represent the
        prompt.
        """
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": 0.0}
        if do_sample:
            options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        if isinstance(prompt, str):
            pieces = generate_text(self.model, self.tokenizer, prompt, seed=seed, **options)
            return prompt + "".join(pieces)
        tokens = self.tokens(prompt)
        for (token,) in generate_tokens(self.model, [tokens], seeds=[seed], **options):
            tokens.append(token)
            if token == self.tokenizer.end_of_text:
                break
        return tokens

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the new folder `folder`, which transformers opens, as convert.py to=huggingface
        does. Raises UserError if the folder exists already, or if transformers is missing. Raises
        NotEqual, and leaves no files, if transformers computes other logits or another text."""
        export_huggingface(self, Path(folder))


def load(path: str | Path | None = None, *, device: str | torch.device = "cpu") -> Loaded:
    """See `headscope.load`."""
    chosen = checkpoint.pick_device(str(device))
    if path is not None and is_model_folder(Path(path)):
        found = load_folder(Path(path))
    else:
        found = checkpoint.load(checkpoint.find(None if path is None else str(path)))
    found.model.to(chosen)
    return Loaded(**vars(found))
