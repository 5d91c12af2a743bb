"""The runs of a sweep (`-m`), with any of Hydra's launchers and sweepers.

Hydra's launchers run a sweep in this process (basic), in other processes (joblib, submitit_local)
or on a cluster (submitit_slurm).

A run that fails returns a `Failure`, so that the other runs of the sweep continue. All results come
back through a `RecordingLauncher`, in the process that the user started.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict, read_write

from headscope import stop
from headscope.cli.error_messages import USER_ERRORS, one_line
from headscope.cli.sweep_run import Failure, described
from headscope.cli.words import quote
from headscope.errors import first_line
from headscope.terminal import printable


@dataclass
class SweepRun:
    """A run of a sweep. `words` are its overrides, such as `seed=1`. `folder` is None if the run
    could not be composed. `error` says why the run failed."""

    words: tuple[str, ...]
    folder: Path | None = None
    error: str | None = None


ReportSweep = Callable[[Sequence[SweepRun], Path], None]
"""Shows the results of all runs of a sweep, and writes them to the folder of the sweep."""


@dataclass
class Sweep:
    """All runs of the sweep of this process. `full_error` raises every error at once instead of
    recording it."""

    full_error: bool
    runs: list[SweepRun] = field(default_factory=list)
    folder: Path = Path()


class RecordingLauncher(Launcher):
    """Calls a launcher, and records the runs and their errors in a `Sweep`. Skips runs whose
    configuration Hydra cannot compose: the launchers would end the whole sweep at such a run."""

    def __init__(self, launcher: Launcher, sweep: Sweep, config: DictConfig, context: HydraContext):
        self.launcher = launcher
        self.sweep = sweep
        self.config = config
        self.context = context

    def setup(self, **_: Any) -> None:
        """The launcher is already set up."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        runs = [SweepRun(tuple(words)) for words in job_overrides]
        self.sweep.runs += runs
        composed: list[int] = []
        for index, (run, words) in enumerate(zip(runs, job_overrides, strict=True)):
            try:
                run.folder = self.folder_of(words, initial_job_idx + len(composed))
                composed.append(index)
            except USER_ERRORS as error:
                if self.sweep.full_error:
                    raise
                run.error = one_line(error)
                print(f"Error: {printable(' '.join(words) + ': ' + run.error)}", file=sys.stderr)
        results = [
            JobReturn(overrides=words, status=JobStatus.COMPLETED) for words in job_overrides
        ]
        if composed:
            launched = self.launch_composed(
                [runs[index] for index in composed],
                [job_overrides[index] for index in composed],
                initial_job_idx,
            )
            for index, result in zip(composed, launched, strict=True):
                results[index] = result
        return results

    def launch_composed(
        self, runs: Sequence[SweepRun], job_overrides: Sequence[Sequence[str]], first: int
    ) -> Sequence[JobReturn]:
        """The results of all runs. Optuna needs the loss, or None for a failed trial."""
        # When a signal ends the sweep, joblib's helper process warns of what it then cleans up.
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
        try:
            with stop.on_stop(stop_children):
                results = self.launcher.launch(job_overrides, initial_job_idx=first)
        except Exception as error:
            # The launcher has lost a process, which was killed or ran out of memory.
            if type(error).__module__.partition(".")[0] not in ("joblib", "submitit"):
                raise
            return [result_on_disk(run, first_line(error)) for run in runs]
        for run, result in zip(runs, results, strict=True):
            if isinstance(result.return_value, Failure):
                run.error = result.return_value.reason
                result.return_value = None
        return results

    def folder_of(self, words: Sequence[str], number: int) -> Path:
        config = self.context.config_loader.load_sweep_config(self.config, list(words))
        with open_dict(config):
            config.hydra.job.num = number
        return self.sweep.folder / config.hydra.sweep.subdir


def result_on_disk(run: SweepRun, error: str) -> JobReturn:
    """The result of a run whose launcher has failed. Other runs of that launcher may have
    finished before."""
    from headscope.files import read_summary

    summary = run.folder and read_summary(run.folder)
    if not summary:
        run.error = f"its process ended without a result: {error}"
    value = summary["val_loss"] if summary else None
    return JobReturn(status=JobStatus.COMPLETED, _return_value=value)


def stop_children() -> str | None:
    """Stops the processes that joblib has started."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    if not children:
        return None
    return "The runs finish their current step and save. To continue: the same command"


def differing(words: Sequence[str], runs: Sequence[SweepRun]) -> list[str]:
    """Those of `words` that are not the same in all runs. All words if that would be none."""
    common = set.intersection(*(set(run.words) for run in runs))
    return [word for word in words if word not in common] or list(words)


@contextmanager
def recorded(full_error: bool, report: ReportSweep | None) -> Iterator[None]:
    """Inside the `with` block, the runs of a sweep are recorded. At the end, `report` is called
    with them, also if a process of the sweep ended unexpectedly. If runs failed, they are listed,
    and this process ends with exit code 1."""
    sweep = Sweep(full_error)
    plugins: Any = Plugins
    original = plugins.instantiate_launcher

    def instantiate_launcher(
        self: Plugins, hydra_context: HydraContext, task_function: Any, config: DictConfig
    ) -> Launcher:
        # All runs go to the same folder: in another process, or with another `experiment`, the
        # interpolations in hydra.sweep.dir would give another one.
        sweep.folder = Path(config.hydra.sweep.dir)
        with read_write(config):
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quote(str(sweep.folder))}")
        launcher = original(self, hydra_context, task_function, config)
        return RecordingLauncher(launcher, sweep, config, hydra_context)

    # Hydra's plugin loader loads this class itself. An import would give a different class object,
    # which Hydra does not use.
    classes = Plugins.instance().class_name_to_class
    sweeper: Any = classes["hydra._internal.core_plugins.basic_sweeper.BasicSweeper"]
    validate = sweeper.validate_batch_is_legal
    try:
        plugins.instantiate_launcher = instantiate_launcher
        sweeper.validate_batch_is_legal = lambda self, batch: None  # RecordingLauncher does this
        yield
    except ValueError as error:
        # Optuna raises this if all runs have failed. They are listed below.
        if "No trials are completed" not in str(error):
            raise
    finally:
        plugins.instantiate_launcher = original
        sweeper.validate_batch_is_legal = validate
    if sweep.runs and report:
        report(sweep.runs, sweep.folder)
    failed = [(run.words, run.error) for run in sweep.runs if run.error]
    if failed:
        print("\nThese runs failed. The same command runs them again:", file=sys.stderr)
        for words, reason in failed:
            print(f"  {described(differing(words, sweep.runs), reason)}", file=sys.stderr)
        sys.exit(1)


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
