"""Stops the process cleanly on a signal: Ctrl-C (SIGINT), SIGTERM, SIGHUP or SIGUSR2.

- Inside `stop_on_signal`, a signal calls the clean-up functions registered by `on_stop`. Then it
  ends the process with the exit code 128 + the signal's number.
- `interruptible` does this in a program that continues afterwards, such as a notebook.
- Inside `defer_stop`, which is active while training steps run, the first signal is only recorded.
  After every step, training calls `requested()`. If a signal was recorded, training saves a
  checkpoint and raises `Interrupted`. A second signal ends the process immediately.

Python calls a signal handler only between two bytecode instructions of the main thread. The main
thread can be inside a C call for minutes. Therefore a separate thread receives the signals, through
`signal.set_wakeup_fd`. The handler itself only blocks the main thread while the other thread cleans
up.

Signals belong to the whole process, so their state is kept in a module-level variable. Only the
registry of parts is another one that changes. A signal that was ignored before `stop_on_signal`
(as with `nohup`) stays ignored.
"""

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from headscope.terminal import open_closed_streams

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2")  # SIGUSR2: submitit, at a time limit
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))

BLOCK_SECONDS = 0.3
"""The longest time to wait until the signal handler has blocked the main thread. If the main thread
is not blocked by then, for example because it is in a C call, the clean-up starts anyway."""


class Interrupted(SystemExit):
    """Raised when a signal has stopped training and a checkpoint has been saved.

    This is a subclass of `SystemExit`, so it also ends a loop over several runs. The exit code is
    128 + the signal's number.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(128 + number)
        self.number = int(number)


class _Receiver:
    """Receives the signals of this process in a separate thread, and reacts to them."""

    def __init__(self, quiet: bool, with_parent: bool) -> None:
        self.quiet = quiet
        self.parent = os.getppid() if with_parent else None
        self.callbacks: list[Callable[[], str | None]] = []
        self.say: Callable[[str], None] | None = None  # set while signals are deferred
        self.requested: int | None = None
        self.handled = 0
        self.main_thread_blocked = threading.Event()
        self.recorded = threading.Event()

    def handler(self, number: int, frame: FrameType | None) -> None:
        """Blocks the main thread until the signal is recorded or the process has ended."""
        self.handled += 1
        if self.say is None or self.handled > 1:
            self.main_thread_blocked.set()
            threading.Event().wait(10)
        else:
            self.recorded.wait(1)

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
        self.recorded.set()
        with suppress(OSError):
            say(
                f"{signal.Signals(number).name}: finishing the current step, then saving. "
                "A second signal stops immediately."
            )

    def end(self, number: int) -> None:
        try:
            self.main_thread_blocked.wait(BLOCK_SECONDS)
            lines = ["", f"Stopped by {signal.Signals(number).name}."]
            for callback in reversed(self.callbacks):
                with suppress(OSError):
                    lines.append(callback() or "")
            if sys.stdout.isatty():
                lines.insert(0, "\x1b[?25h")  # show the cursor, which a progress bar hides
            text = "\n".join([*filter(None, lines), ""])
            if not self.quiet:
                os.write(2, text.encode(errors="backslashreplace"))
            while self.parent == os.getppid():  # inside `defer_stop`, it needs two signals
                os.kill(self.parent, number)
                time.sleep(BLOCK_SECONDS)
        finally:
            os._exit(128 + number)


class _InterruptReceiver(_Receiver):
    """Reacts to the signals in their handler, for `interruptible`."""

    def handler(self, number: int, frame: FrameType | None) -> None:
        if self.say is None or self.requested is not None:
            raise KeyboardInterrupt if number == signal.SIGINT else Interrupted(number)
        self.requested = number
        with suppress(OSError, RuntimeError):  # such as another print that is not finished
            self.say("Interrupted: finishing the current step, then saving")


_receiver: _Receiver | None = None


@contextmanager
def stop_on_signal(*, quiet: bool = False, with_parent: bool = False) -> Iterator[None]:
    """Inside the `with` block, a signal calls the functions registered by `on_stop` and ends the
    process with the exit code 128 + the signal's number. If `quiet` is true, prints nothing. If
    `with_parent` is true, the signal ends the parent process, too.

    Does nothing when nested, or outside the main thread, because only the main thread may set
    signal handlers.
    """
    global _receiver
    if _receiver is not None or not _in_main_thread():
        yield
        return
    open_closed_streams()  # or the pipe would become standard output
    receiver = _receiver = _Receiver(quiet, with_parent)
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
    block_signals(False)
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
def interruptible() -> Iterator[None]:
    """Like `stop_on_signal`, for Python code that continues after Ctrl-C, such as a notebook.
    Outside `defer_stop`, Ctrl-C raises KeyboardInterrupt, and other signals keep their handlers.
    Inside, the first signal is recorded, and a second one raises KeyboardInterrupt or
    `Interrupted`. Does nothing if Ctrl-C is ignored."""
    global _receiver
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if _receiver is not None or not _in_main_thread() or ignored:
        yield
        return
    _receiver = _InterruptReceiver(quiet=True, with_parent=False)
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, _receiver.handler)
    try:
        yield
    finally:
        for number, each in previous.items():
            signal.signal(number, each)
        _receiver = None


@contextmanager
def on_stop(callback: Callable[[], Any]) -> Iterator[None]:
    """Inside the `with` block, a signal that ends the process first calls `callback`. If several
    callbacks are registered, they are called in reverse order. If a callback returns text, the text
    is printed.

    `callback` must not print or acquire locks: while it runs, the main thread is blocked at an
    arbitrary point, and the main thread may hold a lock.
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
def temporary_folder() -> Iterator[Path]:
    """A new folder for the `with` block. It is also removed when a signal ends the process."""
    with (
        tempfile.TemporaryDirectory(prefix="headscope-") as folder,
        on_stop(partial(shutil.rmtree, folder, ignore_errors=True)),
    ):
        yield Path(folder)


@contextmanager
def defer_stop(say: Callable[[str], None]) -> Iterator[None]:
    """Inside the `with` block, the first signal does not end the process: its number is recorded,
    and `requested()` returns it. `say` is called with a message for the user. Does nothing outside
    the main thread."""
    with stop_on_signal():
        receiver = _receiver
        if receiver is None or not _in_main_thread():
            yield
            return
        # Replace Lightning's SIGTERM handler, which exits with code 0 and saves nothing.
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, receiver.handler)
        receiver.say = say
        try:
            yield
        finally:
            receiver.say = None


def block_signals(block: bool) -> None:
    """Blocks or unblocks the stop signals in this thread. A process that is started meanwhile
    inherits the block until its own `stop_on_signal`."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK if block else signal.SIG_UNBLOCK, SIGNALS)


def receives() -> bool:
    """Whether this process is inside `stop_on_signal`."""
    return _receiver is not None


def requested() -> int | None:
    """The number of the signal that requested a stop, or None."""
    return _receiver.requested if _receiver else None


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _restore_in_child(receiver: _Receiver, handlers: dict[Any, Any]) -> None:
    """Restores the previous signal handlers in a forked child process. The child shares the pipe
    with its parent, so a signal to the child would otherwise stop the parent."""
    global _receiver
    if _receiver is receiver:
        _receiver = None
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _detach_lost_terminal() -> None:
    """Redirects output to /dev/null if its terminal was closed. Otherwise, the next print would
    fail, and no checkpoint would be saved."""
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
