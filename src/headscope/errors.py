"""The error type for mistakes of the user, and texts of errors."""

import json
import operator
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class UserError(ValueError):
    """A mistake of the user in a key, a file or an argument.

    The message contains the key and its value, why it is wrong, and what to do instead. Scripts
    print the message as one line and exit with code 1. Any other exception is a bug in headscope:
    scripts print its traceback and say where to report it.
    """

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback."""
        return [f"Error: {self}"]


def whole_number(value: Any, name: str, smallest: int | None = None) -> int:
    """An argument of a public function as an int. Raises UserError if it is none, or too small."""
    with suppress(TypeError):
        number = operator.index(value)
        if smallest is None or number >= smallest:
            return number
    least = "" if smallest is None else f", at least {smallest}"
    raise UserError(f"{name}={value!r} must be a whole number{least}")


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory ran out, in Python or in torch, on a CPU or a GPU."""
    phrases = ("can't allocate memory", "not enough memory", "out of memory")
    from_torch = isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)
    return from_torch or isinstance(error, MemoryError)


def first_line(error: BaseException) -> str:
    """The first line of the error's message, or the name of its type if there is no message."""
    return " ".join(str(error).split("\n")[0].split()) or type(error).__name__


def why_not_compiled(error: BaseException) -> str:
    """Why PyTorch cannot compile, in one line. If there is no compiler, says what to install."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.endswith("raised:")]  # only names the backend
    reason = lines[0] if lines else type(error).__name__
    if "C compiler" in reason or "C++ compiler" in reason:
        return f"it needs a C++ compiler: install the package g++ (apt install g++); {reason}"
    return reason


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Inside the `with` block, an error of a library becomes a UserError that begins with
    `problem`, also a panic of Rust code, which is no `Exception`. Call no code of ours inside."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        kind = type(error).__name__
        if not isinstance(error, Exception) and kind != "PanicException":
            raise  # such as KeyboardInterrupt
        text = " ".join(str(error).split())[:300]
        raise UserError(f"{problem} ({kind}): {text}") from error


def short(value: Any) -> str:
    """The text of a value of any size and depth, shortened to one line for a message."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    plain = isinstance(value, str) and len(value) < 80 and value.isprintable()
    return value if plain else reprlib.repr(value)
