"""Prints errors as one line that says what went wrong."""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from yaml import YAMLError

from headscope.config.own_parts import own_code
from headscope.config.parse import HYDRA_KEYS, suggestion
from headscope.errors import UserError, first_line, ran_out_of_memory
from headscope.terminal import printable
from headscope.training.processes import first_reports

USER_ERRORS = (UserError, OSError, YAMLError, HydraException, OmegaConfBaseException)
"""Errors that the user can fix. All other errors are bugs."""

FROM_SWEEPS_EXTRA = (
    "hydra/launcher/joblib",
    "hydra/launcher/submitit_local",
    "hydra/launcher/submitit_slurm",
    "hydra/sweeper/optuna",
)
"""Choices that Hydra finds only if the extra `sweeps` is installed."""

BUG = """
This is a bug in headscope, not your mistake. Please report it with the traceback above, the
command, and the output of `pip list`: https://github.com/headscope/headscope/issues"""


@contextmanager
def exit_on_error(full_error: bool) -> Iterator[None]:
    """Ends the process if the code inside the `with` block raises an error.

    An error that the user can fix is printed in one line, and the exit code is 1. With
    `full_error`, such an error is raised again instead. Ctrl-C gives exit code 130. Any other error
    is a bug: the traceback is printed, followed by instructions for reporting the bug.
    """
    try:
        with first_reports():
            yield
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The program that reads the output, such as `head`, has ended. Send the rest of the output
        # to the null device: otherwise, Python would print another error when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except USER_ERRORS as error:
        if full_error:
            raise
        print(f"Error: {printable(one_line(error))}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        if ran_out_of_memory(error):
            sizes = "lower the batch size, the number of samples or the model's sizes"
            print(f"Error: out of memory: {sizes} ({first_line(error)})", file=sys.stderr)
            sys.exit(1)
        traceback.print_exc()
        own = own_code(error)
        print(f"\nThe error comes from {own}." if own else BUG, file=sys.stderr)
        sys.exit(1)


def one_line(error: BaseException) -> str:
    """The message of an error in one line, without the details that Hydra and OmegaConf add."""
    where = re.match(r"In '(.+?)': \w+ raised while composing", str(error))
    if where and error.__context__:
        return f"conf/{where[1]}.yaml: {one_line(error.__context__)}"
    merging = re.match(r"Error merging override (.+)", str(error))
    while isinstance(error, HydraException) and error.__cause__:
        error = error.__cause__
    if isinstance(error, OverrideParseException):
        return f"{error.override}: Hydra cannot read this as key=value: put the value in quotes"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file in FROM_SWEEPS_EXTRA:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={choice} is not installed: pip install 'headscope[sweeps]'"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}= must be given"
    if isinstance(error, ConfigKeyError | ConfigAttributeError) and error.full_key:
        return f"{error.full_key}: there is no such key{_suggestion(error)}"
    if merging:
        return f"{merging[1]}: {str(error).splitlines()[0]}"
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return f"{error.full_key}: {str(error).splitlines()[0]}"
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f"{error.filename} is a file, but must be a folder: name another folder"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text, _, _ = str(error).partition("Config search path")
    return " ".join(text.split()) or type(error).__name__


def _suggestion(error: OmegaConfBaseException) -> str:
    parent: Any = error.parent_node
    inside = {
        str(name): set(parent[name]) if OmegaConf.is_dict(parent._get_node(name)) else set()
        for name in parent
        if name not in ("hydra", *HYDRA_KEYS)
    }
    return suggestion(error.key, inside)
