"""Imports training steps of a model of another tool, as the kept steps of a run."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from headscope.analysis.head_types import NAMED_QUERIES
from headscope.analysis.snapshot import tokens_within
from headscope.config.parts import Part, build_part
from headscope.conversion.folder import load_folder
from headscope.conversion.revisions import FolderSteps, HubSteps, chosen_steps
from headscope.data.encode import ValidationText, validation_text
from headscope.data.own_files import errors_of_text
from headscope.data.starting_texts import starting_texts
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.files import LOCK, SCRATCH, json_text, new_file, read_json, write_atomically
from headscope.nn import GPT
from headscope.terminal import command, note
from headscope.trained import TrainedModel, checkpoint
from headscope.trained.checkpoint.file import SUFFIX, without_ties
from headscope.trained.checkpoint.finding import IMPORT
from headscope.trained.evaluation import evaluate
from headscope.trained.records import SPEECHES, add_records, digest_of, entries_in, head_recorder

LOSS_TOKENS = 2**14
"""The loss of a step is that on the first tokens of the validation split, at most so many."""
SNAPSHOT_BYTES = 4 * 10**6
"""The tab Attention shows as much of the text as fits into so many bytes for each step."""

EventFile = Callable[[Mapping[int, Sequence[bytes]], Mapping[int, float]], bytes]
"""Encodes the blobs of a snapshot, and the loss, of each step for TensorBoard."""


class StepImport:
    """Imports training steps of the model `source` as the kept steps of the run folder `output`.
    Each has the record of its heads and its loss on the validation split of the file `text`, and
    its attention on the beginning of this file. By default, the text is the speeches that headscope
    comes with. `event_file` makes the files for TensorBoard. See `chosen_steps` for `revisions`,
    and `load` for `block_size` and `begin`."""

    def __init__(
        self,
        source: str,
        revisions: list[str] | None,
        output: Path,
        event_file: EventFile,
        *,
        text: Path | None = None,
        block_size: int | None = None,
        begin: bool | None = None,
    ) -> None:
        self.output, self.folder, self.event_file = output, output / "checkpoints", event_file
        self.block_size, self.begin, self.measured_on = block_size, begin, str(text or SPEECHES)
        self.data = Part(_target_="headscope.Sotu")
        if text:
            self.data = Part(_target_="headscope.TextFiles", path=str(text))
        with errors_of_text(text):
            self.corpus = build_part(self.data, "data")
        self.text: ValidationText | None = None  # encoded by the tokenizer of the first step
        hub = HubSteps(source, output / "downloads")
        self.origin = FolderSteps(Path(source)) if Path(source).is_dir() else hub
        self.given: dict[str, Any] = {"source": source, "revisions": revisions, "begin": begin}
        self.given |= {"block_size": block_size, "text": text and str(text)}
        self.plan: dict[str, Any] = {}

    def run(self) -> list[str]:
        """Imports the steps, the last one first. The same arguments continue an import that was
        interrupted, and try again to read steps that were left out. A step is left out if its
        weights equal those of a later one, or if it cannot be read. Returns lines to print.

        Raises UserError if there are no such steps, if the hub or the disk fails, if the first one
        cannot be read, or if `output` is something else.
        """
        with locked(self.output):
            problems = self.import_all()
        kept = [*checkpoint.steps_of(self.folder)]
        return [
            f"Imported: {len(kept)} of {len(self.plan['steps'])} steps, "
            f"from {kept[0]:,} to {kept[-1]:,}",
            *(f"{name} was left out: {why}" for name, why in problems.items()),
            f"Written: {self.folder} and {self.output}/tensorboard. To use them:",
            f"  {command('explore')} checkpoint={self.output}",
            f"  tensorboard --logdir {self.output}",
            f"  {command('analyze')} checkpoint={self.output}",
            f'  headscope.history("{self.output}") in Python',
        ]

    def import_all(self) -> dict[str, str]:
        """Imports the steps that are missing. Returns why some were left out."""
        steps, equal = self.planned()
        kept = checkpoint.steps_of(self.folder)
        todo = [name for name, step in steps.items() if step not in kept and name not in equal]
        size = sum(map(self.origin.size, todo)) / 1e6
        note(f"{len(todo)} of {len(steps)} steps to import, with {size:,.1f} MB of weights")
        problems = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in todo:
            self.write_plan()
            with self.origin.folder(name) as folder:
                try:
                    if problem := self.import_step(folder, name):
                        problems[name] = problem
                        note(f"{name}: {problem}")
                except UserError:
                    if not checkpoint.steps_of(self.folder):
                        shutil.rmtree(self.output)
                    raise
        *_, last = checkpoint.steps_of(self.folder).values()
        with new_file(self.folder / f"best{SUFFIX}", size=last.stat().st_size) as best:
            shutil.copyfile(last, best)
        for left in (self.output / "downloads", *self.output.rglob(f"{SCRATCH}*")):
            shutil.rmtree(left, ignore_errors=True)  # of a killed process
        self.write_plan()
        return equal | problems

    def planned(self) -> tuple[dict[str, int], dict[str, str]]:
        """The revisions to import, with their steps, and why some equal others. Raises UserError if
        `output` is something else, or an import that is complete or has other arguments."""
        plan = read_json(self.output / IMPORT)
        if isinstance(plan, dict) and plan.keys() >= {"given", "steps", "equal"}:
            if plan["given"] != self.given:
                given = {key: value for key, value in plan["given"].items() if value is not None}
                began = ", ".join(f"{key}={value}" for key, value in given.items())
                problem = f"output={self.output} has an import with {began}"
                raise UserError(f"{problem}: repeat these arguments, or name a new folder")
            kept = len(checkpoint.steps_of(self.folder)) + len(plan["equal"])
            if kept < len(plan["steps"]) or not (self.folder / f"best{SUFFIX}").exists():
                self.plan = plan
        if not self.plan:
            if os.path.lexists(self.output):
                raise UserError(f"output={self.output} already exists: name a new folder")
            chosen = chosen_steps(
                self.origin.names(), self.given["revisions"], self.given["source"]
            )
            self.plan = {"given": self.given, "steps": chosen, "equal": {}}
        return self.plan["steps"], self.plan["equal"]

    def write_plan(self) -> None:
        write_atomically(self.output / IMPORT, json_text(self.plan, indent=2))

    def import_step(self, folder: Path, name: str) -> str | None:
        """Imports a step. Returns why it was left out, or None. Raises UserError if it is the first
        one and cannot be read."""
        step, kept = self.plan["steps"][name], [*checkpoint.steps_of(self.folder)]
        try:
            loaded = load_folder(folder, block_size=self.block_size, keep_proof=False)
        except UserError as error:
            if not kept:
                advice = f"if this is only so for {name}, list the others in revisions=[...]"
                raise UserError(f"{error}; {advice}") from error
            return str(error).removeprefix(f"{folder}: ")
        loaded = loaded.typed(begin=self.begin)
        of_model = json_text([loaded.config.model, loaded.tokenizer.state()]).encode()
        if self.plan.setdefault("model", crc32(of_model)) != crc32(of_model):
            return f"it has other sizes or another tokenizer than step {kept[-1]:,}"
        if self.text is None:
            with errors_of_text(self.given["text"]):
                self.text = validation_text(self.corpus, loaded.tokenizer)
            if (found := len(self.text.tokens)) < NAMED_QUERIES:
                few = f"the last tenth of {self.measured_on} has {found} tokens"
                note(f"Heads get no names: {few}, and names need {NAMED_QUERIES}")
        if self.plan.setdefault("text", of_text := crc32(self.text.tokens.tobytes())) != of_text:
            raise UserError(f"text={self.measured_on} has changed: name a new folder with output=")
        self.write_plan()
        trainer = replace(loaded.config.trainer, max_steps=max(self.plan["steps"].values()))
        more: Any = {"name": self.output.absolute().name, "data": self.data, "trainer": trainer}
        loaded = replace(loaded, step=step, config=replace(loaded.config, **more))
        weights = in_shortest_types(loaded.model.state_dict())
        known = entries_in(self.folder).get(digest_of(weights))
        if known and known["step"] != step:
            self.plan["equal"][name] = f"its weights are those of step {known['step']:,}"
            return self.plan["equal"][name]
        self.keep(loaded, weights)
        return None

    def keep(self, loaded: TrainedModel, weights: Mapping[str, Tensor]) -> None:
        """Measures a step, and writes what was measured and the weights, last of all."""
        model, tokenizer, text, step = loaded.model, loaded.tokenizer, self.text, loaded.step
        assert text is not None
        recorder = head_recorder(model, tokenizer, text.tokens, self.measured_on)
        record = recorder(model, digest=digest_of(weights), step=step)
        measured = replace(text, tokens=text.tokens[: LOSS_TOKENS + 1])
        loss = evaluate(model, measured, batch_size=1)["loss_nats_per_token"]
        reading = loaded.read(self.shown_tokens(model, tokenizer))
        events = self.event_file({step: reading.snapshot(record).blobs()}, {step: loss})
        # TensorBoard reads the files in the order of their names.
        name = f"events.out.tfevents.{step:015d}.headscope"
        with new_file(self.output / "tensorboard" / name, parents=True) as file:
            file.write_bytes(events)
        add_records(self.folder, [record])
        data = checkpoint.contents(loaded.config, tokenizer, "none", loaded.precision)
        texts = starting_texts(self.corpus, tokenizer, text.tokens)
        file = self.folder / f"step_{step:06d}{SUFFIX}"
        checkpoint.write(file, weights, data | {"step": step, "texts": texts})
        note(f"step {step:,}: a loss of {loss:.3f} nats per token on {self.measured_on}")

    def shown_tokens(self, model: GPT, tokenizer: Tokenizer) -> list[int]:
        """The tokens of the beginning of the text that the tab Attention shows."""
        pieces = chain.from_iterable(document.pieces for document in self.corpus.documents())
        beginning = self.corpus.probe_text or next(pieces)[:10_000]
        tokens = tokenizer.encode_prompt(beginning)[: model.block_size]
        sizes: Any = {"layers": len(model.attentions), "heads": model.attentions[0].heads}
        sizes |= {"tokens": len(tokens), "vocabulary": tokenizer.vocabulary_labels()}
        return tokens[: tokens_within(SNAPSHOT_BYTES, **sizes)]


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """In the `with` block, no other import writes to `output`. Raises UserError if one does."""
    output.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(output.with_name(f".{output.name}{LOCK}"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"output={output}: another process imports to it: wait for it") from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def in_shortest_types(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, each in the shortest type that has the same values: that of the
    model's file, or a shorter one."""
    unique, tied = without_ties(weights)
    short = {}
    for name, weight in unique.items():
        halves = (weight.to(dtype) for dtype in (torch.bfloat16, torch.float16))
        short[name] = next((half for half in halves if torch.equal(half.float(), weight)), weight)
    short |= {name: short[first] for name, first in tied.items()}
    return {f"model.{name}": weight for name, weight in short.items()}
