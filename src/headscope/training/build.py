"""Builds all parts of a training run from its configuration."""

from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich.console import Console

from headscope import checkpoint
from headscope.config import build_part
from headscope.config.training import OptimizerConfig, TrainConfig, TrainerConfig
from headscope.data.machine import available_memory
from headscope.data.module import TokenDataModule, validation_stride
from headscope.data.preparing import prepare_store
from headscope.data.store import TokenStore
from headscope.data.tokenizer import stored
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.precision import supports_bf16
from headscope.training.callbacks.checkpoint_saver import CheckpointSaver
from headscope.training.callbacks.clock import Clock
from headscope.training.callbacks.end_of_step import EndOfStep
from headscope.training.callbacks.from_config import optional_callbacks
from headscope.training.callbacks.progress import ProgressReport
from headscope.training.callbacks.samples import Samples
from headscope.training.check import check
from headscope.training.checkpoint_io import AtomicCheckpointIO
from headscope.training.console import say, track
from headscope.training.fit import COMPILED_ERROR, ERROR, Capacity
from headscope.training.memory import Estimate, estimate
from headscope.training.module import LanguageModel
from headscope.training.process import silence_libraries
from headscope.training.processes import Processes, cluster_plugins, number_of, only_this
from headscope.training.recovery import ResumeCheckpoint, how_to_continue
from headscope.training.resume import check_same_text, with_batches_of
from headscope.training.run_folder import EVENT_FILE_SUFFIX
from headscope.training.sharding import ShardedStrategy
from headscope.training.training_state import check_training_state


@dataclass(frozen=True)
class Run:
    """All parts of a training run, ready for `headscope.training.run.fit`."""

    folder: Path
    config: TrainConfig
    store: TokenStore
    model: GPT
    module: LanguageModel
    data: TokenDataModule
    trainer: Trainer
    samples: Samples
    checkpoint_saver: CheckpointSaver
    console: Console
    processes: Processes
    estimate: Estimate
    capacity: Capacity
    resumed_step: int | None
    resumed_from: Path | None
    resumed_threads: int | None
    resumed_processes: int | None


def build(
    config: TrainConfig,
    *,
    folder: Path,
    console: Console,
    resume: ResumeCheckpoint | None = None,
    processes: Processes | None = None,
) -> Run:
    """Builds the run that `config` describes. Does not write to `folder`, the folder of the run.

    If `resume` is given, the run continues from this checkpoint, which must belong to the run in
    `folder`. If several `processes` train together, each of them builds the run; by default, only
    this process trains.

    Raises UserError if the configuration is inconsistent, or if it does not fit the text or this
    machine.
    """
    processes = processes or only_this(config.trainer)
    if resume:
        config = with_batches_of(resume, config)
    check(config, processes.count)

    warn = partial(say, console, style="yellow")

    resumed = resume.stored if resume else None
    if resume and resume.notice:
        warn(resume.notice)
    init_from = None if resume else config.init_from
    source = checkpoint.read(checkpoint.find(init_from, key="init_from")) if init_from else None
    # Weights can only be used with the tokenizer that they were trained with. So a run that starts
    # from the weights of another run also uses the tokenizer of that run.
    origin = resumed or source
    if source:
        config = replace(config, tokenizer=source.config.tokenizer)
    corpus = build_part(config.data)
    with processes.first_goes_first():
        store = prepare_store(
            corpus,
            partial(stored, state=origin.data["tokenizer"])
            if config.init_from and origin
            else build_part(config.tokenizer),
            root=Path(config.store_dir),
            track=partial(track, console=console),
            say=warn,
        )
    tokenizer = store.tokenizer
    if resume:
        check_same_text(resume, store)
        checkpoint.check_weights(config.model, tokenizer, resume.stored.weights())
    capacity = _capacity(config, processes, tokenizer.vocab_size, fixed_batch=resume is not None)
    if config.trainer.accumulate == "auto":
        config = capacity.fewest_parts(config)
    needed = capacity.estimated(config)
    if warning := capacity.check(config, needed):
        warn(warning)
    settings = config.trainer
    # The initial weights depend only on the seed. All later random numbers depend only on (seed,
    # step, rank).
    torch.manual_seed(config.seed)
    model = checkpoint.build_model_for(config.model, tokenizer)
    if source and init_from:
        checkpoint.load_weights(model, source, name=init_from)
    model.checkpoint_activations = settings.checkpoint_activations
    # The optimizer and the schedule are called here, so that an invalid setting raises UserError
    # before training begins.
    make_optimizer = build_part(config.optimizer)
    optimizer = make_optimizer(model)
    schedule = build_part(config.schedule, max_steps=settings.max_steps)
    schedule(0)
    if not tokenizer.encode_prompt(config.callbacks.samples.prompt):
        tokenizer.first_token()  # raises UserError if there is none
    module = LanguageModel(
        model=model,
        optimizer=make_optimizer,
        schedule=schedule,
        byte_lengths=torch.from_numpy(tokenizer.byte_lengths()),
        text_per_token_byte=store.text_per_token_byte,
        seed=config.seed,
        gradient_clip=settings.gradient_clip,
        log_every_steps=settings.log_every_steps,
        compile_model=_on_gpu(settings.accelerator)
        if settings.compile == "auto"
        else settings.compile,
        loss_chunk_tokens=settings.loss_chunk_tokens,
        warn=warn,
        build_model=partial(checkpoint.build_model_for, config.model, tokenizer),
        how_to_continue=partial(how_to_continue, folder, learning_rates(config.optimizer)),
        contents=checkpoint.contents(
            config=config, tokenizer=tokenizer, store=store.name, precision=precision_of(settings)
        ),
    )
    resumed_step = resumed.step if resumed else None
    tokens_per_step = settings.batch_size * settings.accumulate * config.model.block_size
    stride = validation_stride(
        validation_tokens=len(store.validation),
        training_tokens=min(settings.val_every_steps, settings.max_steps) * tokens_per_step,
    )
    data = TokenDataModule(
        store,
        block_size=config.model.block_size,
        batch_size=settings.batch_size // processes.count,
        accumulate=settings.accumulate,
        validation_batch_size=settings.val_batch_size,
        validation_every=stride,
        final_every=1 if settings.final_validation == "whole" else stride,
        seed=config.seed,
    )
    clock = Clock(tokens_per_step=tokens_per_step, log_every_steps=settings.log_every_steps)
    samples = Samples(tokenizer=tokenizer, seed=config.seed, **vars(config.callbacks.samples))
    checkpoint_saver = CheckpointSaver(
        folder=folder / "checkpoints",
        minutes=config.callbacks.save_every_minutes,
        say=warn,
        largest=processes.largest,
    )
    progress = ProgressReport(console=console, tokens_per_step=tokens_per_step)
    callbacks: list[Callback] = [
        clock,
        EndOfStep(),
        progress,
        *optional_callbacks(
            config, store, samples, folder, probe=corpus.probe_text, say=partial(say, console)
        ),
        checkpoint_saver,
    ]
    trainer = _build_trainer(config, folder, callbacks, processes, resumed_step=resumed_step)
    if resume:
        check_training_state(resume.stored, trainer, optimizer)
    return Run(
        folder=folder,
        config=config,
        store=store,
        model=model,
        module=module,
        data=data,
        trainer=trainer,
        samples=samples,
        checkpoint_saver=checkpoint_saver,
        console=console,
        processes=processes,
        estimate=needed,
        capacity=capacity,
        resumed_step=resumed_step,
        resumed_from=resume.path if resume else None,
        resumed_threads=resumed.data["training"]["threads"] if resumed else None,
        resumed_processes=resumed.data["training"]["processes"] if resumed else None,
    )


def _capacity(
    config: TrainConfig, processes: Processes, vocab_size: int, *, fixed_batch: bool
) -> Capacity:
    """The memory that each process of this run may use, and what it needs."""
    settings = config.trainer
    gpu = _on_gpu(settings.accelerator)
    number = settings.devices[0] if isinstance(settings.devices, list) else 0
    free, gpu_memory = torch.cuda.mem_get_info(number) if gpu else (available_memory(), None)
    if not gpu:  # the processes of a machine share its memory
        free /= number_of(processes.devices)
    return Capacity(
        available=processes.from_first(free),  # all processes must decide the same
        estimated=partial(
            estimate,
            vocab_size=vocab_size,
            precision=precision_of(settings),
            gpu_memory=gpu_memory,
            devices=processes.count,
            strategy="ddp" if settings.strategy == "auto" else settings.strategy,
            traces={},
        ),
        devices=processes.count,
        error=COMPILED_ERROR if settings.compile is True or gpu else ERROR,
        fixed_batch=fixed_batch,
    )


def learning_rates(optimizer: OptimizerConfig) -> dict[str, float]:
    """Maps the key of each learning rate of the optimizer, such as `optimizer.lr`, to its value."""
    settings = vars(optimizer)
    return {f"optimizer.{key}": settings[key] for key in ("lr", "matrix_lr") if key in settings}


def _build_trainer(
    config: TrainConfig,
    folder: Path,
    callbacks: list[Callback],
    processes: Processes,
    resumed_step: int | None,
) -> Trainer:
    settings = config.trainer
    silence_libraries()
    loggers: list[Logger] = []
    if config.logger:
        try:
            import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise UserError(
                "logger=tensorboard needs the package tensorboard: install it with pip install "
                "tensorboard, or train without a logger: ~logger"
            ) from error
        # If a run is resumed, TensorBoard hides its earlier entries from step `purge_step` on.
        # TensorBoard ignores the first `purge_step` in a folder, so a new run must also set one.
        purge_step = 0 if resumed_step is None else resumed_step + 1
        logger = build_part(
            config.logger,
            save_dir=str(folder),
            name="",
            version="tensorboard",
            default_hp_metric=False,
            purge_step=purge_step,
            filename_suffix=EVENT_FILE_SUFFIX,
        )
        loggers.append(logger)
    try:
        return Trainer(
            accelerator=settings.accelerator,
            devices=processes.devices,
            num_nodes=processes.nodes,
            strategy=_strategy(settings.strategy, processes.count),
            precision=precision_of(settings),
            max_steps=settings.max_steps,
            accumulate_grad_batches=settings.accumulate,
            val_check_interval=settings.val_every_steps * settings.accumulate,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            logger=loggers,
            callbacks=callbacks,
            plugins=[AtomicCheckpointIO(), *cluster_plugins()],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
    except MisconfigurationException as error:
        raise UserError(
            f"trainer.accelerator={settings.accelerator}, trainer.devices={settings.devices}: "
            f"{error}"
        ) from error


def _strategy(name: str, processes: int) -> Strategy | str:
    """Lightning's strategy for `trainer.strategy`. With one process, there is nothing to choose."""
    if processes == 1:
        return "auto"
    if name == "fsdp":
        return ShardedStrategy(processes)
    # The model's buffers never change. The gradients need no memory besides what DDP sends.
    return DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True)


def precision_of(settings: TrainerConfig) -> Any:
    """The precision of training, under Lightning's name for it, such as `bf16-mixed`."""
    if settings.precision != "auto":
        return settings.precision
    bf16 = _on_gpu(settings.accelerator) and supports_bf16(torch.device("cuda"))
    return "bf16-mixed" if bf16 else "32-true"


def _on_gpu(accelerator: str) -> bool:
    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
