"""Stopping the process by a signal: Ctrl-C (SIGINT), SIGTERM and SIGHUP.

A script that trains runs inside `at_once`: a signal then removes what is half-made (`on_stop`) and
ends the process with 128 + the signal's number. While training steps run (`deferred`), the first
signal is only noted; training polls `requested()` after every step, saves and raises `Interrupted`.
A second signal ends the process at once.

Python calls signal handlers between two instructions of the main thread, which may be inside a C
call for minutes. So a thread of its own receives the signals, through `signal.set_wakeup_fd`, and
the handler only holds the main thread still while that thread cleans up.

Signals belong to the whole process, so their state is the one module-level variable here. A signal
that is ignored when `at_once` begins (`nohup`) stays ignored.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

HOLD_SECONDS = 0.3
"""How long to wait for the main thread to reach its handler before cleaning up without it."""


class Interrupted(SystemExit):
    """Training was stopped by a signal, and everything is saved.

    A `SystemExit`, so that no loop goes on to the next run; its code is 128 + the signal's number.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(128 + number)


class _Receiver:
    """What this process does with the signals that it receives."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], str | None]] = []
        self.say: Callable[[str], None] | None = None  # while signals are deferred
        self.requested: int | None = None
        self.handled = 0
        self.held = threading.Event()
        self.noted = threading.Event()

    def handler(self, number: int, frame: FrameType | None) -> None:
        """Hold the main thread until the signal is noted, or the process has ended."""
        self.handled += 1
        if self.say is None or self.handled > 1:
            self.held.set()
            threading.Event().wait(10)
        else:
            self.noted.wait(1)

    def watch(self, pipe: int) -> None:
        while number := os.read(pipe, 1)[0]:
            if number in SIGNALS:
                self.receive(number)

    def receive(self, number: int) -> None:
        if number == getattr(signal, "SIGHUP", None):
            _detach_lost_terminal()
        say = self.say
        if say is None or self.requested is not None:
            self.end(number)
            return
        self.requested = number
        self.noted.set()
        with suppress(OSError):
            say(
                f"{signal.Signals(number).name}: finishing the current step, then saving. "
                "A second signal stops at once."
            )

    def end(self, number: int) -> None:
        try:
            self.held.wait(HOLD_SECONDS)
            lines = ["", f"Stopped by {signal.Signals(number).name}."]
            for callback in reversed(self.callbacks):
                with suppress(OSError):
                    lines.append(callback() or "")
            if sys.stdout.isatty():
                lines.insert(0, "\x1b[?25h")  # a progress bar hides the cursor
            text = "\n".join([*filter(None, lines), ""])
            os.write(2, text.encode(errors="backslashreplace"))
        finally:
            os._exit(128 + number)


_receiver: _Receiver | None = None


@contextmanager
def at_once() -> Iterator[None]:
    """In here, a signal calls what `on_stop` registered and ends the process with 128 + its number.

    Does nothing outside the main thread, which alone may set signal handlers, and inside itself.
    """
    global _receiver
    if _receiver is not None or not _in_main_thread():
        yield
        return
    receiver = _receiver = _Receiver()
    read, write = os.pipe()
    os.set_blocking(write, False)
    thread = threading.Thread(target=receiver.watch, args=(read,), daemon=True)
    thread.start()
    previous_pipe = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    previous = {
        number: signal.signal(number, receiver.handler)
        for number in SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    os.register_at_fork(after_in_child=lambda: _restore_in_child(receiver, previous))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_pipe)
        os.write(write, b"\0")
        thread.join()
        os.close(read)
        os.close(write)
        _receiver = None


@contextmanager
def on_stop(callback: Callable[[], Any]) -> Iterator[None]:
    """In here, a signal that ends the process at once calls `callback` first, the newest first.

    A text that it returns is printed. It must not print or take locks: the main thread is held
    still anywhere.
    """
    if _receiver is None:
        yield
        return
    callbacks = _receiver.callbacks
    callbacks.append(callback)
    try:
        yield
    finally:
        callbacks.remove(callback)


@contextmanager
def deferred(say: Callable[[str], None]) -> Iterator[None]:
    """In here, the first signal only sets `requested()`, and `say` tells the user so.

    Does nothing outside the main thread.
    """
    with at_once():
        receiver = _receiver
        if receiver is None or not _in_main_thread():
            yield
            return
        # Lightning has set a handler of SIGTERM that ends the process with 0, nothing saved.
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, receiver.handler)
        receiver.say = say
        try:
            yield
        finally:
            receiver.say = None


def requested() -> int | None:
    """The number of the signal that asked to stop, or None."""
    return _receiver.requested if _receiver else None


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _restore_in_child(receiver: _Receiver, handlers: dict[Any, Any]) -> None:
    """A forked process shares the pipe; a signal to it must not count as one to its parent."""
    global _receiver
    if _receiver is receiver:
        _receiver = None
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _detach_lost_terminal() -> None:
    """Send output nowhere when its terminal is gone: printing would fail before training saved."""
    if sys.platform == "win32":
        return
    import errno
    import termios

    for stream in (1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
