"""Every part of a training run, built from its configuration."""

import logging
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from headscope import checkpoint
from headscope.callbacks.clock import Clock
from headscope.callbacks.end_of_step import EndOfStep
from headscope.callbacks.progress import ProgressReport
from headscope.callbacks.samples import Samples
from headscope.callbacks.saving import Saving
from headscope.check import check
from headscope.console import track
from headscope.data.module import TokenDataModule, validation_stride
from headscope.data.store import TokenStore, prepare_store
from headscope.data.tokenizer import stored
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.resume import check_resumed
from headscope.training.checkpoints import AtomicCheckpointIO
from headscope.training.module import LanguageModel
from headscope.watchers import watchers


@dataclass(frozen=True)
class Run:
    """All parts of a training run, built and ready to fit."""

    folder: Path
    config: DictConfig
    store: TokenStore
    model: GPT
    module: LanguageModel
    data: TokenDataModule
    trainer: Trainer
    samples: Samples
    saving: Saving
    console: Console
    resumed_step: int | None
    resumed_threads: int | None


def build(
    config: DictConfig,
    *,
    folder: Path,
    overrides: list[str],
    console: Console,
    resume: bool = False,
) -> Run:
    """Build the run that `config` describes, in `folder`. Nothing is written there yet.

    With `resume`, the run in `folder` goes on from its last checkpoint. `overrides` are the words
    of the command line, kept for a later resume.

    Raises UserError when the configuration does not fit itself, the text or this machine.
    """
    check(config)
    plan = config.trainer
    warn = partial(console.print, style="yellow", highlight=False, soft_wrap=True, markup=False)
    last = folder / "checkpoints" / "last.ckpt"
    resumed = checkpoint.read(last) if resume else None
    # Weights mean nothing without the tokens they were trained on.
    fresh = config.init_from and not resume
    source = checkpoint.read(checkpoint.find(config.init_from, key="init_from")) if fresh else None
    store = prepare_store(
        instantiate(config.data),
        partial(stored, state=source["headscope"]["tokenizer"])
        if source
        else instantiate(config.tokenizer),
        root=Path(config.store_dir),
        track=partial(track, console=console),
    )
    tokenizer = store.tokenizer
    # The first weights are of the seed alone; every later draw is of (seed, step, rank).
    torch.manual_seed(config.seed)
    model = checkpoint.build_model(config.model, vocab_size=tokenizer.vocab_size)
    if source:
        checkpoint.load_weights(model, source, name=config.init_from)
    if resumed:
        check_resumed(resumed, config, store, folder)
    model.checkpoint_activations = plan.checkpoint_activations
    make_optimizer = instantiate(config.optimizer)
    make_optimizer(model)  # raises now, rather than when training begins, as does the next
    schedule = bare(instantiate(config.schedule, max_steps=plan.max_steps))
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
        contents=checkpoint.contents(
            config=plain(config), tokenizer=tokenizer, store=store.name, overrides=overrides
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
    samples = Samples(tokenizer=tokenizer, seed=config.seed, **config.callbacks.samples)
    saving = Saving(
        folder=last.parent,
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
    return Run(
        folder=folder,
        config=config,
        store=store,
        model=model,
        module=module,
        data=data,
        trainer=_trainer(config, folder, callbacks, resumed_step=resumed_step),
        samples=samples,
        saving=saving,
        console=console,
        resumed_step=resumed_step,
        resumed_threads=resumed.get("threads") if resumed else None,
    )


def bare(made: partial[Any]) -> partial[Any]:
    """A partial of Hydra's as Python's own: Hydra's asks itself at every call, for a third of a
    millisecond, whether it may."""
    return partial(made.func, *made.args, **made.keywords)


def _trainer(
    config: DictConfig, folder: Path, callbacks: list[Callback], resumed_step: int | None
) -> Trainer:
    plan = config.trainer
    quiet()
    loggers: list[Logger] = []
    if config.logger:
        more = {}
        if config.logger._target_.endswith("TensorBoardLogger"):
            # Starts a session: TensorBoard drops what an earlier session logged at these steps. It
            # takes no notice of the first session that it finds, so a new run starts one as well.
            more["purge_step"] = 0 if resumed_step is None else resumed_step + 1
        loggers.append(instantiate(config.logger, save_dir=str(folder), **more))
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


def precision_of(plan: DictConfig) -> Any:
    """In which numbers the trainer of this configuration computes, in Lightning's words."""
    if plan.precision != "auto":
        return plan.precision
    bf16 = _on_gpu(plan.accelerator) and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if bf16 else "32-true"


def _on_gpu(accelerator: str) -> bool:
    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def plain(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain data, without what only says how this process was started."""
    content = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items() if key != "resume"}
