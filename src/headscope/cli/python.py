"""headscope.train: the command train, called from Python."""

import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins

from headscope.cli.command_line import attempt, prepared
from headscope.cli.conf import CONF, OwnChoices
from headscope.cli.error_messages import USER_ERRORS, one_line
from headscope.cli.train import arguments, run
from headscope.errors import UserError
from headscope.stop import SIGNALS, Interrupted


@dataclass(frozen=True)
class TrainResult:
    """A finished run: its `folder`, and its `summary`, the content of summary.json, such as
    `val_loss` in nats per token and `train_seconds`. With `trainer.fast_dev_run`, which keeps
    nothing, the folder is None and the summary is empty."""

    folder: Path | None
    summary: dict[str, Any]


def train(words: Sequence[str] = (), *, callbacks: Any = (), logger: Any = None) -> TrainResult:
    """Trains a GPT, as `headscope train` does with the same words, such as `model.heads=8`.

    `callbacks` is a callback of Lightning or a list of them, in addition to those of the
    configuration. `logger` is a logger, a list, or False for none, instead of the configured ones.

    In a notebook, the progress is one line that changes. An interrupt (Ctrl-C, or the stop button)
    saves a checkpoint, prints how to continue, and raises KeyboardInterrupt. Afterwards, the signal
    handlers are as before.

    Raises UserError if a word, a value or a file is wrong, or if memory or disk space runs out.
    Other signals that end a process, such as SIGTERM, save too and end it.
    """
    from lightning.pytorch import Callback  # slow
    from lightning.pytorch.loggers import Logger

    if isinstance(words, str):
        raise UserError(f"give a list of words, such as [{words!r}]")
    callbacks = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
    loggers = None if logger in (None, True) else logger or []
    loggers = [loggers] if isinstance(loggers, Logger) else loggers
    for kind, objects in ((Callback, callbacks), (Logger, loggers or ())):
        if wrong := [each for each in objects if not isinstance(each, kind)]:
            raise UserError(f"{wrong[0]!r} is not an object of the class {kind.__name__}")
    task_of_run = partial(run, in_python=True, callbacks=callbacks, loggers=loggers)
    results: list[Any] = []
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    outer = GlobalHydra.instance().hydra  # if the program itself uses Hydra
    GlobalHydra.instance().clear()

    def task(composed: Any) -> None:
        try:
            folder, summary = attempt(task_of_run, composed)
            results.append(TrainResult(folder if summary else None, summary))
        except Exception as error:  # Hydra would print a line about it
            results.append(error)

    warnings.filterwarnings("ignore", "IProgress not found")  # of tqdm, which is not used here
    try:
        for word in words:
            if word.startswith("-"):
                raise UserError(f"{word} is a flag: give key=value, such as model.heads=8")
        Plugins.instance().register(OwnChoices)
        for_hydra = prepared([*words], "train", arguments)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            hydra: Any = GlobalHydra.instance().hydra
            hydra.run("train", task, for_hydra, with_log_configuration=False)
        if isinstance(results[0], Exception):
            raise results[0]
    except SystemExit as stopped:  # Lightning turns KeyboardInterrupt into SystemExit
        if isinstance(stopped, Interrupted) and stopped.number != signal.SIGINT:
            raise
        raise KeyboardInterrupt from None
    except USER_ERRORS as error:
        raise UserError(one_line(error)) from error
    finally:
        GlobalHydra.instance().hydra = outer
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:  # Lightning ignores SIGINT after Ctrl-C
                signal.signal(number, handler)
    return results[0]
