"""Runs the training and writes the summary."""

import ctypes
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from headscope.errors import UserError, first_line, ran_out_of_memory
from headscope.files import write_atomically, write_summary
from headscope.nn.precision import tf32
from headscope.training.build import Run
from headscope.training.callbacks.progress import say
from headscope.training.callbacks.saving import CheckpointSaver
from headscope.training.callbacks.steps import StepCallback
from headscope.training.console import print_final_validation, tensorboards
from headscope.training.loggers import lost_steps, report_lost_log
from headscope.training.module import Diverged
from headscope.training.resume import how_to_continue, report_wrong_state
from headscope.training.run_folder import (
    how_to_resume,
    is_run,
    remove_leftovers,
    shown,
    sort_before_now,
)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h

COMPARED = (
    "model.layers",
    "model.heads",
    "model.embed_dim",
    "model.block_size",
    "model.dropout",
    "optimizer.lr",
    "optimizer.weight_decay",
    "trainer.max_steps",
    "trainer.batch_size",
    "seed",
)
"""The settings in TensorBoard's tab HParams: those that people compare most."""


def fit(run: Run) -> dict[str, Any]:
    """Trains the model, evaluates the final weights on the validation split, and writes
    `summary.json`. Returns the content of `summary.json`, or nothing after `fast_dev_run`.

    Raises `headscope.stop.Interrupted` after a stop signal. Raises UserError if training diverges,
    or if memory or disk space runs out.
    """
    prepare_process()
    saver = run.callback(CheckpointSaver)
    if run.processes.is_first and not run.trainer.fast_dev_run:
        if saver:
            saver.on_first_save = partial(_write_latest, run.folder)
        for logs in (Path(each.log_dir) for each in tensorboards(run.trainer)):
            sort_before_now(logs)
            if run.resume:
                states = run.resume.data["training"]["callbacks"]
                logged = states.get("CheckpointSaver", {}).get("logged", {})
                if lost := lost_steps(shown(logs), logged):
                    say(run.console, lost, style="yellow")
    try:
        with report_lost_log(run.folder), tf32(run.trainer.strategy.root_device):
            return _fit(run)
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        raise UserError(_out_of_memory_message(run, error)) from error
    except MisconfigurationException as error:  # of Lightning, about callbacks and arguments
        raise UserError(" ".join(str(error).split())) from error
    except Diverged as error:
        raise UserError(f"{error}; {how_to_continue(run.folder, run.config)}") from error
    except UserError:
        if run.trainer.global_step == (run.resume.step if run.resume else 0):
            remove_leftovers(run.folder)  # training has not begun
        raise
    finally:
        wandb = sys.modules.get("wandb")
        used = any(isinstance(each, WandbLogger) for each in run.trainer.loggers)
        if used and wandb and wandb.run:
            wandb.finish()  # or the next run in this process would continue it


def _fit(run: Run) -> dict[str, Any]:
    device, trainer = run.trainer.strategy.root_device, run.trainer
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)  # forget the peak of an earlier run
    settings = flat(run.config.kept())
    for logger in trainer.loggers:
        if not isinstance(logger, TensorBoardLogger):  # it gets them with the final losses
            logger.log_hyperparams(settings)
    checkpoint = run.resume.path if run.resume else None
    with report_wrong_state(run.resume):
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
    summary = {
        **losses,
        "validation": validation if limit else "none",
        "best_val_loss": saver and saver.state_dict()["best_val_loss"],
        "steps": steps,
        "tokens": tokens,
        "parameters": run.model.parameter_count(),
        "train_seconds": round(timer.seconds(), 2),
        "wall_seconds": round(timer.wall_seconds(), 2),
        "watching_seconds": round(
            sum(each.seconds for each in run.callbacks() if isinstance(each, StepCallback)), 2
        ),
        "tokens_per_second": round(tokens / max(timer.seconds(), 1e-9), 1),
        "seed": run.config.seed,
        "precision": trainer.precision,
        "device": device_name(device),
        "devices": run.processes.count,
    }
    if device.type == "cuda":
        summary["peak_memory_mib"] = torch.cuda.max_memory_allocated(device) >> 20
    final = {f"final/{name}": value for name, value in losses.items() if value is not None}
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            # If the process is killed before it writes the summary, the resumed run logs this entry
            # again. TensorBoard then hides the first entry, because its step, `steps + 1`, is after
            # the step of the checkpoint.
            compared = {key: settings[key] for key in COMPARED if key in settings}
            logger.log_hyperparams(compared, final, step=steps + 1)
        else:
            logger.log_metrics(final, step=steps)
        logger.finalize("success")
    if trainer.is_global_zero:
        write_summary(run.folder, summary)
    return summary


def _out_of_memory_message(run: Run, error: BaseException) -> str:
    """One line that says how to reduce memory use, and how to continue from a checkpoint."""
    settings = run.config.trainer
    line = (
        f"out of memory after step {run.trainer.global_step}: lower trainer.batch_size="
        f"{settings.batch_size} and raise trainer.accumulate={settings.accumulate} by the same "
        f"factor, or lower model.block_size={run.config.model.block_size} or the model's sizes; "
        "trainer.checkpoint_activations=true and trainer.loss_chunk_tokens=auto save memory "
        f"({first_line(error)})"
    )
    if not is_run(run.folder):
        return line
    return f"{line}; to continue from the last checkpoint: {how_to_resume(run.folder, run.config)}"


def prepare_process() -> None:
    """Lets glibc keep freed memory in this process: all blocks below 32 MiB, and up to 256 MiB in a
    row. Does nothing without glibc.

    By default, glibc returns large blocks of freed memory to the operating system and requests new
    blocks later. This costs about a thousand page faults per training step on a CPU
    (docs/performance.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest value allowed
        mallopt(M_TRIM_THRESHOLD, 256 << 20)


def flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested dictionaries: {"model": {"heads": 4}} becomes {"model.heads": 4}."""
    result: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{key}.")
        elif not key.startswith("_") and key != "resume":
            result[prefix + key] = "null" if value is None else value
    return result


def device_name(device: torch.device) -> str:
    """The text for the device in `summary.json`: the GPU's model, or the number of CPU threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({torch.get_num_threads()} threads)" if device.type == "cpu" else "mps"


def _write_latest(folder: Path, outputs: Path = Path("outputs")) -> None:
    """Writes the name of this run to the file `outputs/latest`. `outputs/latest` is not a symbolic
    link to the run folder, because TensorBoard would then show the run twice."""
    outputs.mkdir(exist_ok=True)
    inside = folder.resolve().is_relative_to(outputs.resolve())
    name = folder.resolve().relative_to(outputs.resolve()) if inside else folder.resolve()
    write_atomically(outputs / "latest", f"{name}\n")
