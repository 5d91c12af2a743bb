"""A trained model: logits, generated text, readings of texts, and what heads do.

Shapes: T tokens, V vocab_size. For several texts of equal length, tensors have a first axis B.
"""

import json
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.ablation import By, ablated_heads, halved_heads, mean_outputs
from headscope.analysis.examples import example_rows, find_examples
from headscope.analysis.head_outputs import Track, parse_head
from headscope.analysis.head_statistics import visible_in
from headscope.analysis.metrics import METRICS, beyond_first, head_metrics
from headscope.analysis.own_metrics import HeadMetric
from headscope.analysis.path_patching import needs
from headscope.analysis.reading import Reading
from headscope.analysis.record import HeadRecord
from headscope.analysis.repeats import BATCH_SIZE, RepeatProbe, score
from headscope.analysis.rows import DataFrame, data_frame, per_head
from headscope.analysis.why import Why
from headscope.config.parts import Part, build_part
from headscope.config.training import TrainConfig
from headscope.data.corpus import Corpus, Sotu
from headscope.data.encode import ValidationText, validation_text
from headscope.data.tokenizer import Tokenizer
from headscope.data.tokenizer_state import tokenizer_from_state
from headscope.data.windows import spread_windows
from headscope.errors import UserError, whole_number
from headscope.nn import GPT
from headscope.nn.loss import IGNORED, Answers, counted_targets, next_token_loss
from headscope.terminal import note, step_name
from headscope.trained.ablations import ABLATION_WINDOWS, measure_ablation
from headscope.trained.checkpoint import own_tokenizer, pick_device, read, sources, steps_of
from headscope.trained.checkpoint.loading import build_from_weights
from headscope.trained.generation.generate import generate_text, generate_tokens
from headscope.trained.records import (
    LONGEST,
    SPEECHES,
    VALIDATION,
    add_records,
    cache_folder,
    digest_of_checksums,
    head_recorder,
    record_in,
    settings_in,
)

Text = str | Sequence[int]
"""A text, or token ids."""

Metrics = Mapping[str, HeadMetric]
"""Metrics of the user by name."""


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A checkpoint, or the model in a Hugging Face folder, as `headscope.load` returns it.

    `model` is a `GPT` in evaluation mode. `tokenizer` and `config` are those of its run. `step` is
    the training step at which the file `path` was saved, and `precision` that of training, one of
    `PRECISIONS`. `answers` is what its losses count, if not all tokens. `digest` is a checksum of
    the weights. `texts` are texts to begin with (see `Corpus.starting_texts`).

    Except `generate`, methods use the first `block_size` tokens of a text, with a warning.
    """

    path: Path
    model: GPT
    tokenizer: Tokenizer
    config: TrainConfig
    step: int
    precision: str
    answers: Answers | None
    digest: str
    texts: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        layers, heads = len(self.model.blocks), self.model.attentions[0].heads
        sizes = f"{self.model.parameter_count():,} parameters, {layers} layers of {heads} heads"
        more = f"block_size {self.model.block_size}, vocabulary {self.tokenizer.vocab_size:,}"
        return f"<TrainedModel {self.path}: {step_name(self.known_step)}, {sizes}, {more}>"

    @property
    def known_step(self) -> int | None:
        """`step`, or None for an imported model without it: its configuration has no steps."""
        return self.step if self.step or self.config.trainer.max_steps else None

    @property
    def steps(self) -> list[int]:
        """The steps that its run has kept, for `headscope.load(run, step=...)`."""
        return [*steps_of(self.path)]

    def tokens(self, text: Text) -> list[int]:
        """The tokens of a text, or token ids as they are. Raises UserError for unknown ones."""
        return self.tokenizer.tokens_of(text)

    def typed(self, *, begin: bool | None = None, special: bool | None = None) -> "TrainedModel":
        """The same model with other settings for typed texts, as `headscope.load` has them."""
        return replace(self, tokenizer=self.tokenizer.typed(begin=begin, special=special))

    def question(self, text: str) -> list[int]:
        """The tokens of a question, as the model's chat template writes it. Raises UserError if the
        model has none: then it is no model for chats."""
        if not isinstance(text, str):
            raise UserError(f"text={text!r}: give a text")
        return self.tokenizer.typed(question=True).encode_prompt(text)

    def targets(self, tokens: Tensor) -> Tensor:
        """The tokens that follow in texts (B, T), (B, T - 1), for losses: see `counted_targets`."""
        return counted_targets(tokens[:, :-1], tokens[:, 1:], self.answers, begun=True)

    @torch.no_grad()
    def logits(self, text: Text) -> Tensor:
        """The logits (T, V), on the CPU, of the next token after each token of a text or token ids.

        Raises UserError if there are no tokens, if the vocabulary cannot represent the text, or if
        a token id is not in the vocabulary.
        """
        return self.model(self._batch(text))[0].cpu()

    def loss(self, text: Text) -> Tensor:
        """The loss of each token of a text after the first, (T - 1,), in nats, on the CPU. NaN for
        tokens that the losses of the run do not count, so `nanmean()` is the loss of the text.
        Raises UserError as `logits` does."""
        tokens = self._batch(text)
        losses = self.read(tokens[0].tolist()).losses
        return losses.where(self.targets(tokens)[0] != IGNORED, torch.nan).cpu()

    @torch.no_grad()
    def predictions(self, text: Text, *, count: int = 3) -> DataFrame:
        """What the model predicts after each token of a text: a row with `position`, `token`, the
        `next_token` of the text and its `probability`, and the `count` most likely next tokens:
        `top_1`, `probability_1`, and so on. Raises UserError as `logits` does."""
        reading = self.read(self._batch(text)[0].tolist())
        probabilities = reading.logits.softmax(dim=-1)[:, : self.tokenizer.vocab_size].cpu()
        following = zip(probabilities, reading.tokens[1:].tolist(), strict=False)
        columns = {
            "token": reading.labels,
            "next_token": [*reading.labels[1:], None],
            "probability": [*(float(of_all[token]) for of_all, token in following), torch.nan],
        }
        listed = probabilities.topk(min(whole_number(count, "count", 0), probabilities.size(1)))
        for place, (values, tokens) in enumerate(zip(*(x.mT for x in listed), strict=True), 1):
            columns[f"top_{place}"] = [*map(self.tokenizer.label, tokens.tolist())]
            columns[f"probability_{place}"] = values.tolist()
        return data_frame(columns).rename_axis("position").reset_index()

    def read(
        self, text: Text | Sequence[Text], *, begun: bool = True, gradients: bool = False
    ) -> Reading:
        """What a text does to the model: attention, losses, what each head writes, and so on. See
        `Reading`. Several texts must have the same number of tokens.

        Raises UserError as `logits` does, or if the texts have different numbers of tokens.
        """
        texts: Any = text
        is_list = isinstance(text, Iterable) and not isinstance(text, str)
        several = is_list and any(isinstance(item, str | Sequence) for item in texts)
        # `map`, because a list comprehension is a frame in Python 3.11: a warning names the caller.
        batch = [*map(self._batch, texts if several else [texts])]
        lengths = [tokens.size(1) for tokens in batch]
        if len(set(lengths)) != 1:
            raise UserError(f"the texts have {lengths} tokens: give texts of equal length")
        reading = Reading(
            self.model,
            torch.cat(batch) if several else batch[0][0],
            self.tokenizer,
            answers=self.answers,
            begun=begun,
            step=self.known_step,
            name=self.config.name,
            gradients=gradients,
        )
        reading.recorded = self.record
        return reading

    def known_record(self) -> HeadRecord | None:
        """The record of the heads of this model: that of its run, or one in the cache folder. None
        if it was never measured."""
        folders = (self.path.parent, self._cache())
        found = (record_in(folder, self.digest, self.model) for folder in folders)
        return next(filter(None, found), None)

    @torch.no_grad()
    def record(
        self,
        text: ValidationText | None = None,
        *,
        source: str = "",
        metrics: Metrics | None = None,
        windows: int | None = None,
        track: Track = iter,
    ) -> HeadRecord:
        """The metrics and names of all heads, as everything shows them (see `HeadRecord`): those
        that training measured. Without them, with own `metrics` (see `HeadMetric`), or if a number
        of `windows` is given, they are measured now, on the validation split of the run, `text`, or
        if it is not on this machine, on the speeches that headscope comes with. If `source` is
        given, heads are measured on `text`, which it describes. What is measured without own
        `metrics` and `windows` is kept in the cache folder."""
        folder = self._cache(text if source else None)
        known = record_in(folder, self.digest, self.model) if source else self.known_record()
        if known and not (metrics or windows):
            return known
        tokens, used = (text.tokens, source or VALIDATION) if text else self.text_to_measure()
        options = {**settings_in(self.path.parent, self.model), "own": metrics}
        if windows or used != VALIDATION:
            options["windows"] = windows
        recorder = head_recorder(self.model, self.tokenizer, tokens, used, **options)
        whole = self.rebuilt()  # without what is switched off now
        record = recorder(whole, digest=self.digest, step=self.known_step, track=track)
        if not (metrics or windows):
            with suppress(UserError, OSError):  # the folder cannot be written
                add_records(folder, [record])
        return record

    def _cache(self, text: ValidationText | None = None) -> Path:
        """Where the record of this model is kept, if it has no run or was measured on `text`."""
        sizes = json.dumps(self.config.kept()["model"]).encode()
        measured = zlib.crc32(sizes + (text.tokens.tobytes() if text else b""))
        return cache_folder("heads", f"{self.digest}-{measured:08x}")

    def text_to_measure(self) -> tuple[np.ndarray, str]:
        """The tokens of the validation split, or those of the speeches, and which of them."""
        with suppress(UserError):
            return self.validation.tokens, VALIDATION
        return validation_text(Sotu(), self.tokenizer).tokens, SPEECHES

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

        Raises UserError if an option is out of range, or as `logits` does.
        """
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": 0.0}
        if do_sample:
            options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        seed = whole_number(seed, "seed")
        if isinstance(prompt, str):
            pieces = generate_text(self.model, self.tokenizer, prompt, seed=seed, **options)
            return prompt + "".join(pieces)
        tokens = self.tokens(prompt)
        for (token,) in generate_tokens(self.model, tokens, seeds=[seed], **options):
            tokens.append(token)
            if token == self.tokenizer.end_of_text:
                break
        return tokens

    @torch.no_grad()
    def needs(
        self,
        head: str,
        text: Text | None = None,
        *,
        metric: str | None = None,
        corrupted: Text | None = None,
    ) -> DataFrame:
        """What a head, such as "L1H2", needs from each earlier head: a row for each, the strongest
        first (see `headscope.analysis.path_patching.needs`).

        Path patching (Wang 2022) replaces what an earlier head writes, only where `head` reads it,
        by zero or by what it writes on the text `corrupted`. A row has the change of the loss in
        nats per token. If `metric` is given, such as "previous", it has the change of this metric
        of `head` instead. Without a text, random texts that contain a passage twice are used, and
        the metric may also be "induction".

        Raises UserError as `logits` does, or for a wrong head, metric or length of `corrupted`.
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
            names = f"{', '.join(METRICS)}, or induction if no text is given"
            raise UserError(f"metric={metric!r}: choose one of {names}")

        mask = visible_in(self.model, tokens)
        visible = None if mask is None else mask[receiver[0], :, 0]

        def measure(weights: Tensor, x: Tensor) -> float:
            if metric is None:
                return float(next_token_loss(self.model.unembed(x)[:, :-1], targets))
            if factors is not None and metric == "induction":
                left, _, active = beyond_first(weights)
                return float(score((left * active[..., None])[:, None], factors)) / len(tokens)
            return float(head_metrics(weights, visible)[metric].mean())

        other = None if corrupted is None else self._batch(corrupted)
        if other is not None and other.shape != tokens.shape:
            lengths = f"{other.size(1)} tokens, and the text {tokens.size(1)}"
            raise UserError(f"corrupted has {lengths}: change one until both have the same number")
        return needs(self.model, tokens, receiver, measure, other)

    def deciders(
        self, text: Text, position: int = -1, token: str | int | None = None, *, by: By = "mean"
    ) -> DataFrame:
        """Which heads and feed-forward networks decide that `token` follows the token at `position`
        of a text: see `Reading.deciders`. Raises UserError as it and `logits` do."""
        return self.read(self._batch(text)[0].tolist()).deciders(position, token, by=by)

    def examples(self, head: str, *, windows: int | None = None) -> DataFrame:
        """What a head, such as "L1H2", does elsewhere: short texts in which it looks from one token
        at another (see `headscope.analysis.examples.find_examples`), found in `windows_elsewhere`.
        Raises UserError as these do, or if there is no such head."""
        layer, number = parse_head(head, self.model)
        found = find_examples(self.model, self.windows_elsewhere(windows)[0], self.tokenizer)
        return data_frame(example_rows([[found[layer][number]]]))

    def ablations(
        self, *, windows: int = ABLATION_WINDOWS, by: By = "zero", gradients: bool = False
    ) -> DataFrame:
        """How the loss on windows of the validation split changes without each head, as in a report
        with `ablation=true`: a row for each head, with the metrics of `AblationResult`. The output
        of the head is replaced by zero, or with by="mean" by its mean. `gradients` adds estimates.
        Raises UserError as `corpus` does, or for fewer than two windows."""
        if by not in get_args(By):
            raise UserError(f"by={by!r}: choose zero or mean")
        windows = whole_number(windows, "windows", 2)  # for a standard error
        text = self.validation
        result = measure_ablation(self.model, text, by, windows=windows, gradients=gradients)
        return per_head(result.metrics)

    def windows_elsewhere(self, windows: int | None = None) -> tuple[Tensor, str]:
        """The windows (N, T) in which examples are found, with at most LONGEST tokens each, and a
        description of their text: the validation split or, for a model of another tool, the
        speeches that headscope comes with. Raises UserError as `corpus` does."""
        if windows is not None:
            windows = whole_number(windows, "windows", 1)
        known = self.config.data is not None
        tokens, source = (self.validation.tokens, VALIDATION) if known else self.text_to_measure()
        length = min(self.model.block_size, LONGEST)
        return spread_windows(tokens, length=length, windows=windows), source

    def on_text(self, path: str | Path) -> "TrainedModel":
        """The same model with other texts as its corpus: those of a text file or a folder (see
        `TextFiles`). `examples`, `ablations` and so on then use their validation split. Raises
        UserError if there is none."""
        data = Part(_target_="headscope.TextFiles", path=str(path))
        build_part(data, "data")
        return replace(self, config=replace(self.config, data=data))

    @cached_property
    def validation(self) -> ValidationText:
        """The validation split of the run, read once. Raises UserError as `corpus` does."""
        return validation_text(self.corpus(), self.tokenizer)

    def why(self, head: str, text: Text, query: int | None = None, key: int | None = None) -> Why:
        """Why a head looks from one token to another: see `Reading.why`, also for errors."""
        return self.read(self._batch(text)[0].tolist()).why(head, query, key)

    @contextmanager
    def ablate(
        self,
        heads: Sequence[str],
        *,
        by: Literal["zero", "mean", "half"] = "zero",
        text: Text | None = None,
    ) -> Iterator[None]:
        """Inside this `with` block, the outputs of the heads, such as ["L0H3"], are replaced by
        zero, by their mean over the tokens of `text`, or by half of them. This changes the results
        of `logits`, `read`, `generate` and so on.

        Raises UserError if there is no such head, or if `text` is missing for the mean.
        """
        if isinstance(heads, str) or not isinstance(heads, Iterable):
            raise UserError(f"heads={heads!r}: give a list, such as ['L0H3']")
        if by not in ("zero", "mean", "half") or (by == "mean") != (text is not None):
            advice = 'give by="zero", by="half", or by="mean" and a text for the mean'
            raise UserError(f"by={by!r}: {advice}")
        chosen = [parse_head(head, self.model) for head in heads]
        model = self.model
        means = None if text is None else mean_outputs(model, self._batch(text))
        with halved_heads(model, chosen) if by == "half" else ablated_heads(model, chosen, means):
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

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the new folder `folder`, which transformers opens, as convert.py to=huggingface
        does. Raises UserError if the folder exists already, or if transformers is missing. Raises
        NotEqual, and leaves no files, if transformers computes other logits or another text."""
        from headscope.conversion.export import export_huggingface

        export_huggingface(self, Path(folder))

    def corpus(self) -> Corpus:
        """The corpus that the model was trained on. Prints on standard error which files it reads.
        Raises UserError if the corpus is unknown, or cannot be built here."""
        if self.config.data is None:
            problem = "the text that this model was trained on is unknown, because it was imported"
            advice = "data.path= for evaluate, corpus= for analyze, loaded.on_text(path) in Python"
            raise UserError(f"{problem}; name a text file or a folder: {advice}")
        for line in sources(self.config.data, "data"):
            note(line)
        try:
            return build_part(self.config.data, "data")
        except UserError as error:
            began = "a relative path begins in the folder where the run was started"
            raise UserError(f"{self.path}: {error}; {began}") from error

    def with_block_size(self, block_size: int) -> GPT:
        """The model with another maximum context length. Raises UserError if the position encoding
        supports only the context length of training."""
        if whole_number(block_size, "block_size", 1) == self.model.block_size:
            return self.model
        if self.model.position.limit:
            kind, trained = type(self.model.position).__name__, self.model.block_size
            limit = self.model.position.limit
            raise UserError(f"{kind} was trained at block_size={trained}: {limit}")
        return self.rebuilt(block_size=block_size)

    def rebuilt(self, **changed: Any) -> GPT:
        """A new model with the same weights, and some `changed` sizes."""
        sizes = Part(self.config.model, **changed)
        model = build_from_weights(sizes, self.tokenizer, self.model.state_dict())
        return model.to(self.model.device).eval()


def load(path: str | Path, *, device: str | torch.device = "cpu") -> TrainedModel:
    """Opens a checkpoint file. The model is on `device`, in evaluation mode. Raises UserError if
    the file is missing, damaged or not a headscope checkpoint, if a weight is NaN or infinite, or
    if this machine does not have the device."""
    path, device = Path(path), pick_device(str(device))
    stored = read(path)
    weights, config = stored.weights(), stored.config
    try:
        tokenizer = tokenizer_from_state(stored.data["tokenizer"], own_tokenizer(stored))
        model = build_from_weights(config.model, tokenizer, weights)
    except UserError as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{path} cannot be opened: {reason}") from error
    return TrainedModel(
        path=path,
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        config=config,
        step=stored.step,
        precision=stored.data["precision"],
        answers=stored.answers,
        digest=digest_of_checksums(stored.data["checksums"]),
        texts=stored.data["texts"],
    )
