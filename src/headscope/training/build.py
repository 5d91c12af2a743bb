"""Builds a training run from its configuration: data, module, callbacks, loggers and trainer."""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger
from rich.console import Console
from torch import nn

from headscope.config.parts import build_part
from headscope.config.training import TrainConfig
from headscope.data.corpus import Corpus
from headscope.data.encode import answers_of
from headscope.data.module import TokenDataModule, validation_stride
from headscope.data.starting_texts import starting_texts
from headscope.data.store import prepare_store
from headscope.data.tokenizer_state import stored
from headscope.errors import UserError
from headscope.nn.held import without_held
from headscope.nn.loss import Answers
from headscope.trained import checkpoint
from headscope.training.callbacks.progress import say, track
from headscope.training.module import LanguageModel
from headscope.training.processes import connect
from headscope.training.resume import check_same_text
from headscope.training.trainer import (
    build_callbacks,
    build_loggers,
    build_trainer,
    on_gpu,
    precision_of,
)


@dataclass(frozen=True)
class Run:
    """The parts of a training run, ready for `fit`. It continues from the checkpoint `resume`."""

    folder: Path
    config: TrainConfig
    console: Console
    resume: checkpoint.Stored | None
    data: TokenDataModule
    module: LanguageModel
    contents: dict[str, Any]
    """Plain data of each checkpoint (see `checkpoint.contents`). `added` is what a checkpoint does
    not keep, by key or class, and `texts` are texts to begin with (see `Corpus.starting_texts`)."""
    trainer: Any  # lightning.Trainer, which does not declare all of its attributes

    def say(self, line: str) -> None:
        """Prints a line."""
        say(self.console, line)

    def callback(self, kind: type) -> Any:
        """The first callback of this class, or None."""
        return next((each for each in self.trainer.callbacks if isinstance(each, kind)), None)


def build(
    config: TrainConfig,
    folder: Path,
    console: Console,
    resume: checkpoint.Stored | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] | None = None,
    *,
    alone: bool = True,
) -> Run:
    """Builds the run that `config` describes, in `folder`, to which it does not write yet. The run
    continues from the checkpoint `resume`, if given. `callbacks` are added to those of `config`,
    and `loggers` replace them. Unless the run must be `alone`, several processes may train
    together: each of them builds the run, in the `folder` of the first.

    Raises UserError if the configuration is inconsistent, or does not fit the text or this machine.
    """
    fabric, folder = connect(config.trainer, folder, alone=alone)
    weights = None
    if config.init_from and not resume:
        weights = checkpoint.read(checkpoint.find(config.init_from, key="init_from"))
    corpus: Corpus = build_part(config.data, "data")
    origin = resume if resume and config.init_from else weights
    data = build_data(config, corpus, origin, fabric, console)
    if resume:
        check_same_text(resume, data.store)
        checkpoint.check_sizes(config.model, data.store.tokenizer, resume.weights())
    answers = answers_of(corpus, data.store.tokenizer)
    module = build_module(config, data, weights, answers)
    if loggers is not None:
        config = replace(config, logger={})
    store, precision = data.store, precision_of(config.trainer)
    contents = checkpoint.contents(config, store.tokenizer, store.name, precision, answers)
    contents["added"] += [type(each).__name__ for each in (*callbacks, *(loggers or ()))]
    contents["texts"] = starting_texts(corpus, store.tokenizer, store.validation)
    every = build_callbacks(config, console, callbacks)
    logs = build_loggers(config, folder, resume) if loggers is None else loggers
    trainer = build_trainer(config, folder, every, logs, contents)
    return Run(folder, config, console, resume, data, module, contents, trainer)


def build_data(
    config: TrainConfig,
    corpus: Corpus,
    origin: checkpoint.Stored | None,
    fabric: Any,  # lightning.fabric.Fabric, if there are several processes
    console: Console,
) -> TokenDataModule:
    """The batches. The text is encoded if it was not before, with the tokenizer of `origin`."""
    if origin:
        own = checkpoint.own_tokenizer(origin)
        tokenizer: Any = partial(stored, own, state=origin.data["tokenizer"])
    else:
        tokenizer = build_part(config.tokenizer, "tokenizer")
    # The other processes find what the first one has encoded.
    with fabric.rank_zero_first() if fabric else nullcontext():
        store = prepare_store(
            corpus,
            tokenizer,
            root=Path(os.path.expanduser(config.store_dir)),
            track=partial(track, console=console),
            say=partial(say, console, style="yellow"),
        )
    settings, length = config.trainer, config.model.block_size
    if not settings.max_steps:  # an imported model has none
        raise UserError("trainer.max_steps=0 must be at least 1")
    size, count = settings.batch_size, fabric.world_size if fabric else 1
    if size % count:
        fit = -(-size // count) * count
        raise UserError(f"trainer.batch_size={size} is no multiple of {count} devices: try {fit}")
    tokens = min(settings.val_every_steps, settings.max_steps) * size * settings.accumulate * length
    stride = validation_stride(validation_tokens=len(store.validation), training_tokens=tokens)
    return TokenDataModule(
        store,
        block_size=length,
        batch_size=size // count,
        accumulate=settings.accumulate,
        validation_batch_size=settings.val_batch_size,
        validation_every=stride,
        final_every=1 if settings.final_validation == "whole" else stride,
        seed=config.seed,
        probe_text=corpus.probe_text,
    )


def build_module(
    config: TrainConfig,
    data: TokenDataModule,
    weights: checkpoint.Stored | None,
    answers: Answers | None,
) -> LanguageModel:
    """The model, with initial weights or `weights`, and what one optimizer step does."""
    settings, tokenizer = config.trainer, data.store.tokenizer
    torch.manual_seed(config.seed)  # later random numbers depend only on (seed, step, rank)
    model = checkpoint.build_model_for(config.model, tokenizer)
    if weights:
        tensors = without_held(weights.weights())
        try:
            checkpoint.load_weights(model, tensors)
        except UserError as error:
            advice = "leave out the choices of model, so that its own are used"
            raise UserError(f"init_from={config.init_from}: {error}; {advice}") from error
    model.checkpoint_activations = settings.checkpoint_activations
    schedule = build_part(config.schedule, "schedule", max_steps=settings.max_steps)
    compile_model = on_gpu(settings.accelerator) if settings.compile == "auto" else settings.compile
    return LanguageModel(
        model,
        tokenizer,
        optimizer=optimizer_of(config),
        schedule=schedule,
        seed=config.seed,
        gradient_clip=settings.gradient_clip,
        compile_model=compile_model,
        loss_chunk_tokens=settings.loss_chunk_tokens,
        answers=answers,
    )


def optimizer_of(config: TrainConfig) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Makes the optimizer of a model, or raises UserError."""
    make = build_part(config.optimizer, "optimizer")
    return lambda model: make(
        model=model, params=[each for each in model.parameters() if each.requires_grad]
    )
