"""The models that the page offers: one checkpoint or two, and the kept steps of their runs."""

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

import headscope
from headscope.analysis.examples import find_examples, shown_examples
from headscope.analysis.head_statistics import HeadStatistics, measure_heads, repeat_probe
from headscope.analysis.repeats import BATCH_SIZE
from headscope.analysis.tokens import classify_vocabulary
from headscope.errors import UserError
from headscope.trained import TrainedModel, checkpoint
from headscope.trained.generation import generate_tokens

MAX_STEPS = 3
"""Maximum number of kept steps in memory."""
LARGE = 2**25
"""A model with this many parameters writes slowly."""


@dataclass
class OpenModel:
    """A model that has been loaded, with everything that the page shows of it and that does not
    depend on the text. `passes` are its last forward passes (see `Reader.forward`)."""

    name: str
    title: str
    loaded: TrainedModel
    last: int | None = None
    """The last step of the run, if this is its best checkpoint."""
    passes: OrderedDict[Any, Any] = field(default_factory=OrderedDict)

    @cached_property
    def statistics(self) -> HeadStatistics:
        """The metrics and names of all heads, as they were measured when the run ended. If they
        were not, they are measured on texts that the model writes and, for induction, on repeated
        random texts. The training text would be better, but it may not be on this machine."""
        if stored := self.loaded.stored_statistics():
            return stored
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        tokens, length = (512, 64) if model.parameter_count() < LARGE else (256, 16)
        length = min(length, model.block_size)
        texts = tokens // length
        prompts = [[tokenizer.first_token()]] * texts
        options: Any = {"max_new_tokens": length, "temperature": 0.8}
        steps = generate_tokens(model, prompts, seeds=range(texts), **options)
        written, kinds = torch.tensor(list(steps)).T, classify_vocabulary(tokenizer)
        repeats = repeat_probe(model, kinds, BATCH_SIZE)
        source = "texts that the model wrote"
        return measure_heads(model, written, source=source, kinds=kinds, repeats=repeats)

    @cached_property
    def examples(self) -> list[list[dict[str, Any]]]:
        """What each head does in the validation split. Raises UserError as `corpus` does."""
        windows = self.loaded.validation_windows()
        found = find_examples(self.loaded.model, windows, self.loaded.tokenizer)
        return shown_examples(found, windows, "the validation split")

    @cached_property
    def labels(self) -> list[str]:
        """The label of each token of the vocabulary."""
        return self.loaded.tokenizer.vocabulary_labels()

    def named(self, token: int, **more: Any) -> dict[str, Any]:
        """An entry of an answer: a token of the vocabulary, and `more` about it."""
        return {"id": token, "label": self.labels[token], **more}

    def listed(self, tokens: Iterable[int], **shares: Tensor) -> list[dict[str, Any]]:
        """Entries for different tokens, each with its number in some `shares` (V,)."""
        return [
            self.named(token, **{name: float(each[token]) for name, each in shares.items()})
            for token in dict.fromkeys(tokens)
        ]

    def describe(self) -> dict[str, Any]:
        """What the page must know before it sends a text."""
        model = self.loaded.model
        return {
            "name": self.name,
            "title": self.title,
            "path": str(self.loaded.path),
            "step": self.loaded.known_step,
            "last": self.last,
            "parameters": model.parameter_count(),
            "layers": len(model.attentions),
            "heads": model.attentions[0].heads,
            "block_size": model.block_size,
            "vocab_size": self.loaded.tokenizer.vocab_size,
            "vocabulary": crc32("\n".join(self.labels).encode()),
            "end_of_text": self.loaded.tokenizer.end_of_text,
            "texts": self.loaded.texts,
        }


class Models:
    """The models by name.

    - `this`, and perhaps `other`, are loaded at the start. They do not change afterwards, although
      a run that is still training may replace their files.
    - The kept steps of their runs have names such as `this@100`. A kept step is loaded when it is
      requested, and the last MAX_STEPS of them stay in memory.
    """

    def __init__(
        self,
        given: str | None,
        other: str | None,
        device: str,
        parts: str | list[str] | None = None,
    ) -> None:
        """`given` selects the model `this`, and `other` the model `other`, unless it is None: a
        Hugging Face folder, or what `headscope.trained.checkpoint.find` finds. `parts` are files of
        own parts, which exported code names. Raises UserError if one cannot be loaded."""
        self.device, self.parts = device, parts
        self.paths: dict[str, Path] = {}
        self.listed: list[dict[str, Any]] = []
        self.opened: OrderedDict[str, OpenModel] = OrderedDict()
        self._add("this", given, "checkpoint")
        if other is not None:
            self._add("other", other, "other")

    def _add(self, name: str, given: str | None, key: str) -> None:
        is_folder = given is not None and checkpoint.is_model_folder(Path(given))
        path = Path(str(given)) if is_folder else checkpoint.find(given, key=key)
        in_run = path.parent.name == "checkpoints"
        title = (path.resolve().parent.parent if in_run else path.resolve()).name
        self.paths[name] = path
        self.listed.append({"name": name, "title": title})
        opened = self.get(name)
        _ = opened.statistics  # measures its heads now, so that the page opens at once
        if path.name == "best.safetensors":
            with suppress(UserError):  # there is no last.safetensors, or it is damaged
                opened.last = checkpoint.read(path.with_name("last.safetensors")).step
        self.listed[-1] |= {"step": opened.loaded.known_step, "last": opened.last}
        for step, file in checkpoint.steps_of(path).items() if in_run else ():
            stored = step
            with suppress(UserError):  # the message comes when the file is opened
                stored = checkpoint.read(file).step
            if not stored == step == opened.loaded.step:
                kept_title = title if stored == step else f"{title} ({file.name})"
                self.paths[f"{name}@{step}"] = file
                more = {"name": f"{name}@{step}", "title": kept_title, "step": stored}
                self.listed.append(more)

    def get(self, name: str) -> OpenModel:
        """The model with this name. Raises UserError if it does not exist or cannot be loaded."""
        if name not in self.paths:
            raise UserError(f"model={name[:80]}: choose one of {', '.join(self.paths)}")
        if name not in self.opened:
            [title] = [model["title"] for model in self.listed if model["name"] == name]
            loaded = headscope.load(self.paths[name], device=self.device)
            self.opened[name] = OpenModel(name, title, loaded)
            steps = [opened for opened in self.opened if "@" in opened]
            if len(steps) > MAX_STEPS:
                del self.opened[steps[0]]
        self.opened.move_to_end(name)
        return self.opened[name]
