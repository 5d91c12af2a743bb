"""Prints errors as one line that says what went wrong."""

import difflib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from yaml import YAMLError

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
This is a bug in headscope, not your mistake. Please report it with the traceback above. See
CONTRIBUTING.md, section "Report a bug"."""


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
        print(BUG, file=sys.stderr)
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
        return f"{group}={choice} is not installed: pip install -e '.[sweeps]'"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}= must be given"
    if isinstance(error, ConfigKeyError | ConfigAttributeError) and error.full_key:
        return f"{error.full_key}: there is no such key{_suggestion(error)}"
    # For an entry of a list, full_key is the index of the entry.
    if merging and isinstance(getattr(error, "full_key", None), int):
        return f"{merging[1]}: {str(error).splitlines()[0]}"
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return f"{error.full_key}: {_plain_reason(error)}"
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f"{error.filename} is a file, but must be a folder: name another folder"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text, _, _ = str(error).partition("Config search path")
    return " ".join(text.split()) or type(error).__name__


def _plain_reason(error: OmegaConfBaseException) -> str:
    """Says why OmegaConf rejects a value, and how to fix it on the command line."""
    reason, key = str(error).splitlines()[0], error.full_key
    if "is not a ListConfig" in reason:
        return f"must be a list, in brackets: {key}=[...]"
    if "is not a subclass of" in reason:
        return f"this is a group of keys: set one of its keys with {key}.KEY=value"
    if "does not support deletion" in reason or "is not Optional" in reason:
        return f"it needs a value; --help shows the default of {key}"
    return reason


def _suggestion(error: OmegaConfBaseException) -> str:
    fields = getattr(error.object_type, "__dataclass_fields__", {})
    known = [name for name in fields if not name.startswith("_")]
    inside = [
        f"{name}.{error.key}"
        for name in known
        if error.key in getattr(fields[name].type, "__dataclass_fields__", {})
    ]
    if inside:
        return f"; did you mean {' or '.join(inside)}?"
    close = difflib.get_close_matches(str(error.key), known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; keys here: {', '.join(known)}" if known else "; this choice has no keys"
