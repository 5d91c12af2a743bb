"""Every part of a training run, built from its configuration."""

import logging
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich.console import Console

from headscope import checkpoint
from headscope.checkpoint.building import no_larger_than
from headscope.config import build_part
from headscope.config.training import OptimizerConfig, TrainConfig, TrainerConfig
from headscope.data.module import TokenDataModule, validation_stride
from headscope.data.store import TokenStore, prepare_store
from headscope.data.tokenizer import stored
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.precision import supports_bf16
from headscope.terminal import printable
from headscope.training.callbacks.choosing import watchers
from headscope.training.callbacks.clock import Clock
from headscope.training.callbacks.end_of_step import EndOfStep
from headscope.training.callbacks.progress import ProgressReport
from headscope.training.callbacks.samples import Samples
from headscope.training.callbacks.saving import CheckpointSaver
from headscope.training.check import check
from headscope.training.checkpoints import AtomicCheckpointIO
from headscope.training.console import track
from headscope.training.module import LanguageModel
from headscope.training.recovery import Recovered, how_to_continue
from headscope.training.restoring import check_training_state
from headscope.training.resume import check_same_text
from headscope.training.run_folder import EVENTS


@dataclass(frozen=True)
class Run:
    """All parts of a training run, built and ready to fit."""

    folder: Path
    config: TrainConfig
    store: TokenStore
    model: GPT
    module: LanguageModel
    data: TokenDataModule
    trainer: Trainer
    samples: Samples
    saving: CheckpointSaver
    console: Console
    resumed_step: int | None
    resumed_from: Path | None
    resumed_threads: int | None


def build(
    config: TrainConfig,
    *,
    folder: Path,
    console: Console,
    found: Recovered | None = None,
) -> Run:
    """Build the run that `config` describes, in `folder`. Nothing is written there yet.

    With `found`, a checkpoint of the run in `folder`, it continues from there.

    Raises UserError when the configuration does not fit itself, the text or this machine.
    """
    check(config)
    plan = config.trainer

    def warn(line: str) -> None:
        console.print(
            printable(line), style="yellow", highlight=False, soft_wrap=True, markup=False
        )

    resumed = found.content if found else None
    if found and found.notice:
        warn(found.notice)
    init_from = None if found else config.init_from
    source = checkpoint.read(checkpoint.find(init_from, key="init_from")) if init_from else None
    # Weights mean nothing without the tokens they were trained on: a run that began with another
    # run's weights has that run's tokenizer.
    origin = resumed or source
    if source:
        config = replace(config, tokenizer=checkpoint.config_of(source).tokenizer)
    store = prepare_store(
        build_part(config.data),
        partial(stored, state=origin["headscope"]["tokenizer"])
        if config.init_from and origin
        else build_part(config.tokenizer),
        root=Path(config.store_dir),
        track=partial(track, console=console),
        say=warn,
    )
    tokenizer = store.tokenizer
    if found:
        check_same_text(found, store)
    # The first weights are of the seed alone; every later draw is of (seed, step, rank).
    torch.manual_seed(config.seed)
    with _within(found) if found else nullcontext():
        model = checkpoint.build_model(config.model, vocab_size=tokenizer.vocab_size)
    if source and init_from:
        checkpoint.load_weights(model, source, name=init_from)
    model.checkpoint_activations = plan.checkpoint_activations
    make_optimizer = build_part(config.optimizer)
    optimizer = make_optimizer(model)  # raises now, rather than when training begins
    schedule = build_part(config.schedule, max_steps=plan.max_steps)
    schedule(0)
    module = LanguageModel(
        model=model,
        optimizer=make_optimizer,
        schedule=schedule,
        byte_lengths=torch.from_numpy(tokenizer.byte_lengths()),
        seed=config.seed,
        gradient_clip=plan.gradient_clip,
        log_every_steps=plan.log_every_steps,
        compile_model=_on_gpu(plan.accelerator) if plan.compile == "auto" else plan.compile,
        loss_chunk_tokens=plan.loss_chunk_tokens,
        warn=warn,
        how_to_continue=partial(how_to_continue, folder, learning_rates(config.optimizer)),
        contents=checkpoint.contents(
            config=config, tokenizer=tokenizer, store=store.name, precision=precision_of(plan)
        ),
    )
    resumed_step = resumed["global_step"] if resumed else None
    tokens_per_step = plan.batch_size * plan.accumulate * config.model.block_size
    stride = validation_stride(
        validation_tokens=len(store.validation),
        training_tokens=min(plan.val_every_steps, plan.max_steps) * tokens_per_step,
    )
    data = TokenDataModule(
        store,
        block_size=config.model.block_size,
        batch_size=plan.batch_size,
        accumulate=plan.accumulate,
        validation_batch_size=plan.val_batch_size,
        validation_every=stride,
        seed=config.seed,
    )
    clock = Clock(tokens_per_step=tokens_per_step, log_every_steps=plan.log_every_steps)
    tokenizer.encode_prompt(config.callbacks.samples.prompt)  # raises now rather than later
    samples = Samples(tokenizer=tokenizer, seed=config.seed, **vars(config.callbacks.samples))
    saving = CheckpointSaver(
        folder=folder / "checkpoints",
        minutes=config.callbacks.save_every_minutes,
        say=warn,
    )
    progress = ProgressReport(console=console, tokens_per_step=tokens_per_step)
    callbacks: list[Callback] = [
        clock,
        EndOfStep(),
        progress,
        *watchers(config, store, samples, folder),
        saving,
    ]
    trainer = _trainer(config, folder, callbacks, resumed_step=resumed_step)
    if found:
        check_training_state(
            found.content, path=found.path, module=module, trainer=trainer, optimizer=optimizer
        )
    return Run(
        folder=folder,
        config=config,
        store=store,
        model=model,
        module=module,
        data=data,
        trainer=trainer,
        samples=samples,
        saving=saving,
        console=console,
        resumed_step=resumed_step,
        resumed_from=found.path if found else None,
        resumed_threads=resumed["threads"] if resumed else None,
    )


def _within(found: Recovered) -> AbstractContextManager[None]:
    """Stops building a model that is larger than the weights of the checkpoint."""
    return no_larger_than(checkpoint.model_weights(found.content), name=str(found.path))


def learning_rates(optimizer: OptimizerConfig) -> dict[str, float]:
    """The keys of the optimizer's learning rates, and their values."""
    settings = vars(optimizer)
    return {f"optimizer.{key}": settings[key] for key in ("lr", "matrix_lr") if key in settings}


def _trainer(
    config: TrainConfig, folder: Path, callbacks: list[Callback], resumed_step: int | None
) -> Trainer:
    plan = config.trainer
    quiet()
    loggers: list[Logger] = []
    if config.logger:
        # Starts a session: TensorBoard drops what an earlier session logged at these steps. It
        # takes no notice of the first session that it finds, so a new run starts one as well.
        purge_step = 0 if resumed_step is None else resumed_step + 1
        logger = build_part(
            config.logger,
            save_dir=str(folder),
            name="",
            version="tensorboard",
            default_hp_metric=False,
            purge_step=purge_step,
            filename_suffix=EVENTS,
        )
        loggers.append(logger)
    try:
        return Trainer(
            accelerator=plan.accelerator,
            devices=1 if plan.devices == "auto" else plan.devices,
            precision=precision_of(plan),
            max_steps=plan.max_steps,
            accumulate_grad_batches=plan.accumulate,
            val_check_interval=plan.val_every_steps * plan.accumulate,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            logger=loggers,
            callbacks=callbacks,
            plugins=[AtomicCheckpointIO()],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
    except MisconfigurationException as error:
        raise UserError(
            f"trainer.accelerator={plan.accelerator}, trainer.devices={plan.devices}: {error}"
        ) from error


def quiet() -> None:
    """Keep off the console what does not serve the user."""
    # Lightning tells at INFO what hardware there is, what ended a fit, and of its services.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings(
        # Lightning 2.6 on torch 2.13: a deprecation inside it, harmless and not the user's.
        "ignore",
        message="`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    )
    # One process makes batches faster than any GPU takes them.
    warnings.filterwarnings("ignore", message="The 'train_dataloader' does not have many workers")


def precision_of(plan: TrainerConfig) -> Any:
    """In which numbers the trainer of this configuration computes, in Lightning's words."""
    if plan.precision != "auto":
        return plan.precision
    bf16 = _on_gpu(plan.accelerator) and supports_bf16(torch.device("cuda"))
    return "bf16-mixed" if bf16 else "32-true"


def _on_gpu(accelerator: str) -> bool:
    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
