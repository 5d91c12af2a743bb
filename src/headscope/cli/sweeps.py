"""The runs of a sweep (`-m`), with Hydra's own launchers and sweepers.

A launcher runs the task in this process (basic), in other processes (joblib, submitit_local) or on
a cluster (submitit_slurm). It sends the task there with cloudpickle: neither the command line of
this process nor its signal handlers exist there.

Each run writes its words, and why it failed, to a small file in the folder of the sweep. At the
end, this process reads these files and the summaries of the runs.
"""

import json
import multiprocessing
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
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, read_write

from headscope import stop
from headscope.cli.error_messages import BUG, USER_ERRORS, one_line
from headscope.cli.words import quote
from headscope.errors import UserError, first_line
from headscope.files import read_json, write_atomically
from headscope.terminal import printable

RECORDS = ".run_*.json"
"""The files in the folder of a sweep that say what its runs are."""

NO_RESULT = "its process ended without a result"


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep. `words` are its overrides, such as `seed=1`. `error` says why it failed."""

    words: tuple[str, ...]
    folder: Path
    error: str | None = None


ReportSweep = Callable[[Sequence[SweepRun], Path], None]
"""Shows the results of all runs of a sweep, and writes them to the folder of the sweep."""


class SameFolder(Callback):
    """Gives all runs of a sweep the same folder: in another process, or with another `experiment`,
    the interpolations in hydra.sweep.dir would give another one. Then `reported` finds it, too."""

    ARGUMENT = "++hydra.callbacks.sweep._target_=headscope.cli.sweeps.SameFolder"

    def on_multirun_start(self, config: DictConfig, **more: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        with read_write(config):
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quote(str(folder))}")
        HydraConfig.instance().set_config(config)
        remove_records(folder)


def remove_records(folder: Path) -> None:
    for record in folder.glob(RECORDS):
        record.unlink()


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Inside the `with` block, a run of a sweep may add to the list why it failed."""
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    file = Path(hydra.sweep.dir) / RECORDS.replace("*", str(hydra.job.num))

    def write(error: str | None) -> None:
        words = [word.lstrip("+") for word in hydra.overrides.task]
        record = {"number": hydra.job.num, "words": words, "folder": str(folder), "error": error}
        write_atomically(file, json.dumps(record))

    write(NO_RESULT)
    errors: list[str] = []
    yield errors
    write(errors[0] if errors else None)


def run_here(task: Callable[[Any], Any], config: Any, full_error: bool) -> Any:
    """Runs one run of a sweep in the process of the sweep. A mistake of the user is printed, and
    the sweep continues. With `full_error`, it is raised instead."""
    with recorded() as errors:
        try:
            return task(config)
        except USER_ERRORS as error:
            if full_error or isinstance(error, BrokenPipeError):
                raise
            errors.append(one_line(error))
            words = " ".join(word.lstrip("+") for word in HydraConfig.get().overrides.task)
            print(f"Error: {printable(f'{words}: {errors[0]}')}", file=sys.stderr)
    return None  # for Optuna, a failed trial


def run_elsewhere(task: Callable[[Any], Any], config: Any) -> Any:
    """Runs one run of a sweep in a process that a launcher has started. No error ends the sweep.

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
    result = None
    with recorded() as errors:
        try:
            with (
                log.open("a", buffering=1, encoding="utf-8") as file,
                redirect_stdout(file),
                redirect_stderr(file),
                stop.stop_on_signal(),
                requeue_after_saving(),
            ):
                try:
                    result = task(config)
                except USER_ERRORS as error:
                    errors.append(one_line(error))
                    print(f"Error: {printable(errors[0])}", file=sys.stderr)
                except Exception as error:
                    traceback.print_exc()
                    print(BUG, file=sys.stderr)
                    bug = f"a bug in headscope, with its traceback in {log}: {first_line(error)}"
                    errors.append(bug)
        except UserError as error:
            errors.append(one_line(error))
        except stop.Interrupted as stopped:
            if in_submitit:
                raise
            os._exit(128 + stopped.number)  # joblib would raise it in the process of the sweep
    outcome = errors[0] if errors else f"finished, loss {result:.4f}"
    print(f"run {hydra.job.num}: {printable(outcome)}", flush=True)
    return result


def stop_without_parent(parent: int) -> None:
    """Stops this process when the process of the sweep has ended, for example because it was
    killed. The run saves first."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


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


@contextmanager
def reported(report: ReportSweep | None) -> Iterator[None]:
    """After the `with` block, in which Hydra runs a sweep, `report` is called with all runs, also
    if a process of the sweep ended unexpectedly. If runs failed, they are listed, and this process
    ends with exit code 1."""
    # When a signal ends the sweep, joblib's helper process warns of what it then cleans up.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    try:
        with stop.on_stop(stop_children):
            yield
    except Exception as error:
        # Optuna raises an error if all runs have failed. joblib and submitit raise one if they lose
        # a process, which was killed or ran out of memory.
        lost = type(error).__module__.partition(".")[0] in ("joblib", "submitit")
        if lost:
            print(f"Error: {printable(first_line(error))}", file=sys.stderr)
        elif "No trials are completed" not in str(error):
            raise
    folder = Path(HydraConfig.get().sweep.dir)
    records = sorted(map(read_json, folder.glob(RECORDS)), key=lambda record: record["number"])
    remove_records(folder)
    runs = [SweepRun(tuple(r["words"]), Path(r["folder"]), r["error"]) for r in records]
    if report:
        report(runs, folder)
    failed = [run for run in runs if run.error]
    if failed:
        print("\nThese runs failed. The same command runs them again:", file=sys.stderr)
        common = set.intersection(*(set(run.words) for run in runs))
        for run in failed:
            words = " ".join([word for word in run.words if word not in common] or run.words)
            print(f"  {printable(f'{words}: {run.error}')}", file=sys.stderr)
        sys.exit(1)


def stop_children() -> str | None:
    """Stops the processes that joblib has started."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    if not children:
        return None
    return "The runs finish their current step and save. To continue: the same command"


def is_launcher_word(word: str) -> bool:
    """Whether an argument says how the runs of a sweep are started, and not what they train."""
    return word.lstrip("+~").startswith(("hydra/launcher=", "hydra.launcher."))


def optuna_defaults(words: Sequence[str]) -> list[str]:
    """Arguments that are added for `hydra/sweeper=optuna`. A failed run does not end the sweep, and
    the same command tries the same values, so that it continues the unfinished runs."""
    if "hydra/sweeper=optuna" not in words:
        return []
    defaults = ["hydra.sweeper.max_failure_rate=1"]
    if "hydra/sweeper/sampler=grid" not in words:  # the grid has no random numbers
        defaults.append("hydra.sweeper.sampler.seed=1")
    given = {word.partition("=")[0].lstrip("+") for word in words}
    return [word for word in defaults if word.partition("=")[0] not in given]
