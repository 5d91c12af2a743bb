"""Makes printed text safe, prints without a terminal, and names commands and steps in messages."""

import os
import re
import shlex
import sys
from pathlib import Path

from headscope.errors import UserError

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 and C1 control characters, and those that change the writing direction."""


def open_closed_streams() -> None:
    """Opens the null device for each standard stream that the user has closed, as with `>&-`.
    Otherwise, the next file would get its number, and output would be written into this file."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def command(name: str, *words: str) -> str:
    """Another command, as the user started this process: with a script, or with `headscope`."""
    script = Path(sys.argv[0]).with_name(f"{name}.py")
    if script.parent.name == "scripts" and script.is_file():
        return shlex.join(["python", str(script), *words])
    return shlex.join(["headscope", name, *words])


def step_name(step: int | None) -> str:
    """A training step in words. It is None for an imported model, whose training is unknown."""
    return "imported" if step is None else f"step {step:,}"


def printable(text: str, *, keep: str = "") -> str:
    """Escapes control characters, for example as \\x1b, except those in `keep`. A terminal would
    execute them: they can erase lines or change text that was printed before."""

    def escaped(match: re.Match[str]) -> str:
        return match[0] if match[0] in keep else match[0].encode("unicode_escape").decode()

    return CONTROL.sub(escaped, text)


def write(text: str) -> None:
    """Writes a piece of text to standard output, as UTF-8. On a terminal, it is `printable`."""
    text = printable(text, keep="\n\t") if sys.stdout.isatty() else text
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def note(line: str) -> None:
    """Prints a line to standard error, `printable`."""
    print(printable(line), file=sys.stderr, flush=True)


def read_standard_input() -> str:
    """Reads all of standard input. Raises UserError when the input is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 at byte {error.start}") from None
