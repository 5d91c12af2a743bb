"""The runs of a sweep (`-m`), with Hydra's own launchers and sweepers.

Hydra writes the words of each run to .hydra/ in its folder. This module adds what Hydra lacks: the
same command continues, an error of one run does not end the others, and a report at the end.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from headscope.cli.comparison.sweep import SweepRun, report
from headscope.cli.conf import conf_files, is_group
from headscope.cli.error_messages import USER_ERRORS
from headscope.cli.error_messages import report as report_error
from headscope.config.own_parts import load_parts
from headscope.errors import UserError, first_line
from headscope.files import write_atomically
from headscope.stop import SIGNALS, Interrupted
from headscope.terminal import printable
from headscope.training.run_folder import ERROR, make_new, remove_unused

LAUNCHER = ("hydra/launcher=", "hydra.launcher.")
SWEEP_ID = "HEADSCOPE_SWEEP"
"""The environment variable with which conf/train.yaml names the folder of a sweep, also in the
processes that a launcher starts."""


def command_line_id(words: list[str]) -> str:
    """A hash of the words of a sweep and of the files in conf/ that they name. The same words give
    the same folder, so the same command continues the sweep, also with another launcher."""
    same = [word for word in words if not word.lstrip("+~").startswith(LAUNCHER)]
    for group, _, choices in (word.lstrip("+").partition("=") for word in [*same]):
        names = choices.split(",") if is_group(group) else []
        files = [file for each in names for file in conf_files(f"{group}/{each}")]
        same += [file.read_text(encoding="utf-8") for file in files]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:8]


class Folders(Callback):
    """Makes the folder of a run before Hydra writes to it. Hydra turns an error in a callback into
    a warning."""

    def on_run_start(self, config: DictConfig, **more: Any) -> None:
        """Two runs that start in the same second get different folders, unless the command line
        names a folder."""
        words = config.hydra.overrides.hydra
        if config.hydra.job.config_name == "train" and not any(
            word.startswith("hydra.run.dir=") for word in words
        ):
            with read_write(config):
                config.hydra.run.dir = make_new(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **more: Any) -> None:
        HydraConfig.instance().set_config(config)  # for the report at the end
        pass_on_signals(config)


def run_one(task: Callable[[Any], Any], config: Any) -> Any:
    """Runs one run of a sweep. An error is printed and written to its folder, and the sweep goes
    on. A signal saves the run and ends the process."""
    from headscope.training.resume import OtherSettings

    hydra = HydraConfig.get()
    file = Path(hydra.runtime.output_dir, ERROR)
    file.unlink(missing_ok=True)
    by_joblib = multiprocessing.parent_process() is not None
    if by_joblib:  # a terminal sends Ctrl-C to all processes; see `pass_on_signals`
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        try:
            load_parts(config.get("parts"), hydra.runtime.cwd)
            return task(config)
        except Interrupted as stopped:
            if by_joblib:
                os._exit(128 + stopped.number)  # joblib would raise it in the process of the sweep
            if stopped.number == getattr(signal, "SIGUSR2", None):
                requeue()
            raise
    except BrokenPipeError:
        raise
    except OtherSettings as error:
        report_error(error)
        sys.exit(1)  # ends the sweep, whose results stay
    except Exception as error:
        write_atomically(file, report_error(error, f"run {hydra.job.num}: "))
        return None  # for Optuna, a failed trial


def requeue() -> None:
    """Puts the job of submitit back in the queue, if this is one, and ends the process: the run has
    saved at the time limit. Raises UserError when submitit may not requeue the job again."""
    if callable(signal.getsignal(signal.SIGUSR2)):
        try:
            signal.raise_signal(signal.SIGUSR2)
        except RuntimeError as error:
            raise UserError(
                "saved at the time limit, but not requeued: to requeue it more often, raise "
                "hydra.launcher.max_num_timeout"
            ) from error


@contextmanager
def reported() -> Iterator[None]:
    """After the `with` block, in which Hydra runs a command, a sweep of training runs is reported,
    also if a process of it ended unexpectedly. If a run has no result, the exit code is 1. An error
    that Hydra does not expect becomes a UserError."""
    # When a signal ends the sweep, joblib's helper process warns of what it then cleans up.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    HydraConfig.instance().cfg = None  # that of an earlier command in this process
    try:
        yield
    except Exception as error:
        if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
            remove_unused(Path(HydraConfig.get().sweep.dir))
        # Optuna raises an error if all runs have failed. joblib and submitit raise one if they lose
        # a process, which was killed or ran out of memory.
        if type(error).__module__.partition(".")[0] in ("joblib", "submitit"):
            print(f"Error: {printable(first_line(error))}", file=sys.stderr)
        elif isinstance(error, USER_ERRORS):
            raise
        elif "No trials are completed" not in str(error):
            advice = "; to leave out a group: ~GROUP" if "NoneType" in str(error) else ""
            raise UserError(f"Hydra cannot run this: {first_line(error)}{advice}") from error
    hydra: Any = HydraConfig.instance().cfg and HydraConfig.get()
    if hydra and hydra.mode == RunMode.MULTIRUN and hydra.job.config_name == "train":
        folder = Path(hydra.sweep.dir)
        if not any(folder.glob("**/.hydra/overrides.yaml")):
            remove_unused(folder)
            why = "glob() lists choices, not files, and hydra.output_subdir=null no runs"
            raise UserError(f"{folder} has no run: change the swept values ({why})")
        if not report(runs_in(folder), folder):
            sys.exit(1)


def pass_on_signals(config: DictConfig) -> None:
    """With joblib, a signal to this process stops its processes, which then save."""

    def stop_all(number: int, frame: FrameType | None) -> None:
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        if children:
            os.write(2, b"\nThe runs save. To continue: the same command\n")
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    for number in SIGNALS if "Joblib" in config.hydra.launcher._target_ else ():
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop_all)


def runs_in(folder: Path) -> list[SweepRun]:
    """The runs in the folder of a sweep, as Hydra wrote their words."""
    parser = OverridesParser.create()
    runs = []
    for file in folder.glob("**/.hydra/overrides.yaml"):
        words: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
        parsed = map(parser.parse_override, words)
        settings = {each.key_or_group: str(each.value()) for each in parsed}
        runs.append(SweepRun(settings, file.parents[1]))
    return sorted(runs, key=lambda run: (len(str(run.folder)), str(run.folder)))
