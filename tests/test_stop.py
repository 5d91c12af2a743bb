"""Signals: during training, the first one is recorded and the second one ends the process; at other
times, and for a signal that is ignored, the system decides."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from many_processes import SCRIPT, TINY

from headscope.stop import SIGNALS, StopSignals
from headscope.training.run_folder import is_run

pytestmark = pytest.mark.slow

ENDLESS = [*TINY, "trainer.max_steps=1000000", "trainer.val_every_steps=1000000"]
ENDLESS += ["hydra.run.dir=outputs/run"]
STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
STEP = "headscope.training.module:LanguageModel.training_step"
VALIDATION = "headscope.training.module:LanguageModel.on_validation_epoch_start"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def start(text: Path, *words: str, before: str = "", **options) -> subprocess.Popen[str]:
    """A training run in the current folder, after the lines `before` of Python."""
    lines = ["import runpy, signal, sys, time", "del sys.argv[0]", before]
    lines += ["runpy.run_path(sys.argv[0], run_name='__main__')"]
    command = [sys.executable, "-c", "\n".join(lines), SCRIPT, *ENDLESS, f"data.path={text}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([*command, *words], env=environment, **(pipes | options))


def said_until(running: subprocess.Popen[str], line: str) -> None:
    assert running.stdout is not None
    assert any(line in each for each in running.stdout)


def slow(function: str, seconds: float = 1) -> str:
    """Python that makes a call of a function take longer, and prints its name before."""
    module, _, name = function.rpartition(":")
    owner, _, attribute = f"module.{name}".rpartition(".")
    return f"""
import functools, importlib
module = importlib.import_module({module!r})
original = {owner}.{attribute}
@functools.wraps(original)
def slowly(*words, **more):
    print("in {attribute}", flush=True)
    time.sleep({seconds})
    return original(*words, **more)
{owner}.{attribute} = slowly
"""


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize(
    ("function", "saved"),
    [
        ("headscope.data.tokenizer:byte", False),  # before training
        (STEP, True),  # the first step
        ("headscope.trained.checkpoint.file:save_file", True),
        (VALIDATION, False),  # the final one: the checkpoint of the last step is there
    ],
)
def test_a_signal_during_training_saves_and_at_other_times_ends(speeches, number, function, saved):
    final = function == VALIDATION
    words = ["trainer.max_steps=2"] if final else ["callbacks.saving.every_minutes=0"]
    running = start(speeches, *words, before=slow(function))
    if final:
        said_until(running, "Validating on")
    said_until(running, f"in {re.split('[:.]', function)[-1]}")
    running.send_signal(number)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == (128 + number if saved else -number), out
    assert "Traceback" not in out or final
    assert is_run(Path("outputs/run")) == (saved or final)
    assert ("To continue: " in out) == saved


@pytest.mark.parametrize(("first", "second"), [(signal.SIGINT, signal.SIGTERM), STOPS[:0:-1]])
def test_a_second_signal_ends_it_at_once(speeches, first, second):
    running = start(speeches, before=slow(STEP, 30))
    said_until(running, "in training_step")
    running.send_signal(first)
    said_until(running, f"{signal.Signals(first).name}: finishing the current step")
    running.send_signal(second)  # the same request
    time.sleep(1.5)
    assert running.poll() is None
    running.send_signal(second)
    assert running.wait(timeout=20) == -second


def test_nohup_trains_on(speeches):
    ignored = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    running = start(speeches, "trainer.max_steps=300", before=ignored)
    said_until(running, "step 1 of")
    running.send_signal(signal.SIGHUP)
    out, _ = running.communicate(timeout=60)
    assert (running.returncode, "SIGHUP" in out) == (0, False)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_closed_terminal_does_not_prevent_saving(speeches):
    import pty

    ours, theirs = pty.openpty()
    terminal = dict.fromkeys(("stdout", "stderr", "stdin"), theirs)
    running = start(speeches, **terminal, start_new_session=True)
    os.close(theirs)
    shown = b""
    while b"tokens/s" not in shown:
        shown += os.read(ours, 1000)
    running.send_signal(signal.SIGSTOP)  # so that no print of it fails before the signal arrives
    os.close(ours)
    running.send_signal(signal.SIGHUP)  # from the system
    running.send_signal(signal.SIGCONT)
    time.sleep(0.002)
    running.send_signal(signal.SIGHUP)  # from the shell
    assert running.wait(timeout=60) == 129
    assert is_run(Path("outputs/run"))


@pytest.mark.parametrize("seconds", [0, 0.1, 0.3])
@pytest.mark.parametrize("command", [["-m", "headscope", "train"], [SCRIPT]])
def test_ctrl_c_during_imports_prints_no_traceback(command, seconds):
    """Python prints a line on standard error after each import."""
    words = [sys.executable, "-X", "importtime", *command, "max_steps=1"]  # no such key
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as running:
        assert running.stderr is not None
        assert any("omegaconf" in line for line in running.stderr)
        time.sleep(seconds)
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert "Traceback" not in said
    # A fast machine has already printed the error.
    assert running.returncode in ({-signal.SIGINT, 1} if seconds else {-signal.SIGINT})


def test_no_handler_is_set_outside_the_main_thread():
    before = [signal.getsignal(number) for number in SIGNALS]
    thread = threading.Thread(target=StopSignals().install)
    thread.start()
    thread.join()
    assert [signal.getsignal(number) for number in SIGNALS] == before
