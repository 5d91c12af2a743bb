"""The models that the page offers: one checkpoint or two, and the kept steps of their runs."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock, Thread
from time import perf_counter
from typing import Any
from zlib import crc32

from torch import Tensor

from headscope.analysis.ablation import parts_of
from headscope.analysis.examples import find_examples, shown_examples
from headscope.analysis.record import HeadRecord, unmeasured
from headscope.conversion.load import foreign_path, load
from headscope.errors import UserError, first_line
from headscope.trained import TrainedModel, checkpoint

TIMED = 128
"""Number of tokens whose computation is timed."""
MAX_STEPS = 3
"""Maximum number of kept steps in memory."""


@dataclass(eq=False)
class OpenModel:
    """A model that has been loaded, with everything that the page shows of it and that does not
    depend on the text. `passes` are its last forward passes (see `Reader.forward`)."""

    name: str
    title: str
    loaded: TrainedModel
    last: int | None = None
    """The last step of the run, if this is its best checkpoint."""
    text: str | None = None
    """The name of the text on which its heads are measured, if it is another one."""
    passes: OrderedDict[Any, Any] = field(default_factory=OrderedDict)
    record: HeadRecord = field(init=False)
    """The metrics and names of all heads."""
    measuring: dict[str, Any] | None = None
    """The `share` of the heads' metrics that has been measured, or a `problem`. None at the end."""

    def measure(self, text: str | None) -> None:
        """Measures the heads, on the file or folder `text` if it is given. Runs in a thread of its
        own: the page is shown meanwhile, with the `measuring` of `describe`."""
        try:
            given: Any = {}
            if text:
                given = {"text": self.loaded.validation, "source": Path(text).name}
            self.record = self.loaded.record(**given, track=self.counted)
            self.measuring = None
        except Exception as error:
            self.measuring = {"problem": f"The heads were not measured: {first_line(error)}"}
            if not isinstance(error, UserError):
                raise

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Counts the batches that have been measured. Other texts and the weights follow."""
        every = list(batches)
        for number, batch in enumerate(every):
            self.measuring = {"share": number / (len(every) + 2)}
            yield batch
        self.measuring = {"share": len(every) / (len(every) + 2)}

    @cached_property
    def examples(self) -> list[list[dict[str, Any]]]:
        """What each head does elsewhere. Raises UserError as `corpus` does."""
        windows, source = self.loaded.windows_elsewhere()
        found = find_examples(self.loaded.model, windows, self.loaded.tokenizer)
        return shown_examples(found, windows, self.text or source)

    @cached_property
    def seconds_per_token(self) -> float:
        """How long the first block needs for a token, if it computes many at once."""
        model = self.loaded.model
        length = min(model.block_size, TIMED // 8)
        x = model.embedding.weight.new_zeros(8, length, model.embedding.weight.size(1))
        times = []
        for _ in range(4):
            start = perf_counter()
            model.blocks[0](x, model.position).sum().item()  # waits for a GPU
            times.append(perf_counter() - start)
        return min(times) / (8 * length)

    def deciders_seconds(self, tokens: int) -> float:
        """How long it takes to find which part decides in a text: see `without_parts`."""
        model = self.loaded.model
        computed = len(parts_of(model)) * (len(model.blocks) + 1) / 2  # blocks for each token
        return self.seconds_per_token * computed * tokens

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
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
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
            "vocab_size": tokenizer.vocab_size,
            "vocabulary": crc32("\n".join(self.labels).encode()),
            "end_of_text": tokenizer.end_of_text,
            "texts": self.loaded.texts,
            "can": {
                "begin": tokenizer.begin_token is not None,
                "special": bool(tokenizer.special),
                "question": tokenizer.chat_template is not None,
            },
            "typed": {"begin": tokenizer.adds_begin, "special": tokenizer.reads_special},
            "measuring": self.measuring,
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
        text: str | None = None,
        begin: bool | None = None,
        special: bool = False,
    ) -> None:
        """`given` selects the model `this`, and `other` the model `other`, unless it is None: as
        for `headscope.load`, like `begin` and `special`. `parts` are files of own parts, which
        exported code names. `text` is a file or a folder on which heads are measured, instead of
        what training measured, and in which examples are found. Raises UserError if one cannot be
        loaded."""
        self.device, self.parts, self.text = device, parts, text
        self.options: Any = {"begin": begin, "special": special}
        self.alone = Lock()
        self.paths: dict[str, Path] = {}
        self.listed: list[dict[str, Any]] = []
        self.opened: OrderedDict[str, OpenModel] = OrderedDict()
        self._add("this", given, "checkpoint")
        if other is not None:
            self._add("other", other, "other")

    def _add(self, name: str, given: str | None, key: str) -> None:
        is_foreign = given is not None and foreign_path(given) is not None
        path = Path(str(given)) if is_foreign else checkpoint.find(given, key=key)
        in_run = path.parent.name == "checkpoints"
        title = (path.resolve().parent.parent if in_run else path.resolve()).name
        self.paths[name] = path
        self.listed.append({"name": name, "title": title})
        opened = self.get(name)
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

    def measure(self, opened: OpenModel) -> None:
        """Measures the heads of a model, one model after another."""
        with self.alone:
            if self.opened.get(opened.name) is opened:  # it is still there
                opened.measure(self.text)

    def get(self, name: str) -> OpenModel:
        """The model with this name. Raises UserError if it does not exist or cannot be loaded."""
        if name not in self.paths:
            raise UserError(f"model={name[:80]}: choose one of {', '.join(self.paths)}")
        if name not in self.opened:
            [title] = [model["title"] for model in self.listed if model["name"] == name]
            loaded = load(self.paths[name], device=self.device, **self.options)
            if self.text:
                loaded = loaded.on_text(self.text)
            opened = OpenModel(name, title, loaded, text=self.text and Path(self.text).name)
            self.opened[name] = opened
            known = None if self.text else loaded.known_record()
            opened.record = known or unmeasured(loaded.model)
            if not known:
                opened.measuring = {"share": 0.0}
                Thread(target=self.measure, args=[opened], daemon=True).start()
            steps = [each for each in self.opened if "@" in each]
            if len(steps) > MAX_STEPS:
                del self.opened[steps[0]]
        self.opened.move_to_end(name)
        return self.opened[name]
