"""Lightning's Trainer for a run: devices, precision, loggers and the Trainer's own arguments."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich.console import Console

from headscope.config.parse import checked, suggestion
from headscope.config.parts import arguments_of, build_part, built_by_hydra, locate
from headscope.config.training import Precision, TrainConfig, TrainerConfig
from headscope.errors import UserError, first_line, short
from headscope.nn.precision import supports_bf16
from headscope.trained.checkpoint import Stored
from headscope.trained.checkpoint.file import SUFFIX
from headscope.training.callbacks.progress import ProgressReport
from headscope.training.callbacks.saving import CheckpointSaver
from headscope.training.checkpoint_io import SafetensorsIO
from headscope.training.loggers import EVENT_FILE_SUFFIX
from headscope.training.processes import cluster_plugins, layout

OURS = {
    **dict.fromkeys(("max_epochs", "min_epochs", "min_steps"), "trainer.max_steps"),
    "limit_train_batches": "trainer.max_steps",
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch"), "trainer.val_every_steps"),
    "log_every_n_steps": "trainer.log_every_steps",
    "accumulate_grad_batches": "trainer.accumulate",
    **dict.fromkeys(("gradient_clip_val", "gradient_clip_algorithm"), "trainer.gradient_clip"),
    "callbacks": "callbacks.NAME._target_",
    "logger": "logger",
    "default_root_dir": "hydra.run.dir",
    "plugins": "trainer.precision, trainer.devices or trainer.num_nodes",
    "barebones": "callbacks=plain ~logger",
}
"""Arguments of lightning.Trainer that headscope sets, and what the user sets instead."""

DDP: Any = {"broadcast_buffers": False, "gradient_as_bucket_view": True}
"""The model's buffers never change. The gradients need no memory besides what DDP sends."""

HIDDEN = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning 2.6 causes it with torch 2.13
    r"`broadcast_buffers` is deprecated",  # older versions than torch 2.13 have no other name
    r"The `srun` command is available",  # one process is what is wanted
    r"It is recommended to use `self\.log\(",  # LanguageModel sums the losses of all processes
    r"You're resuming from a checkpoint that ended before the epoch",  # `Steps` knows the step
    r"Be aware that when using `ckpt_path`, callbacks",  # print_resume says so
    r"The number of training batches \(\d+\) is smaller",  # logging goes by steps
    r"Using ModelCheckpoint with manual optimization",  # a step is one optimizer step here
)
"""Warnings that do not help the user."""


def silence_libraries() -> None:
    """Hides what Lightning says about the hardware and other products, but not the results of
    profilers, and why a callback stops training."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for package in ("callbacks", "profilers"):
        logging.getLogger(f"lightning.pytorch.{package}").setLevel(logging.INFO)
    logging.getLogger("lightning").propagate = False  # Hydra would print it a second time
    for message in HIDDEN:
        warnings.filterwarnings("ignore", message)


def build_trainer(
    config: TrainConfig,
    folder: Path,
    callbacks: Sequence[Callback],
    loggers: Sequence[Logger],
    contents: dict[str, Any],
) -> Trainer:
    """Lightning's trainer. Raises UserError if an argument is wrong."""
    settings = config.trainer
    devices, nodes, processes = layout(settings)
    arguments: dict[str, Any] = {
        "accelerator": settings.accelerator,
        "devices": devices,
        "num_nodes": nodes,
        "strategy": DDPStrategy(**DDP) if processes > 1 else "auto",
        "precision": precision_of(settings),
        "max_steps": settings.max_steps,
        "val_check_interval": settings.val_every_steps,
        "check_val_every_n_epoch": None,
        "log_every_n_steps": settings.log_every_steps,
        "num_sanity_val_steps": 0,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
        "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in callbacks),
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        **built_by_hydra(checked_arguments(settings.arguments)),
    }
    try:
        trainer = Trainer(
            **arguments,
            callbacks=[*callbacks],
            logger=[*loggers],
            default_root_dir=str(folder),
            plugins=[SafetensorsIO(contents), *cluster_plugins()],
        )
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        ours = {"accelerator": settings.accelerator, "devices": settings.devices}
        given = settings.arguments or ours
        words = ", ".join(f"trainer.{key}={short(value)}" for key, value in given.items())
        raise UserError(f"{words}: {first_line(error)}") from error
    # Lightning's handler of SIGTERM saves nothing, and ends the process with the exit code 0.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    for callback in trainer.checkpoint_callbacks:
        if hasattr(callback, "FILE_EXTENSION"):
            callback.FILE_EXTENSION = SUFFIX  # its files are checkpoints of headscope
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
            callback.dirpath = str((folder / "model_checkpoints").resolve())
    return trainer


def checked_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of lightning.Trainer, as the types that it expects. Raises UserError if it has no
    such argument, or if a key of ours sets it."""
    typed = {}
    for name, value in arguments.items():
        if name in OURS:
            raise UserError(f"trainer.{name}={short(value)}: headscope sets this: use {OURS[name]}")
        known = arguments_of(Trainer)
        if name not in known:
            hint = suggestion(name, dict.fromkeys([*known, *TrainerConfig.__annotations__]))
            raise UserError(f"trainer.{name}: neither headscope nor lightning.Trainer has it{hint}")
        if str(value).startswith(("ddp_spawn", "ddp_fork", "ddp_notebook")):
            raise UserError(f"trainer.{name}={value}: use trainer.devices, which starts processes")
        is_part = isinstance(value, dict) and "_target_" in value
        kind = Any if is_part else known[name].annotation
        typed[name] = checked(kind, value, f"trainer.{name}", "", True)
    return typed


def build_callbacks(
    config: TrainConfig, console: Console, more: Sequence[Callback]
) -> list[Callback]:
    """The callbacks of the configuration, and `more`, without ours that the Trainer's arguments or
    another progress bar replace. Raises UserError if one cannot be made."""
    callbacks = [*more]
    chosen = [type(each).__name__ for each in more]
    chosen += [part["_target_"].rpartition(".")[2] for part in config.callbacks.values() if part]
    if "StochasticWeightAveraging" in chosen:
        problem = "callbacks: StochasticWeightAveraging needs Lightning's automatic optimization"
        raise UserError(f"{problem}: use lightning.pytorch.callbacks.EMAWeightAveraging")
    for name, part in config.callbacks.items():
        if part:
            callbacks.append(build_part(part, "callbacks", f"callbacks.{name}", console=console))
    arguments = config.trainer.arguments
    bars = [each for each in callbacks if isinstance(each, ProgressBar)]
    if len(bars) > 1 or arguments.get("enable_progress_bar") is False:
        callbacks = [each for each in callbacks if type(each) is not ProgressReport]
    if arguments.get("enable_checkpointing") is False:
        callbacks = [each for each in callbacks if not isinstance(each, CheckpointSaver)]
    # Lightning calls subclasses of Checkpoint last, in this order. The saver saves their state too.
    return sorted(callbacks, key=lambda each: isinstance(each, CheckpointSaver))


def build_loggers(config: TrainConfig, folder: Path, resume: Stored | None) -> list[Logger]:
    """The loggers of the configuration, which write to the folder of the run by default."""
    loggers = []
    chosen = {name: part for name, part in config.logger.items() if part}
    for name, part in chosen.items():
        target = locate(part["_target_"])
        given: dict[str, Any] = {}
        if part.get("save_dir") is None and "save_dir" in arguments_of(target):
            given["save_dir"] = str(folder)
        if isinstance(target, type) and issubclass(target, TensorBoardLogger):
            # TensorBoard hides earlier entries from step `purge_step` on. It ignores the first
            # `purge_step` in a folder, so a new run must set one too.
            given["purge_step"] = resume.step + 1 if resume else 0
            given["filename_suffix"] = EVENT_FILE_SUFFIX
        loggers.append(build_part(part, "logger", f"logger.{name}", **given))
    return loggers


def precision_of(settings: TrainerConfig) -> Precision:
    """The precision of training, under Lightning's name for it, such as `bf16-mixed`."""
    if settings.precision != "auto":
        return settings.precision
    bf16 = on_gpu(settings.accelerator) and supports_bf16(torch.device("cuda"))
    return "bf16-mixed" if bf16 else "32-true"


def on_gpu(accelerator: str) -> bool:
    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
