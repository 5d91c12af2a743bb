"""What stands between an error and the person: one line of what went wrong."""

import difflib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from yaml import YAMLError

from headscope.errors import UserError, first_line, ran_out_of_memory
from headscope.terminal import printable

MISTAKES = (UserError, OSError, YAMLError, HydraException, OmegaConfBaseException)
"""Errors that the user can fix. Any other one is a bug."""

BUG = """
This is a bug in headscope, not a mistake of yours. Please report it with the traceback above:
CONTRIBUTING.md, section "Report a bug", says how."""


@contextmanager
def errors_told(full_error: bool) -> Iterator[None]:
    """End the process when something in here fails.

    A mistake that the user can fix is printed as one line (with `full_error` as a traceback) and
    exits with 1, Ctrl-C with 130. Anything else is a bug: its traceback and where to report it.
    """
    try:
        yield
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader has gone, as `head` does. Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MISTAKES as error:
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
    """What went wrong, without the libraries' frame around it."""
    where = re.match(r"In '(.+?)': \w+ raised while composing", str(error))
    if where and error.__context__:
        return f"conf/{where[1]}.yaml: {one_line(error.__context__)}"
    merging = re.match(r"Error merging override (.+)", str(error))
    while isinstance(error, HydraException) and error.__cause__:
        error = error.__cause__
    if isinstance(error, OverrideParseException):
        return f"{error.override}: this is not key=value as Hydra reads it; quote the value"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}= must be given"
    if isinstance(error, ConfigKeyError | ConfigAttributeError) and error.full_key:
        return f"{error.full_key}: there is no such key{_suggestion(error)}"
    if merging and isinstance(getattr(error, "full_key", None), int):  # a place in a list, no name
        return f"{merging[1]}: {str(error).splitlines()[0]}"
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return f"{error.full_key}: {_plain_reason(error)}"
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f"{error.filename}: a file is in the place of a folder; name another folder"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text, _, _ = str(error).partition("Config search path")
    return " ".join(text.split()) or type(error).__name__


def _plain_reason(error: OmegaConfBaseException) -> str:
    """Why OmegaConf refuses a value, in words of the command line."""
    reason, key = str(error).splitlines()[0], error.full_key
    if "is not a ListConfig" in reason:
        return f"must be a list, in brackets: {key}=[...]"
    if "is not a subclass of" in reason:
        return f"this is a group of keys; set one of them, {key}.KEY=value"
    if "does not support deletion" in reason or "is not Optional" in reason:
        return f"it needs a value; --help shows the default of {key}"
    return reason


def _suggestion(error: OmegaConfBaseException) -> str:
    fields = getattr(error.object_type, "__dataclass_fields__", {})
    known = [name for name in fields if not name.startswith("_")]
    close = difflib.get_close_matches(str(error.key), known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; keys here: {', '.join(known)}" if known else "; this choice has no keys"
