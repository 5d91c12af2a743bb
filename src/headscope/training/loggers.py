"""Logs scalars, texts, images and snapshots: what Lightning's loggers have no common function for,
or log slowly. The functions import the package tensorboard, which training does not need."""

import io
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from PIL import Image

from headscope.errors import UserError
from headscope.files import FULL

EVENT_FILE_SUFFIX = ".headscope"  # of TensorBoard's event files that headscope has written

COMPARED = (
    *(f"model.{key}" for key in ("layers", "heads", "embed_dim", "block_size", "dropout")),
    *("optimizer.lr", "optimizer.weight_decay", "trainer.max_steps", "trainer.batch_size", "seed"),
)
"""The settings in TensorBoard's tab HParams: those that people compare most."""


def tensorboards(trainer: Trainer) -> list[TensorBoardLogger]:
    return [each for each in trainer.loggers if isinstance(each, TensorBoardLogger)]


def tensorboard_writers(trainer: Trainer) -> list[Any]:
    """The TensorBoard writers of a run, or an empty list if another process logs this run."""
    return [each.experiment for each in tensorboards(trainer) if trainer.is_global_zero]


@contextmanager
def report_lost_log(folder: Path) -> Iterator[None]:
    """Inside the `with` block, raises UserError if TensorBoard cannot write to the run `folder`.
    Hides the traceback of TensorBoard's thread, whose error its next call raises again."""
    previous_hook = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not type(failed.thread).__module__.startswith("tensorboard."):
            previous_hook(failed)

    threading.excepthook = hook
    try:
        yield
    except OSError as error:
        file = os.fsdecode(error.filename or "")
        if not file.endswith(EVENT_FILE_SUFFIX) and (file or error.errno not in FULL):
            raise
        advice = "start the run again, and do not delete or move its folder meanwhile"
        if error.errno in FULL:
            advice = f"{shutil.disk_usage(folder).free:,} bytes are free there"
        problem = f"{folder}: the TensorBoard log could not be written: {error.strerror}"
        raise UserError(f"{problem}; {advice}") from error
    finally:
        threading.excepthook = previous_hook


def log_settings(trainer: Trainer, config: Mapping[str, Any]) -> None:
    """Logs the configuration of a run, but not to TensorBoard, which gets it in `log_final`."""
    for logger in trainer.loggers:
        if not isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(flat(config))


def log_final(
    trainer: Trainer, config: Mapping[str, Any], losses: Mapping[str, float], steps: int
) -> None:
    """Logs the final losses of a run of `steps` steps, whose keys are the tags."""
    settings = flat(config)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            # A run that is killed before it writes the summary logs this again. TensorBoard then
            # hides the first entry, because its step is after that of the checkpoint.
            compared = {key: settings[key] for key in COMPARED if key in settings}
            logger.log_hyperparams(compared, dict(losses), step=steps + 1)
        else:
            logger.log_metrics(dict(losses), step=steps)
        logger.finalize("success")


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested dictionaries: {"model": {"heads": 4}} becomes {"model.heads": 4}."""
    result: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{key}.")
        elif not key.startswith("_") and key != "resume":
            result[prefix + key] = "null" if value is None else value
    return result


def log_scalars(trainer: Trainer, values: Mapping[str, float], step: int) -> None:
    """Logs all `values`, whose keys are the tags, to every logger of a run. TensorBoard gets them
    in one record, which is ten times as fast as one for each."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, TensorBoardLogger):
            from tensorboard.compat.proto.summary_pb2 import Summary

            numbers = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            logger.experiment.file_writer.add_summary(Summary(value=numbers), step)
        else:
            logger.log_metrics(dict(values), step=step)


def log_text(trainer: Trainer, tag: str, text: str, step: int) -> None:
    """Logs a text to every logger of a run that takes texts: TensorBoard, CSV, wandb and MLflow."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            # An indented code block, which TensorBoard shows unchanged.
            code = "\n".join(f"    {line}" for line in text.splitlines())
            logger.experiment.add_text(tag, code, step)
        elif isinstance(logger, CSVLogger):
            texts: Any = {tag: text}
            logger.log_metrics(texts, step=step)
        elif isinstance(logger, MLFlowLogger):
            logger.experiment.log_text(logger.run_id, text, f"{tag}/step_{step:06}.txt")
        elif isinstance(logger, WandbLogger):
            logger.log_text(tag, columns=["text"], data=[[text]], step=step)


def add_image(writer: Any, tag: str, image: Image.Image, step: int, description: str) -> None:
    """Logs an image in its own pixel format, with a description that TensorBoard shows."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

    png = io.BytesIO()
    image.save(png, format="PNG", compress_level=3)  # level 6 takes three times as long
    pixels = Summary.Image(encoded_image_string=png.getvalue(), colorspace=3)
    pixels.width, pixels.height = image.size
    plugin = SummaryMetadata.PluginData(plugin_name="images")
    metadata = SummaryMetadata(plugin_data=plugin, summary_description=description)
    value = Summary.Value(tag=tag, image=pixels, metadata=metadata)
    writer.file_writer.add_summary(Summary(value=[value]), step)


def add_snapshot(writer: Any, tag: str, parts: Sequence[bytes], step: int) -> None:
    """Logs the parts of a snapshot for TensorBoard's tab Attention. `tag` names the text."""
    from headscope.training.snapshot_events import snapshot_summary

    writer._get_file_writer().add_summary(snapshot_summary(tag, parts), step)


def event_files(logs: Path) -> list[Path]:
    """The TensorBoard event files in `logs` that headscope has written, in TensorBoard's order."""
    files = logs.glob(f"events.out.tfevents.*{EVENT_FILE_SUFFIX}")
    return sorted(file for file in files if file.is_file())


def sort_before_now(logs: Path) -> None:
    """Renames the TensorBoard event files in `logs` so that a new one comes after them. TensorBoard
    orders them by the time in their names, and the clock may have been set back since then."""
    pattern = f"events.out.tfevents.{'[0-9]' * 10}.*{EVENT_FILE_SUFFIX}"
    names = sorted(file.name for file in logs.glob(pattern))
    late = int(names[-1][20:30]) + 1 - int(time.time()) if names else 0
    for name in names if late > 0 else ():
        (logs / name).rename(logs / f"{name[:20]}{int(name[20:30]) - late:010}{name[30:]}")
