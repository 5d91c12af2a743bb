"""Runs a script: Hydra composes the configuration, and errors are printed in one line."""

import functools
import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from headscope import __version__
from headscope.cli import sweeps
from headscope.cli.error_messages import exit_on_error
from headscope.cli.help import help_text
from headscope.cli.words import (
    CONF,
    HELP,
    MULTIRUN,
    OwnChoices,
    check_encoding,
    check_flags,
    check_groups,
    flags_first,
    forced,
    implied_data,
    is_override,
    literal_arguments,
    plain_word,
    value_of,
    with_words,
)
from headscope.config import SCHEMAS, every_choice, from_hydra
from headscope.config.own_parts import load_parts
from headscope.errors import UserError
from headscope.terminal import open_closed_streams
from headscope.training import processes
from headscope.training.run_folder import make_new, remove_unused


def run_folder() -> Path:
    """The run folder that Hydra has chosen. Its path is not interpolated, because it may contain a
    literal `${`."""
    runtime: Any = OmegaConf.to_container(HydraConfig.get().runtime, resolve=False)
    return Path(runtime["output_dir"])


def read_standard_input() -> str:
    """Reads all of standard input. Raises UserError when the input is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 at byte {error.start}") from None


def run(
    task: Callable[[Any], Any],
    config_name: str,
    prepare: Callable[[list[str], list[str]], list[str]] = lambda typed, quoted: quoted,
    report_sweep: sweeps.ReportSweep | None = None,
    schema: type | None = None,
) -> None:
    """Composes conf/<config_name>.yaml with the command line of this process, and calls `task` with
    the result.

    `prepare` is called with two versions of the command-line arguments: as the user typed them, and
    quoted for Hydra. It returns the arguments that are passed to Hydra. `report_sweep` is called
    at the end of a sweep (`-m`). `schema` is needed only if the script is not in `SCHEMAS`.

    An error that the user can fix is printed in one line, and the process ends with exit code 1.
    The environment variable HYDRA_FULL_ERROR=1 shows the full traceback instead. If a run of a
    sweep has such an error, the sweep continues, and the error is listed again at the end.
    Ctrl-C ends the process with exit code 130.
    """
    # A process that Lightning started has inherited the value that the first process set below.
    inherited = processes.starter() == "lightning"
    full_error = not inherited and os.environ.get("HYDRA_FULL_ERROR", "0") not in ("", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise errors instead of printing them
    open_closed_streams()
    prepare_hydra()
    own_schema = SCHEMAS["script"].get(config_name)
    process = os.getpid()

    def checked_task(config: Any) -> Any:
        if own_schema:
            check(config, own_schema)
        return task(config)

    @functools.wraps(task)
    def guarded(config: Any) -> Any:
        if os.getpid() != process:
            return sweeps.run_elsewhere(checked_task, config)
        # Errors are handled here, inside Hydra's call, because Hydra would print additional lines.
        with exit_on_error(full_error):
            if HydraConfig.get().mode != RunMode.MULTIRUN:
                return checked_task(config)
            return sweeps.run_here(checked_task, config, full_error)

    with exit_on_error(full_error):
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `start_process`
            signal.signal(signal.SIGINT, signal.default_int_handler)
        processes.check_environment()
        words = sys.argv[1:]
        sweep: Any = nullcontext()
        # If Lightning started this process, the first process has prepared the words.
        if processes.starter() != "lightning":
            typed = [plain_word(word) for word in flags_first(words)]
            if "--version" in typed:
                print(f"headscope {__version__}")
                return
            quoted = quoted_words(typed, config_name, schema or own_schema)
            if HELP & set(typed):
                print(help_text(config_name, [word for word in quoted if is_override(word)]))
                return
            words = prepare(typed, quoted)
            if MULTIRUN & set(typed):
                processes.check_sweep()
                added = [*sweeps.optuna_defaults(typed), sweeps.SameFolder.ARGUMENT]
                words = [*forced(words), *added]
                sweep = sweeps.reported(report_sweep)
        sys.argv[1:] = words if processes.rank() == 0 else without_folder(words)
        with sweep:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(
                guarded
            )()


def quoted_words(typed: list[str], config_name: str, schema: type | None) -> list[str]:
    """The words of a command as Hydra takes them. Raises UserError if one of them is wrong."""
    check_encoding(typed)
    of_text = config_name in ("train", "compare")
    check_flags(typed, "data.path" if of_text else "checkpoint")
    check_groups(typed)
    for word in typed if not (MULTIRUN | HELP) & {*typed} else []:
        if re.match(r"\+*hydra[./](sweeper|launcher)", word):
            raise UserError(f"{word} has an effect only in a sweep: add -m, or leave it out")
    load_parts(value_of(typed, "parts"))  # its corpora may have keys that are texts
    return literal_arguments(with_words(typed, implied_data(typed)), schema)


def check(config: DictConfig, schema: type) -> None:
    """Raises an error if a value has the wrong type, before the task imports torch. Removes the run
    folder that Hydra has just made."""
    try:
        load_parts(config.parts)  # also those that a file in conf/ names
        from_hydra(schema, config)
    except Exception:
        remove_unused(run_folder())
        raise


def without_folder(words: list[str]) -> list[str]:
    """The words for a process that is not the first of its run: Hydra makes no folder and writes no
    file."""
    keys = ("hydra.run.dir=", "hydra.output_subdir=", "hydra.job.name=")
    kept = [word for word in words if not word.startswith(keys)]
    return [*kept, "hydra.run.dir=.", "hydra.output_subdir=null"]


class NewFolder(Callback):
    """Creates a new run folder before Hydra writes to it, so that two runs that start in the same
    second get different folders. If the command line names a folder, that name is used.

    It is a callback, because Hydra may resolve the name several times. It checks nothing, because
    Hydra turns an error in a callback into a warning."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def on_run_start(self, config: DictConfig, **more: Any) -> None:
        named = any(word.startswith("hydra.run.dir=") for word in config.hydra.overrides.hydra)
        if self.enabled and not named:
            with read_write(config):
                config.hydra.run.dir = make_new(config.hydra.run.dir)


def prepare_hydra() -> None:
    """Registers the resolvers that conf/ uses, and the folders with the user's own choices."""
    Plugins.instance().register(OwnChoices)
    OmegaConf.register_new_resolver("every", every_choice, replace=True)
    OmegaConf.register_new_resolver("command_line_id", _command_line_id, replace=True)


def _command_line_id() -> str:
    """A hash of the command line, as eight hexadecimal digits: the same arguments give the same
    digits. Another launcher does not change them, so that it continues the same sweep."""
    added = {*MULTIRUN, sweeps.SameFolder.ARGUMENT}
    words = [
        word.removeprefix("++")
        for word in sys.argv[1:]
        if word not in added and not sweeps.is_launcher_word(word)
    ]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8]
