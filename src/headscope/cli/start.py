"""The start of every command. Imports nothing heavy, because it comes before all other imports."""

import os
import signal


def start_process() -> None:
    """Sets what must be set before torch is loaded.

    Ctrl-C ends the process at once, without a traceback, except where `headscope.stop` handles it.
    An ignored Ctrl-C (as with `nohup`) stays ignored.

    The threads of OpenMP spin while they wait for each other. If another program uses a core, long
    spinning makes a step ten times as slow (see `suite=training`). The number of rounds changes no
    result. What the user has set stays.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"
