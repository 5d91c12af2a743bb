"""Runs a script: Hydra composes the configuration, and errors are printed in one line."""

import functools
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import OmegaConf

from headscope import __version__
from headscope.cli import sweeps
from headscope.cli.conf import CONF, OwnChoices
from headscope.cli.error_messages import exit_on_error
from headscope.cli.words import WRITES_NOTHING, implied_data, parsed, quoted, value_of, with_home
from headscope.config.own_parts import load_parts
from headscope.errors import UserError
from headscope.terminal import open_closed_streams
from headscope.training import processes
from headscope.training.run_folder import locked, remove_unused


def run(
    task: Callable[[Any], Any],
    config_name: str,
    prepare: Callable[[list[str]], list[str]] = lambda words: words,
) -> None:
    """Composes conf/<config_name>.yaml with the command line of this process, and calls `task` with
    the result. `prepare` changes the words of the command line before Hydra gets them. The
    environment variable HYDRA_FULL_ERROR=1 shows the full traceback of an error."""
    # A process that Lightning started has inherited the value that the first process set below.
    inherited = processes.starter() == "lightning"
    full_error = not inherited and os.environ.get("HYDRA_FULL_ERROR", "0") not in ("", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise errors instead of printing them
    open_closed_streams()
    Plugins.instance().register(OwnChoices)

    @functools.wraps(task)
    def guarded(config: Any) -> Any:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return sweeps.run_one(task, config)
        # Errors are handled here, inside Hydra's call, because Hydra would print additional lines.
        with exit_on_error(full_error):
            return attempt(task, config)

    with exit_on_error(full_error):
        if not inherited:  # else the first process has prepared the words
            if "--version" in sys.argv:
                print(f"headscope {__version__}")
                return
            sys.argv[1:] = prepared(sys.argv[1:], config_name, prepare)
        if processes.rank() > 0:
            sys.argv += WRITES_NOTHING
        with sweeps.reported():
            main = hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)
            main(guarded)()


def prepared(
    words: list[str], config_name: str, prepare: Callable[[list[str]], list[str]]
) -> list[str]:
    """The words of the command line for Hydra. Prints --help, and ends the process after it."""
    args = parsed(words, config_name)
    flags = [word for word in words if word not in args.overrides]
    overrides = [with_home(word) for word in (*args.overrides, *implied_data(args.overrides))]
    os.environ[sweeps.SWEEP_ID] = sweeps.command_line_id(overrides)
    if args.help:
        from headscope.cli.help import help_text

        print(help_text(config_name, quoted(overrides)))
        sys.exit()
    if not args.multirun:
        return [*quoted(prepare(overrides)), *flags]
    if math.prod(processes.started() or ()) > 1:
        problem = f"-m: {processes.starter()} has started several processes, but a sweep is one"
        raise UserError(f"{problem}: start every run with its own command")
    if resumed := value_of(overrides, "resume"):
        raise UserError(f"resume={resumed} continues one run: leave out -m")
    return [*prepare(overrides), *flags]


def attempt(task: Callable[[Any], Any], config: Any) -> Any:
    """Calls `task`. If it fails, removes the new run folder, if it is unused."""
    folder = run_folder()
    try:
        load_parts(config.get("parts"))
        return task(config)
    except Exception:
        if folder.is_dir() and folder.resolve() != Path.cwd():
            with suppress(UserError, OSError), locked(folder):
                remove_unused(folder)
        raise


def run_folder() -> Path:
    """The run folder that Hydra has chosen, not interpolated: it may contain a literal `${`."""
    runtime: Any = OmegaConf.to_container(HydraConfig.get().runtime, resolve=False)
    return Path(runtime["output_dir"])
