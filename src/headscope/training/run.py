"""Runs the training and writes the summary."""

import ctypes
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import TensorBoardLogger

from headscope.errors import UserError, first_line, ran_out_of_memory
from headscope.files import write_atomically, write_summary
from headscope.nn.precision import tf32
from headscope.training.build import Run
from headscope.training.callbacks.clock import callbacks_of, clock_of
from headscope.training.callbacks.head_watch import HeadWatch
from headscope.training.callbacks.tensorboard_log import lost_steps, report_lost_log
from headscope.training.console import print_final_validation, say
from headscope.training.run_folder import how_to_resume, is_run, shown, sort_before_now

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
    `summary.json`. Returns the content of `summary.json`.

    Raises `headscope.stop.Interrupted` after a stop signal. Raises UserError if memory or disk
    space runs out.
    """
    prepare_process()
    run.checkpoint_saver.folder.mkdir(parents=True, exist_ok=True)
    if run.processes.is_first:
        sort_before_now(run.folder / "tensorboard")
        if run.config.logger and run.resume:
            logged = run.resume.data["training"]["logged"]
            if lost := lost_steps(shown(run.folder / "tensorboard"), logged):
                say(run.console, lost, style="yellow")
        run.checkpoint_saver.on_first_save = partial(_write_latest, run.folder)
    try:
        with report_lost_log(run.folder), tf32(run.trainer.strategy.root_device):
            return _fit(run)
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        raise UserError(_out_of_memory_message(run, error)) from error


def _fit(run: Run) -> dict[str, Any]:
    device = run.trainer.strategy.root_device
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)  # forget the peak of an earlier run
    run.trainer.fit(
        run.module,
        datamodule=run.data,
        ckpt_path=run.resume.path if run.resume else None,
        weights_only=True,
    )
    clock = clock_of(run.trainer)
    print_final_validation(run, clock)
    run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    metrics = {name: float(value) for name, value in run.trainer.callback_metrics.items()}
    steps = run.trainer.global_step
    tokens = steps * clock.tokens_per_step
    summary = {
        "val_loss": metrics["val/loss"],
        "val_bits_per_byte": metrics["val/bits_per_byte"],
        "best_val_loss": run.checkpoint_saver.best_val_loss,
        "steps": steps,
        "tokens": tokens,
        "parameters": run.model.parameter_count(),
        "train_seconds": round(clock.train_seconds, 2),
        "wall_seconds": round(clock.wall_seconds(), 2),
        "watching_seconds": round(
            sum(each.seconds for each in callbacks_of(run.trainer) if isinstance(each, HeadWatch)),
            2,
        ),
        "tokens_per_second": round(tokens / clock.train_seconds, 1),
        "seed": run.config.seed,
        "precision": run.trainer.precision,
        "device": device_name(device),
        "devices": run.processes.count,
    }
    if device.type == "cuda":
        summary["peak_memory_mib"] = torch.cuda.max_memory_allocated(device) >> 20
    for logger in run.trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            # If the process is killed before it writes the summary, the resumed run logs this entry
            # again. TensorBoard then hides the first entry, because its step, `steps + 1`, is after
            # the step of the checkpoint.
            logger.log_hyperparams(
                {key: value for key, value in flat(asdict(run.config)).items() if key in COMPARED},
                {f"final/{name}": summary[name] for name in ("val_loss", "val_bits_per_byte")},
                step=steps + 1,
            )
        logger.finalize("success")
    if run.trainer.is_global_zero:
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
