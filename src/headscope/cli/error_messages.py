"""Prints errors as one line that says what went wrong."""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from headscope.cli.conf import choices_of
from headscope.config.own_parts import own_code
from headscope.config.parse import suggestion
from headscope.errors import UserError, first_line, ran_out_of_memory
from headscope.terminal import note
from headscope.training.processes import rank

CANNOT_BE_READ = (YAMLError, UnicodeEncodeError, HydraException, OmegaConfBaseException)
USER_ERRORS = (UserError, OSError, *CANNOT_BE_READ)
"""Errors that the user can fix. All other errors are bugs."""

REPORT_SECONDS = 5.0
"""Time that a process of a run that is not the first waits before it reports an error."""

BUG = """
This is a bug in headscope, not your mistake. Please report it with the traceback above, the
command, and the output of `pip list`: https://github.com/headscope/headscope/issues"""


@contextmanager
def exit_on_error(full_error: bool) -> Iterator[None]:
    """Inside the `with` block, an error is printed and ends the process with exit code 1. With
    `full_error`, an error that the user can fix is raised again instead."""
    try:
        yield
    except BrokenPipeError:
        # The program that reads the output, such as `head`, has ended. Send the rest of the output
        # to the null device: otherwise, Python would print another error when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if rank() > 0:  # if the first process has the same error, its end ends this process, too
            time.sleep(REPORT_SECONDS)
        if full_error and isinstance(error, USER_ERRORS):
            raise
        report_error(error)
        sys.exit(1)


def report_error(error: Exception, where: str = "") -> str:
    """Prints an error as one line that begins with `where`, or as a bug. Returns the line."""
    if isinstance(error, USER_ERRORS):
        line = one_line(error)
    elif ran_out_of_memory(error):
        sizes = "lower the batch size, the number of samples or the model's sizes"
        line = f"out of memory: {sizes} ({first_line(error)})"
    else:
        traceback.print_exc()
        own = own_code(error)
        print(f"\nThe error comes from {own}." if own else BUG, file=sys.stderr)
        return f"{type(error).__name__}: {first_line(error)}"
    note(f"Error: {where}{line}")
    return line


def one_line(error: BaseException) -> str:
    """The message of an error in one line, without the details that Hydra and OmegaConf add."""
    while isinstance(error, HydraException) and error.__cause__:
        error = error.__cause__
    if isinstance(error, OverrideParseException):
        return f"{error.override}: Hydra cannot read this as key=value: put the value in quotes"
    if isinstance(error, MissingConfigException) and "/" in str(error.missing_cfg_file):
        group, _, choice = str(error.missing_cfg_file)[:200].rpartition("/")
        if choice in ("joblib", "optuna", "submitit_local", "submitit_slurm"):
            return f"{group}={choice} is not installed: pip install 'headscope[sweeps]'"
        if group == "data" and ("." in choice or os.path.exists(choice)):
            return f"data={choice}: to read your own text, write data.path={choice}"
        hint = suggestion(choice, dict.fromkeys(error.options or choices_of(group)))
        hint += f"; to leave it out: ~{group}" if choice == "none" else ""
        return f"{group}={choice}: there is no {group}/{choice} in conf/{hint}"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}= must be given"
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        if not isinstance(error, KeyError | AttributeError):
            return f"{error.full_key}: {str(error).splitlines()[0]}"
        known: Any = OmegaConf.to_container(error.parent_node, resolve=False) or {}
        target = str(known.get("_target_", "headscope."))
        if not target.startswith("headscope.") or ".metrics." in f".{error.full_key}":
            return f"{error.full_key}: there is no such key yet: add it with +{error.full_key}="
        known = {key: each for key, each in known.items() if key != "hydra" and key[0] != "_"}
        return f"{error.full_key}: there is no such key{suggestion(error.key, known)}"
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f"{error.filename} is a file, but must be a folder: name another folder"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text, _, _ = str(error).partition("Config search path")
    return " ".join(text.split()) or type(error).__name__
