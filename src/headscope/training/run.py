"""Runs the training and writes the summary."""

import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from headscope.config.own_parts import own_code
from headscope.config.parts import defaults_in_conf
from headscope.errors import UserError, first_line, ran_out_of_memory
from headscope.files import write_summary
from headscope.machine import keep_freed_memory
from headscope.nn.precision import tf32
from headscope.training.build import Run
from headscope.training.callbacks.saving import CheckpointSaver
from headscope.training.callbacks.steps import StepCallback
from headscope.training.console import print_final_validation
from headscope.training.loggers import (
    log_final,
    log_settings,
    report_lost_log,
    sort_before_now,
    tensorboards,
)
from headscope.training.module import Diverged
from headscope.training.processes import lost_connection
from headscope.training.resume import does_not_fit
from headscope.training.run_folder import how_to_resume, is_run, remove_leftovers

WRONG_STATE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""What Lightning raises while it restores a training state that lacks an entry, for example."""


def fit(run: Run) -> dict[str, Any]:
    """Trains the model, evaluates the final weights on the validation split, and writes
    `summary.json`. Returns its content, or nothing after `fast_dev_run`. Raises Interrupted after a
    stop signal, and UserError if training diverges, or if memory or disk space runs out."""
    keep_freed_memory()
    if run.trainer.is_global_zero and not run.trainer.fast_dev_run:
        for logger in tensorboards(run.trainer):
            sort_before_now(Path(logger.log_dir))
    try:
        with report_lost_log(run.folder), tf32(run.trainer.strategy.root_device):
            return _fit(run)
    except Exception as error:
        problem = explained(run, error)
        if run.trainer.is_global_zero and (problem or isinstance(error, UserError | OSError)):
            remove_leftovers(run.folder)
        if problem:
            raise UserError(problem) from error
        raise
    finally:
        wandb = sys.modules.get("wandb")
        used = any(isinstance(logger, WandbLogger) for logger in run.trainer.loggers)
        if used and wandb and wandb.run:
            wandb.finish()  # or the next run in this process would continue it


def _fit(run: Run) -> dict[str, Any]:
    device, trainer = run.trainer.strategy.root_device, run.trainer
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)  # forget the peak of an earlier run
    log_settings(trainer, run.config.kept())
    checkpoint = run.resume.path if run.resume else None
    trainer.fit(run.module, datamodule=run.data, ckpt_path=checkpoint, weights_only=True)
    if trainer.fast_dev_run:
        return {}
    limit = trainer.limit_val_batches  # 0: no validation
    whole = type(limit) is float and limit == 1.0
    if limit:
        print_final_validation(run, whole)
    run.module.logs_validate = False  # logged below, as the final losses
    trainer.validate(run.module, datamodule=run.data, verbose=False)
    steps, timer = trainer.global_step, run.module.timer
    tokens = steps * run.data.tokens_per_step
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
    losses = {f"val_{key}": metrics.get(f"val/{key}") for key in ("loss", "bits_per_byte")}
    validation = run.config.trainer.final_validation if whole else "part"
    saver = run.callback(CheckpointSaver)
    watching = [callback for callback in trainer.callbacks if isinstance(callback, StepCallback)]
    summary = {
        **losses,
        "validation": validation if limit else "none",
        "best_val_loss": saver and saver.state_dict()["best_val_loss"],
        "steps": steps,
        "tokens": tokens,
        "parameters": run.module.model.parameter_count(),
        "train_seconds": round(timer.seconds(), 2),
        "wall_seconds": round(timer.wall_seconds(), 2),
        "watching_seconds": round(sum(callback.seconds for callback in watching), 2),
        "tokens_per_second": round(tokens / max(timer.seconds(), 1e-9), 1),
        "seed": run.config.seed,
        "precision": trainer.precision,
        "device": device_name(device),
        "devices": trainer.world_size,
    }
    if device.type == "cuda":
        summary["peak_memory_mib"] = torch.cuda.max_memory_allocated(device) >> 20
    final = {f"final/{name}": value for name, value in losses.items() if value is not None}
    log_final(trainer, run.config.kept(), final, steps)
    if trainer.is_global_zero:
        write_summary(run.folder, summary)
    return summary


def explained(run: Run, error: Exception) -> str | None:
    """One line about an error, and how to continue. None if it may be a bug of headscope."""
    again, settings, model = "", run.config.trainer, run.config.model
    if is_run(run.folder):
        again = f"; to continue from the last checkpoint: {how_to_resume(run.folder, run.config)}"
    if isinstance(error, Diverged):
        optimizer = run.config.optimizer
        defaults = defaults_in_conf("optimizer").get(optimizer["_target_"], {})
        for key in ("lr", "matrix_lr") if again else ():
            rate: Any = optimizer.get(key)
            if isinstance(rate, int | float):
                again += f" optimizer.{key}={min(rate / 2, defaults.get(key, rate)):g}"
        return f"{error}{again}"
    if isinstance(error, UserError):
        return None
    if lost_connection(error):
        return f"another process of this run has ended unexpectedly{again}"
    if ran_out_of_memory(error):
        return (
            f"out of memory after step {run.trainer.global_step}: lower trainer.batch_size="
            f"{settings.batch_size} and raise trainer.accumulate={settings.accumulate} by the same "
            f"factor, or lower model.block_size={model.block_size} or the model's sizes; "
            "trainer.checkpoint_activations=true and trainer.loss_chunk_tokens=auto save memory "
            f"({first_line(error)}){again}"
        )
    if isinstance(error, MisconfigurationException):  # of Lightning
        return " ".join(str(error).split())
    if own_code(error):
        return None
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("headscope"):
        return f"{first_line(error)}: install it, or leave out the callback or logger that needs it"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    restoring = any("restore_" in frame.f_code.co_name for frame in frames)
    wrong = isinstance(error, WRONG_STATE) or "Error(s) in loading state_dict" in str(error)
    if run.resume and restoring and wrong:
        return f"{does_not_fit(run.resume)} ({' '.join(str(error).split())[:300]})"
    place = str(frames[-1].f_globals.get("__name__")).split(".")
    others = place[0] == "lightning" and {"callbacks", "loggers", "profilers"} & {*place}
    if others and isinstance(error, RuntimeError | ValueError):
        return f"{place[-1]}: {' '.join(str(error).split())}"
    return None


def device_name(device: torch.device) -> str:
    """The text for the device in `summary.json`: the GPU's model, or the number of CPU threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({torch.get_num_threads()} threads)" if device.type == "cpu" else "mps"
