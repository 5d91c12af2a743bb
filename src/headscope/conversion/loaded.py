"""A trained model for use from Python: logits, generated text, attention, and what heads do.

Shapes: L layers, H heads, T tokens, C embed_dim, V vocab_size. For several texts with the same
number of tokens, tensors have a first axis B.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from headscope import checkpoint
from headscope.analysis import direct_effects
from headscope.analysis.ablation import ablated_heads, halved_heads, mean_outputs
from headscope.analysis.circuits import copying_scores, has_matrices
from headscope.analysis.direct_effects import HeadWrites, push_directions
from headscope.analysis.head_outputs import MAX_BATCH, parse_head
from headscope.analysis.head_statistics import visible_in
from headscope.analysis.metrics import METRICS
from headscope.analysis.path_patching import needs
from headscope.analysis.repeats import BATCH_SIZE, RepeatProbe, score
from headscope.analysis.report.notebook import ShownReading
from headscope.analysis.trace import Trace, trace
from headscope.checkpoint import Checkpoint
from headscope.conversion.export import export_huggingface
from headscope.conversion.folder import is_model_folder, load_folder
from headscope.errors import UserError
from headscope.generation import generate_text, generate_tokens
from headscope.nn.loss import IGNORED, next_token_loss

Text = str | Sequence[int]
"""A text, or token ids."""


class Loaded(Checkpoint):
    """A checkpoint, or the model in a Hugging Face folder, as `headscope.load` returns it.

    `model` is a `GPT` in evaluation mode. `tokenizer` and `config` are those of its run. `step` is
    the training step at which the file `path` was saved, and `precision` the precision of training.

    If a text is longer than `block_size`, all methods except `generate` use its first `block_size`
    tokens, with a warning.
    """

    @torch.no_grad()
    def logits(self, text: str | Sequence[int]) -> Tensor:
        """The logits (T, V), on the CPU, of the next token after each token of a text or token ids.

        Raises UserError if there are no tokens, if the vocabulary cannot represent the text, or if
        a token id is not in the vocabulary.
        """
        return self.model(self._batch(text))[0].cpu()

    def attention(self, text: str | Sequence[int]) -> ShownReading:
        """The attention of the model on a text or on token ids. A notebook shows the result as the
        attention viewer; its `save_html` writes it to a file. Raises UserError as `logits` does.
        """
        tokens = self._batch(text)[0].tolist()
        return ShownReading(**vars(super().attention(tokens)), loaded=self)

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

    def trace(self, text: Text | Sequence[Text]) -> Trace:
        """The forward pass on a text, or on several texts with the same number of tokens: what each
        head and each feed-forward network adds to the residual stream. See `Trace`. The tensors are
        on the device of the model, and gradients reach its weights.

        Raises UserError as `logits` does, or if the texts have different numbers of tokens.
        """
        texts: Any = text
        if isinstance(text, str) or not any(isinstance(each, str | Sequence) for each in texts):
            return trace(self.model, self._batch(texts)[0])
        batch = [self._batch(each)[0] for each in texts]
        lengths = [len(tokens) for tokens in batch]
        if len(set(lengths)) != 1:
            raise UserError(f"the texts have {lengths} tokens: give texts of equal length")
        return trace(self.model, torch.stack(batch))

    def lens(self, text: Text | Sequence[Text]) -> Tensor:
        """The logit lens (nostalgebraist 2020): the logits (L + 1, T, V) that the final norm and
        the output head compute from the input of each block, and from the output of the last one.
        Raises UserError as `trace` does."""
        return direct_effects.lens(self.model, self.trace(text))

    @torch.no_grad()
    def attribution(
        self, text: Text, position: int = -1, token: str | int | None = None
    ) -> dict[str, float]:
        """Direct logit attribution (Elhage 2021): the share of each part of the model in the logit
        of `token` after the token at `position`, before a soft cap. The shares add up to it. The
        default token is the most likely one. `headscope.analysis.direct_effects.attribution`
        explains the parts.

        Raises UserError as `logits` does, or if there is no such position or token.
        """
        found = self.trace(text)
        position = self._position(position, found)
        number = int(found.logits[position].argmax()) if token is None else self._token(token)
        shares = direct_effects.attribution(self.model, found, position, number)
        return {name: float(share) for name, share in shares.items()}

    @torch.no_grad()
    def writes(self, head: str, text: Text, position: int = -1, *, count: int = 10) -> HeadWrites:
        """What a head, such as "L1H2", writes at the token at `position`: the `count` tokens whose
        logits it raises and lowers most. Raises UserError as `attribution` does, or if there is no
        such head."""
        layer, number = parse_head(head, self.model)
        found = self.trace(text)
        position = self._position(position, found)
        scale = direct_effects.norm_scale(self.model.norm, found.residual[-1, position])
        every = torch.arange(self.model.vocab_size, device=self.model.device)
        directions = push_directions(self.model, every)
        pushes = directions @ (found.heads[layer, number, position] * scale)

        def listed(values: Tensor, sign: int) -> list[tuple[str, float]]:
            most, tokens = values.topk(min(count, len(values)))
            pairs = zip(tokens.tolist(), most.tolist(), strict=True)
            return [(self.tokenizer.labels([token])[0], sign * value) for token, value in pairs]

        known = pushes[: self.tokenizer.vocab_size]
        has_score = has_matrices(self.model)
        copying = float(copying_scores(self.model)[layer, number]) if has_score else math.nan
        return HeadWrites(listed(known, 1), listed(-known, -1), copying)

    @torch.no_grad()
    def needs(
        self,
        head: str,
        text: Text | None = None,
        *,
        metric: str | None = None,
        corrupted: Text | None = None,
    ) -> list[dict[str, str | float]]:
        """What a head, such as "L1H2", needs from each earlier head: a list of rows, the strongest
        first (see `headscope.analysis.path_patching.needs`).

        Path patching (Wang 2022) replaces what an earlier head writes, only where `head` reads it,
        by zero or by what it writes on the text `corrupted`. A row has the change of the loss in
        nats per token or, if given, of the metric of `head`, such as "previous". Without a text,
        both are measured on random texts that contain a passage twice, and the metric may be
        "induction".

        Raises UserError as `logits` does, if there is no such head or metric, or if `corrupted` has
        another number of tokens.
        """
        receiver, factors = parse_head(head, self.model), None
        if text is None:
            special = np.flatnonzero(self.tokenizer.byte_lengths() == 0).tolist()
            probe = RepeatProbe(self.model, texts=BATCH_SIZE, excluded=special)
            tokens, factors = probe.texts.tokens.to(self.model.device), probe.induction
        else:
            tokens = self._batch(text)
        targets = tokens[:, 1:] if text is None else self.targets(tokens)
        if metric is None and not (targets != IGNORED).any():
            raise UserError("the text has one token, or no answer that counts: give a longer one")
        if metric not in (None, *METRICS, *(["induction"] if factors is not None else [])):
            raise UserError(
                f"metric={metric!r}: choose one of {', '.join(METRICS)}, or induction if no "
                "text is given"
            )

        mask = visible_in(self.model, tokens)
        visible = None if mask is None else mask[:, 0]

        def measure(weights: Tensor, x: Tensor) -> float:
            if metric is None:
                return float(next_token_loss(self.model.unembed(x)[:, :-1], targets))
            if metric == "induction":
                assert factors is not None
                return float(score(weights[:, None], factors)) / len(tokens)
            return float(METRICS[metric](weights, visible).mean())

        new = None
        if corrupted is not None:
            other = self._batch(corrupted)
            if other.shape != tokens.shape:
                raise UserError(
                    f"corrupted has {other.size(1)} tokens, and the text {tokens.size(1)}: change "
                    "one of them until both have the same number"
                )
            new = trace(self.model, other).heads
        return needs(self.model, tokens, receiver, measure, new)

    @contextmanager
    def ablate(
        self,
        heads: Sequence[str],
        *,
        by: Literal["zero", "mean", "half"] = "zero",
        text: Text | None = None,
    ) -> Iterator[None]:
        """Inside this `with` block, the outputs of the heads, such as ["L0H3"], are replaced by
        zero, by their mean over the tokens of `text`, or by half of them. Everything else works:
        `logits`, `generate`, `attention`, `trace` and so on.

        Raises UserError if there is no such head, or if `text` is missing for the mean.
        """
        if isinstance(heads, str):
            raise UserError(f"heads={heads!r}: give a list, such as [{heads!r}]")
        if by not in ("zero", "mean", "half") or (by == "mean") != (text is not None):
            raise UserError(
                f'by={by!r}: give by="zero", by="half", or by="mean" and a text for the mean'
            )
        found = [parse_head(head, self.model) for head in heads]
        if by == "half":
            with halved_heads(self.model, found):
                yield
            return
        means = None if text is None else mean_outputs(self.model, self._batch(text), MAX_BATCH)
        with ablated_heads(self.model, found, means):
            yield

    def _batch(self, text: Text) -> Tensor:
        """The tokens (1, T) of a text, on the device of the model: at most the first `block_size`,
        with a warning if there are more. Raises UserError if there are none."""
        tokens, limit = self.tokens(text), self.model.block_size
        if not tokens:
            raise UserError("the text is empty: give at least one token")
        if len(tokens) > limit:
            used = f"only the first {limit} (block_size) are used"
            warnings.warn(f"the text has {len(tokens)} tokens: {used}", stacklevel=3)
        return torch.tensor([tokens[:limit]], device=self.model.device)

    def _position(self, position: int, found: Trace) -> int:
        """A position counted from 0. A negative one is counted from the end."""
        length = len(found.tokens)
        if not -length <= position < length:
            raise UserError(
                f"position={position}: the text has {length} tokens; the last one is -1"
            )
        return position % length

    def _token(self, token: str | int) -> int:
        """The id of a token, given as a text that is one token, or as an id."""
        tokens = self.tokens(token if isinstance(token, str) else [token])
        if len(tokens) != 1:
            raise UserError(
                f"token={token!r} has {len(tokens)} tokens and must have one: a space before a "
                "word is often a part of its token"
            )
        return tokens[0]

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
