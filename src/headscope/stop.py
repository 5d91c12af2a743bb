"""Stops training on a signal: Ctrl-C (SIGINT), SIGTERM, SIGHUP or SIGUSR2.

While training runs, the first signal is only recorded. Training finishes the step or the
validation, saves a checkpoint and raises `Interrupted`. A second signal does what it did before
training: in a command, it ends the process.

Python calls a signal handler only between two bytecode instructions. During one long call of C
code, only SIGKILL ends the process.
"""

import os
import signal
import stat
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2")  # SIGUSR2: submitit, at a time limit
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))

SAME_REQUEST_SECONDS = 1
"""Signals within this time are one request: a closed terminal sends SIGHUP more than once."""


class Interrupted(SystemExit):
    """Raised when a signal has stopped training and a checkpoint has been saved. Ends the process,
    also in a loop over several runs, with the exit code 128 + the signal's number."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(128 + number)
        self.number = int(number)


class StopSignals:
    """Records the first stop signal of this process: `requested` is its number, or 0."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.requested = 0
        self.requested_at = 0.0
        self.before: dict[int, Any] = {}

    def install(self) -> None:
        """Replaces the handlers of the stop signals until `restore`. A signal that is ignored, as
        with `nohup`, stays ignored. Only the main thread may set handlers: others do nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.before[number] = signal.signal(number, self.record)

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self.before = {}

    def record(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if time.monotonic() - self.requested_at > SAME_REQUEST_SECONDS:
                self.restore()
                signal.raise_signal(number)
            return
        self.requested, self.requested_at = number, time.monotonic()
        detach_closed_terminal()
        line = (
            f"\n{signal.Signals(number).name}: finishing the current step or validation, then "
            "saving. A second signal stops immediately.\n"
        )
        if not self.quiet:
            with suppress(OSError):
                os.write(2, line.encode())  # Python's own output may be in the middle of a print


def detach_closed_terminal() -> None:
    """Sends output to /dev/null if its terminal was closed. Otherwise, the next print would raise
    an error, and no checkpoint would be saved."""
    for stream in (1, 2):
        with suppress(OSError):
            is_device = stat.S_ISCHR(os.fstat(stream).st_mode)  # a terminal, or /dev/null
            if is_device and not os.isatty(stream):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
