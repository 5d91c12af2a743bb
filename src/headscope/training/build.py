"""Builds all parts of a training run from its configuration."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from rich.console import Console

from headscope import checkpoint
from headscope.config.messages import full_keys
from headscope.config.parts import build_part
from headscope.config.training import TrainConfig
from headscope.data.encode import answers_of
from headscope.data.module import TokenDataModule, validation_stride
from headscope.data.store import TokenStore, prepare_store
from headscope.data.tokenizer import stored
from headscope.nn import GPT
from headscope.nn.loss import Answers
from headscope.training.callbacks.checkpoint_saver import CheckpointSaver
from headscope.training.callbacks.clock import Clock
from headscope.training.callbacks.from_config import optional_callbacks
from headscope.training.callbacks.progress import ProgressReport
from headscope.training.callbacks.samples import Samples
from headscope.training.check import check
from headscope.training.console import say, track
from headscope.training.module import LanguageModel
from headscope.training.optimizer import optimizer_of
from headscope.training.processes import Processes, connect
from headscope.training.resume import (
    check_same_text,
    check_training_state,
    how_to_continue,
)
from headscope.training.trainer import build_trainer, on_gpu, precision_of


@dataclass(frozen=True)
class Run:
    """All parts of a training run, ready for `headscope.training.run.fit`. If it is resumed,
    `resume` is the checkpoint that it continues from."""

    folder: Path
    config: TrainConfig
    processes: Processes
    console: Console
    resume: checkpoint.Stored | None
    store: TokenStore
    data: TokenDataModule
    module: LanguageModel
    samples: Samples
    checkpoint_saver: CheckpointSaver
    trainer: Trainer

    @property
    def model(self) -> GPT:
        return self.module.model

    def say(self, line: str) -> None:
        """Prints a line."""
        say(self.console, line)


def build(
    config: TrainConfig,
    *,
    folder: Path,
    console: Console,
    resume: checkpoint.Stored | None = None,
    processes: Processes | None = None,
) -> Run:
    """Builds the run that `config` describes. Does not write to `folder`, the folder of the run. If
    `resume` is given, the run continues from this checkpoint in `folder`. If several `processes`
    train together, each of them builds the run; by default, only this process trains.

    Raises UserError if the configuration is inconsistent, or does not fit the text or this machine.
    """
    processes = processes or connect(config.trainer, alone=True)
    warn = partial(say, console, style="yellow")
    check(config, processes.count)
    # A run may start from the weights of another run, which need the tokenizer of that run.
    weights = None
    if config.init_from and not resume:
        weights = checkpoint.read(checkpoint.find(config.init_from, key="init_from"))
        config = replace(config, tokenizer=weights.config.tokenizer)
    origin = resume if resume and config.init_from else weights
    corpus = build_part(config.data, "data")
    if origin:
        own = checkpoint.own_tokenizer(origin)
        tokenizer: Any = partial(stored, own, state=origin.data["tokenizer"])
    else:
        tokenizer = build_part(config.tokenizer, "tokenizer")
    root, show = Path(config.store_dir), partial(track, console=console)
    with processes.first_goes_first():
        store = prepare_store(corpus, tokenizer, root=root, track=show, say=warn)
    if resume:
        check_same_text(resume, store)
        checkpoint.check_weights(config.model, store.tokenizer, resume.weights())
    answers = answers_of(corpus, store.tokenizer)
    module = build_module(config, store, weights, folder, answers, warn)
    data = build_data(config, store, processes)
    samples = Samples(tokenizer=store.tokenizer, seed=config.seed, **vars(config.callbacks.samples))
    saver = CheckpointSaver(
        folder=folder / "checkpoints",
        minutes=config.callbacks.save_every_minutes,
        largest=processes.largest,
    )
    tokens = tokens_per_step(config)
    # Clock is first. Early stopping comes before the callbacks that read `should_stop`. The saver
    # is last, because a checkpoint contains the state of all callbacks.
    callbacks = [
        Clock(tokens_per_step=tokens, log_every_steps=config.trainer.log_every_steps),
        ProgressReport(console=console, tokens_per_step=tokens),
        *optional_callbacks(
            config, store, samples, folder, probe=corpus.probe_text, say=partial(say, console)
        ),
        saver,
    ]
    trainer = build_trainer(config, folder, callbacks, processes, resume)
    if resume:
        check_training_state(resume, trainer)
    return Run(
        folder=folder,
        config=config,
        processes=processes,
        console=console,
        resume=resume,
        store=store,
        data=data,
        module=module,
        samples=samples,
        checkpoint_saver=saver,
        trainer=trainer,
    )


def tokens_per_step(config: TrainConfig) -> int:
    """The tokens of an optimizer step on all devices."""
    return config.trainer.batch_size * config.trainer.accumulate * config.model.block_size


def build_module(
    config: TrainConfig,
    store: TokenStore,
    weights: checkpoint.Stored | None,
    folder: Path,
    answers: Answers | None,
    warn: Callable[[str], None],
) -> LanguageModel:
    """The model, with initial weights or `weights`, and what one optimizer step does."""
    settings, tokenizer = config.trainer, store.tokenizer
    # The initial weights depend only on the seed. All later random numbers depend only on (seed,
    # step, rank).
    torch.manual_seed(config.seed)
    model = checkpoint.build_model_for(config.model, tokenizer)
    if weights and config.init_from:
        checkpoint.load_weights(model, weights, name=config.init_from)
    model.checkpoint_activations = settings.checkpoint_activations
    make_optimizer = partial(optimizer_of, make=build_part(config.optimizer, "optimizer"))
    with full_keys(config.optimizer, "optimizer"):
        make_optimizer(model)  # an invalid setting raises UserError now
    with full_keys(config.schedule, "schedule"):
        schedule = build_part(config.schedule, "schedule", max_steps=settings.max_steps)
    if not tokenizer.encode_prompt(config.callbacks.samples.prompt):
        tokenizer.first_token()  # raises UserError if there is none
    compile_model = on_gpu(settings.accelerator) if settings.compile == "auto" else settings.compile
    return LanguageModel(
        model=model,
        optimizer=make_optimizer,
        schedule=schedule,
        byte_lengths=torch.from_numpy(tokenizer.byte_lengths()),
        text_per_token_byte=store.text_per_token_byte,
        seed=config.seed,
        gradient_clip=settings.gradient_clip,
        log_every_steps=settings.log_every_steps,
        compile_model=compile_model,
        loss_chunk_tokens=settings.loss_chunk_tokens,
        answers=answers,
        warn=warn,
        how_to_continue=partial(how_to_continue, folder, config),
        contents=checkpoint.contents(
            config, tokenizer, store.name, precision_of(settings), answers
        ),
    )


def build_data(config: TrainConfig, store: TokenStore, processes: Processes) -> TokenDataModule:
    """The batches of training and validation."""
    settings = config.trainer
    stride = validation_stride(
        validation_tokens=len(store.validation),
        training_tokens=min(settings.val_every_steps, settings.max_steps) * tokens_per_step(config),
    )
    return TokenDataModule(
        store,
        block_size=config.model.block_size,
        batch_size=settings.batch_size // processes.count,
        accumulate=settings.accumulate,
        validation_batch_size=settings.val_batch_size,
        validation_every=stride,
        final_every=1 if settings.final_validation == "whole" else stride,
        seed=config.seed,
    )
