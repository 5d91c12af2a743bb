"""The runs of a sweep (`-m`), with Hydra's own launchers and sweepers, and their report.

Hydra writes the words of each run to .hydra/ in its folder. This module adds what Hydra lacks: the
same command continues, an error of one run does not end the others, and a report at the end.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from headscope.analysis.rows import DataFrame, data_frame
from headscope.cli.conf import conf_files, is_group
from headscope.cli.error_messages import USER_ERRORS, report_error
from headscope.cli.words import value_of
from headscope.config.own_parts import load_parts
from headscope.errors import UserError, first_line
from headscope.files import read_summary, write_atomically
from headscope.stop import SIGNALS, Interrupted
from headscope.terminal import note, printable
from headscope.training.run_folder import ERROR, make_new, remove_unused, shown

LAUNCHER = ("hydra/launcher=", "hydra.launcher.")
SWEEP_ID = "HEADSCOPE_SWEEP"
"""The variable with which conf/train.yaml names the folder of a sweep, also in its processes."""

RESULTS = ("val_loss", "val_bits_per_byte", "train_seconds")
"""The entries of summary.json that are shown for each run."""


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
    """Makes the folder of a run before Hydra writes to it. Hydra only warns of its errors."""

    def on_run_start(self, config: DictConfig, **more: Any) -> None:
        """Runs that start in the same second get different folders, unless a word names one."""
        named = value_of(config.hydra.overrides.hydra, "hydra.run.dir")
        if config.hydra.job.config_name == "train" and named is None:
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
    folder = Path(hydra.runtime.output_dir)
    file = folder / ERROR
    file.unlink(missing_ok=True)
    by_joblib = multiprocessing.parent_process() is not None
    if by_joblib:  # a terminal sends Ctrl-C to all processes; see `pass_on_signals`
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        try:
            load_parts(config.get("parts"))
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
            advice = "to requeue it more often, raise hydra.launcher.max_num_timeout"
            raise UserError(f"saved at the time limit, but not requeued: {advice}") from error


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
        # Optuna raises an error if all runs failed, joblib and submitit if a process was killed.
        if type(error).__module__.partition(".")[0] in ("joblib", "submitit"):
            note(f"Error: {first_line(error)}")
        elif isinstance(error, USER_ERRORS):
            raise
        elif "No trials are completed" not in str(error):
            advice = "; to leave out a group: ~GROUP" if "NoneType" in str(error) else ""
            raise UserError(f"Hydra cannot run this: {first_line(error)}{advice}") from error
    hydra: Any = HydraConfig.instance().cfg and HydraConfig.get()
    if hydra and hydra.mode == RunMode.MULTIRUN and hydra.job.config_name == "train":
        folder = Path(hydra.sweep.dir)
        named: Any = OmegaConf.to_container(hydra.sweep, resolve=False)
        if not (runs := runs_in(folder, named["dir"])):
            remove_unused(folder)
            why = "glob() lists choices, not files, and hydra.output_subdir=null no runs"
            raise UserError(f"{folder} has no run: change the swept values ({why})")
        if not report(runs, folder):
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


# --- the report ---


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep in its `folder`. `settings` are its words, such as {"seed": "1"}."""

    settings: dict[str, str]
    folder: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json, empty if the run has not finished."""
        return read_summary(self.folder) or {}

    @cached_property
    def error(self) -> str:
        """Why the run failed, or ""."""
        file = self.folder / ERROR
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @property
    def state(self) -> str:
        return "failed" if self.error else "finished" if self.summary else "unfinished"

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints" / "last.safetensors"


def runs_in(folder: Path, named: str) -> list[SweepRun]:
    """The runs in the folder of a sweep, as Hydra wrote their words, also if they ended at once.
    Other runs there are left out: the configuration of a run of this sweep calls the folder
    `named`, which may have interpolations."""
    parser = OverridesParser.create()
    runs = []
    for file in folder.glob("**/.hydra/hydra.yaml"):
        written = yaml.safe_load(file.read_text("utf-8")) or {}  # empty: Hydra was killed
        hydra = written.get("hydra", {})
        if hydra.get("mode") == "MULTIRUN" and hydra["sweep"]["dir"] == named:
            parsed = map(parser.parse_override, hydra["overrides"]["task"])
            settings = {each.key_or_group: str(each.value()) for each in parsed}
            runs.append(SweepRun(settings, file.parents[1]))
    return sorted(runs, key=lambda run: (len(str(run.folder)), str(run.folder)))


def swept_keys(runs: Sequence[SweepRun]) -> list[str]:
    """The keys whose values are not the same in all runs."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if len({run.settings.get(key) for run in runs}) > 1]


def report(runs: Sequence[SweepRun], folder: Path) -> bool:
    """Prints a table of the runs, the lowest validation loss first, and the errors. Runs that
    differ only in the seed are one line of the table (see `over_seeds`). Writes sweep.csv, with one
    line for each run, to `folder`. Returns whether all runs have finished."""
    keys = swept_keys(runs)
    rows = [
        {"run": run.folder.name}
        | {key: run.settings.get(key, "") for key in keys}
        | {name: run.summary.get(name) for name in RESULTS}
        | {"state": run.state, "error": run.error}
        for run in runs
    ]
    table = data_frame(rows).astype(dict.fromkeys(RESULTS, float))
    best_first(table).to_csv(folder / "sweep.csv", index=False)
    several, others = "seed" in keys, [key for key in keys if key != "seed"]
    shown_columns = {
        "runs" if several else "run": ("run", ""),
        **{key: (key, "") for key in [*others, *(["seed"] if several else [])]},
        "validation loss": ("val_loss", ".4f"),
        **({"±": ("deviation", ".4f")} if several else {}),
        "bits per byte": ("val_bits_per_byte", ".4f"),
        "training, s": ("train_seconds", ".1f"),
        "state": ("state", ""),
    }
    best = best_first(over_seeds(table, others) if several else table)
    print_table([row.dropna().to_dict() for _, row in best.iterrows()], shown_columns)
    print(f"\nWritten: {shown(folder / 'sweep.csv')}", flush=True)
    return report_unfinished(runs)


def over_seeds(table: DataFrame, keys: Sequence[str]) -> DataFrame:
    """A row for all runs with the same values of `keys`: the means of `RESULTS` over the finished
    ones, and the sample standard deviation of their validation losses."""

    def mixed(states: Any) -> str:
        counts = states.value_counts(sort=False)
        each = ", ".join(f"{count} {state}" for state, count in counts.items())
        return each if len(counts) > 1 else states.iloc[0]

    same = table.groupby(keys or (lambda row: 0), sort=False)
    columns: Any = {name: (name, "mean") for name in RESULTS} | {"deviation": ("val_loss", "std")}
    columns |= {"run": ("run", " ".join), "seed": ("seed", " ".join), "state": ("state", mixed)}
    return same.agg(**columns).reset_index()


def best_first(table: DataFrame) -> DataFrame:
    """The rows, the lowest validation loss first. If its runs have finished, its state is best."""
    ranked = table.sort_values("val_loss", kind="stable", ignore_index=True)
    if ranked.loc[0, "state"] == "finished":
        ranked.loc[0, "state"] = "best"
    return ranked


def report_unfinished(runs: Sequence[SweepRun]) -> bool:
    """Prints the runs without a result. Returns whether there are none."""
    missing = [run for run in runs if run.state != "finished"]
    if missing:
        print(file=sys.stderr)
        note("These runs have no result. The same command runs them again:")
    keys = swept_keys(runs) or list(dict.fromkeys(key for run in runs for key in run.settings))
    for run in missing:
        words = " ".join(f"{key}={run.settings[key]}" for key in keys if key in run.settings)
        note(f"  {words}: {run.error or 'its process ended before it finished'}")
    return not missing


def print_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, tuple[str, str]],
    wide: int | None = None,
) -> None:
    """Prints an empty line, and a table with one line for each row. Missing values are -. `columns`
    has, for each title of a column, the key in the rows, and the format of its numbers. The table
    has at most `wide` characters in a line, by default as many as the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False)
    for number, title in enumerate(columns):
        justify: Any = "right" if number else "left"
        result.add_column(Text(printable(title)), justify=justify, overflow="fold")
    for row in rows:
        texts = [format(row[key], form) if key in row else "-" for key, form in columns.values()]
        style = "bold" if row.get("state") == "best" else None
        result.add_row(*(Text(printable(text)) for text in texts), style=style)
    wide = wide or max(Console().width, 100)  # so that lines in a file or a pipe are not broken
    Console(width=wide).print("", result, sep="\n")
