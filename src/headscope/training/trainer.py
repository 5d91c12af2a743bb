"""Lightning's Trainer for a run: devices, precision and the logger."""

import logging
import warnings
from importlib import import_module
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from headscope.checkpoint import Stored
from headscope.config.training import Precision, TrainConfig, TrainerConfig
from headscope.errors import UserError, first_line
from headscope.nn.precision import supports_bf16
from headscope.training.checkpoint_io import SafetensorsIO
from headscope.training.processes import Processes, cluster_plugins
from headscope.training.run_folder import EVENT_FILE_SUFFIX

HIDDEN = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning 2.6 causes it with torch 2.13
    r"`broadcast_buffers` is deprecated",  # older versions than torch 2.13 have no other name
    r"The `srun` command is available",  # one process is what is wanted
    r"It is recommended to use `self\.log\(",  # LanguageModel sums the losses of all processes
    r"The 'train_dataloader' does not have many workers",  # one is faster than any GPU
)
"""Warnings that do not help the user."""


def silence_libraries() -> None:
    """Hides what Lightning says about the hardware, the end of training, and other products."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning").propagate = False  # Hydra would print it a second time
    for message in HIDDEN:
        warnings.filterwarnings("ignore", message)


def build_trainer(
    config: TrainConfig,
    folder: Path,
    callbacks: list[Callback],
    processes: Processes,
    resume: Stored | None,
) -> Trainer:
    """Lightning's trainer, which calls the module and the callbacks, and logs to TensorBoard."""
    settings = config.trainer
    silence_libraries()
    loggers: list[Logger] = []
    if config.logger:
        # If a run is resumed, TensorBoard hides its earlier entries from step `purge_step` on.
        # TensorBoard ignores the first `purge_step` in a folder, so a new run must also set one.
        try:
            import_module("torch.utils.tensorboard")
            logger = TensorBoardLogger(
                save_dir=str(folder),
                name="",
                version="tensorboard",
                default_hp_metric=False,
                purge_step=resume.step + 1 if resume else 0,
                filename_suffix=EVENT_FILE_SUFFIX,
            )
        except ImportError as error:
            raise UserError(
                "logger=tensorboard needs the package tensorboard: install it with pip install "
                "tensorboard, or train without a logger: ~logger"
            ) from error
        loggers.append(logger)
    try:
        trainer = Trainer(
            accelerator=settings.accelerator,
            devices=processes.devices,
            num_nodes=processes.nodes,
            strategy=strategy_of(processes.count),
            precision=precision_of(settings),
            max_steps=settings.max_steps,
            val_check_interval=settings.val_every_steps,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            logger=loggers,
            callbacks=callbacks,
            plugins=[SafetensorsIO(), *cluster_plugins()],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
    except (MisconfigurationException, ValueError, TypeError, RuntimeError) as error:
        raise UserError(
            f"trainer.accelerator={settings.accelerator}, trainer.devices={settings.devices}: "
            f"{first_line(error)}"
        ) from error
    # Lightning's handler of SIGTERM saves nothing, and ends the process with the exit code 0.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    return trainer


def strategy_of(processes: int) -> Strategy | str:
    """Lightning's strategy for this number of processes."""
    if processes == 1:
        return "auto"
    # The model's buffers never change. The gradients need no memory besides what DDP sends.
    return DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True)


def precision_of(settings: TrainerConfig) -> Precision:
    """The precision of training, under Lightning's name for it, such as `bf16-mixed`."""
    if settings.precision != "auto":
        return settings.precision
    bf16 = on_gpu(settings.accelerator) and supports_bf16(torch.device("cuda"))
    return "bf16-mixed" if bf16 else "32-true"


def on_gpu(accelerator: str) -> bool:
    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
