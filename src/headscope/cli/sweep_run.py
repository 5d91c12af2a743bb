"""One run of a sweep, in the process of the sweep or in another one.

Hydra's launchers send the task to other processes with cloudpickle. Nothing that the process of the
sweep has set up exists there: neither its command line nor its signal handlers.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from headscope import stop
from headscope.cli.error_messages import BUG, USER_ERRORS, one_line
from headscope.errors import UserError, first_line
from headscope.terminal import printable


@dataclass(frozen=True)
class Failure:
    """A failed run returns this instead of its loss."""

    reason: str


def run_here(task: Callable[[Any], Any], config: Any) -> Any:
    """Runs one run of a sweep in the process of the sweep. A mistake of the user is printed, and
    returned as a `Failure`."""
    try:
        return task(config)
    except BrokenPipeError:
        raise
    except USER_ERRORS as error:
        words = HydraConfig.get().overrides.task
        print(f"Error: {described(words, one_line(error))}", file=sys.stderr)
        return Failure(one_line(error))


def run_elsewhere(task: Callable[[Any], Any], config: Any) -> Any:
    """Runs one run of a sweep in a process that a launcher has started. Every error is returned as
    a `Failure`.

    Runs in parallel would mix their output, so the output goes to `<folder>.log`. When the run is
    stopped by a signal, it saves, and the process ends with 128 + the signal's number.
    """
    hydra = HydraConfig.get()
    log = Path(f"{hydra.runtime.output_dir}.log")
    in_submitit = "SUBMITIT_EXECUTOR" in os.environ
    if not in_submitit:
        # Ctrl-C signals every process of a terminal. The process of the sweep forwards it.
        for name in ("SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        threading.Thread(target=stop_without_parent, args=(os.getppid(),), daemon=True).start()
    try:
        with (
            log.open("a", buffering=1, encoding="utf-8") as file,
            redirect_stdout(file),
            redirect_stderr(file),
            stop.stop_on_signal(),
            requeue_after_saving(),
        ):
            result = log_errors(task, config, log)
    except UserError as error:
        result = Failure(one_line(error))
    except stop.Interrupted as stopped:
        if in_submitit:
            raise
        os._exit(128 + stopped.number)  # joblib would raise it in the process of the sweep
    outcome = result.reason if isinstance(result, Failure) else f"finished, loss {result:.4f}"
    print(f"run {hydra.job.num}: {printable(outcome)}", flush=True)
    return result


def stop_without_parent(parent: int) -> None:
    """Stops this process when the process of the sweep has ended, for example because it was
    killed. The run saves first."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def log_errors(task: Callable[[Any], Any], config: Any, log: Path) -> Any:
    try:
        return task(config)
    except USER_ERRORS as error:
        print(f"Error: {printable(one_line(error))}", file=sys.stderr)
        return Failure(one_line(error))
    except Exception as error:
        traceback.print_exc()
        print(BUG, file=sys.stderr)
        return Failure(f"a bug in headscope, with its traceback in {log}: {first_line(error)}")


@contextmanager
def requeue_after_saving() -> Iterator[None]:
    """On SIGUSR2, submitit puts its job back in the queue and ends the process at once. Inside the
    `with` block, the run saves before that. Raises UserError when submitit may not requeue the job
    again."""
    number: Any = getattr(signal, "SIGUSR2", None)
    requeue: Any = number and signal.getsignal(number)
    if not callable(requeue):  # not a job of submitit
        yield
        return
    received = []

    def save_first(number: int, frame: Any) -> None:
        received.append(number)
        os.kill(os.getpid(), signal.SIGTERM)

    def requeue_unsaved() -> None:
        if received:
            try:
                requeue(number, None)
            except SystemExit as ended:
                os._exit(int(ended.code or 0) % 256)

    signal.signal(number, save_first)
    try:
        with stop.on_stop(requeue_unsaved):
            yield
    except stop.Interrupted:
        if received:
            from submitit.core.utils import UncompletedJobError

            try:
                requeue(number, None)
            except UncompletedJobError as error:
                raise UserError(
                    "saved at the time limit, but not requeued: to requeue it more often, raise "
                    "hydra.launcher.max_num_timeout"
                ) from error
        raise
    finally:
        signal.signal(number, requeue)


def described(words: Sequence[str], error: str) -> str:
    return printable(f"{' '.join(words)}: {error}")
