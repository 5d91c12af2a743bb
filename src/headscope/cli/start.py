"""The start of every command. Imports nothing heavy, because it comes before all other imports."""

import signal


def start_process() -> None:
    """While modules are imported, and while Python shuts down, Ctrl-C ends the process at once,
    without a traceback. An ignored Ctrl-C (as with `nohup`) stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
