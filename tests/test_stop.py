"""Signals: 128 + the number, at once or after the step, and nothing half-made is left."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from running import ROOT

from headscope import stop

BUSY = {
    "in Python": "while True: pass",
    # One call that lasts for minutes, in which no Python handler runs.
    "in C": "hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)",
}

SCRIPTS = ["train.py", "sample.py"]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def process(code: str, *words: str, **options) -> subprocess.Popen[str]:
    """A new process that runs `code`; what it imports is light."""
    start = "import hashlib, os, signal, sys, threading, time\nfrom headscope import stop\n"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", start + code, *words], **(pipes | options))


def when_ready(running: subprocess.Popen[str], *numbers: int) -> tuple[int, str, str]:
    """Send signals, each after a line of its output; returns exit code, output and errors."""
    assert running.stdout is not None
    for number in numbers:
        assert running.stdout.readline()
        running.send_signal(number)
    out, err = running.communicate(timeout=60)
    return running.returncode, out, err


@pytest.mark.slow
@pytest.mark.parametrize("busy", BUSY)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_cleans_up_and_ends_the_process(number: int, busy: str, tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.mkdir()
    code = f"""
def clean():
    os.rmdir({str(half)!r})
    return "To continue: again"
with stop.stop_on_signal(), stop.on_stop(clean):
    print("ready", flush=True)
    {BUSY[busy]}
"""
    code, _, err = when_ready(process(code), number)
    assert code == 128 + number
    assert "To continue: again" in err
    assert "Traceback" not in err
    assert not half.exists()


DEFERRED = """
with stop.stop_on_signal(), stop.defer_stop(lambda line: print(line, flush=True)):
    print("ready", flush=True)
    while not stop.requested():
        time.sleep(0.01)
    {then}
    raise stop.Interrupted(stop.requested())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_deferred_signal_waits_for_the_program_to_stop(number: int) -> None:
    code, out, _ = when_ready(process(DEFERRED.format(then="print('saved')")), number)
    assert code == 128 + number
    assert signal.Signals(number).name in out
    assert "saved" in out


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once() -> None:
    running = process(DEFERRED.format(then=BUSY["in C"]))
    code, _, _ = when_ready(running, signal.SIGINT, signal.SIGTERM)
    assert code == 143


CTRL_C_WHILE_PYTHON_SHUTS_DOWN = """
import atexit
from headscope.cli.start import start_process
atexit.register(lambda: (print("ready", flush=True), time.sleep(60)))
start_process()
with stop.stop_on_signal(), stop.defer_stop(print):
    raise stop.Interrupted(signal.SIGINT)
"""
IGNORED_AS_NOHUP_DOES = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with stop.stop_on_signal(), stop.defer_stop(print):
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.5)
    print(stop.requested(), flush=True)
"""
ONLY_TO_A_FORKED_PROCESS = """
with stop.stop_on_signal(), stop.defer_stop(print):
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    _, status = os.waitpid(child, 0)
    time.sleep(0.5)
    print(os.waitstatus_to_exitcode(status), stop.requested(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "signals", "expected"),
    [
        (CTRL_C_WHILE_PYTHON_SHUTS_DOWN, [signal.SIGINT], (-signal.SIGINT, "", "")),
        (IGNORED_AS_NOHUP_DOES, [], (0, "None\n", "")),
        (ONLY_TO_A_FORKED_PROCESS, [], (0, "-15 None\n", "")),
    ],
)
def test_a_signal_that_is_no_request_to_stop(code: str, signals: list[int], expected) -> None:
    assert when_ready(process(code), *signals) == expected


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("seconds", [0, 0.1, 0.2, 0.4])
@pytest.mark.parametrize(
    "command", [["-m", "headscope", "train"], *([ROOT / "scripts" / name] for name in SCRIPTS)]
)
def test_ctrl_c_during_imports_prints_no_traceback(
    command: list, seconds: float, ignored: bool, tmp_path: Path
) -> None:
    """Python prints a line on standard error after each import."""
    started = subprocess.Popen(
        [sys.executable, "-X", "importtime", *command, "max_steps=1"],  # no such key
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL
        ),
    )
    with started as running:
        assert running.stderr is not None
        assert any("omegaconf" in line for line in running.stderr)
        time.sleep(seconds)
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert "Traceback" not in said
    by_signal = {-signal.SIGINT, 130}
    if seconds:  # a fast machine has already printed the error
        by_signal.add(1)
    assert running.returncode in ({1} if ignored else by_signal)


def test_handlers_are_restored_and_none_is_set_outside_the_main_thread() -> None:
    before, found = [signal.getsignal(number) for number in SIGNALS], []

    def work() -> None:
        with stop.stop_on_signal(), stop.defer_stop(print):
            found.extend(signal.getsignal(number) for number in SIGNALS)

    work()
    assert not {*found} & {*before}
    assert [signal.getsignal(number) for number in SIGNALS] == before
    found.clear()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_lost_terminal_does_not_prevent_saving(tmp_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    code = """
with stop.stop_on_signal(), stop.defer_stop(print):
    print("ready", flush=True)
    while not stop.requested():
        time.sleep(0.01)
    time.sleep(0.2)
    print("a line to the terminal that is gone", flush=True)
    open(sys.argv[1], "w").write("saved")
    raise stop.Interrupted(stop.requested())
"""
    saved = tmp_path / "saved"
    terminal = dict.fromkeys(("stdout", "stderr", "stdin"), theirs)
    running = process(code, str(saved), **terminal, start_new_session=True)
    os.close(theirs)
    assert os.read(ours, 5) == b"ready"
    os.close(ours)  # the terminal window is closed
    running.send_signal(signal.SIGHUP)
    assert running.wait(timeout=60) == 129
    assert saved.read_text() == "saved"


@pytest.mark.slow
def test_text_preparation_is_stopped_without_a_trace(tmp_path: Path) -> None:
    """SIGTERM while BPE is trained, in one call of minutes."""
    (tmp_path / "text.txt").write_text("a few words of text. " * 1000)
    code = f"""
import runpy
from headscope.data import tokenizer
def slow(texts, *, vocab_size: int, sample_megabytes: float):
    print("ready", flush=True)
    {BUSY["in C"]}
tokenizer.bpe = slow
sys.argv = ["train.py", "data.path=text.txt", "hydra.run.dir=outputs/run"]
runpy.run_path({str(ROOT / "scripts" / "train.py")!r}, run_name="__main__")
"""
    running = process(code, cwd=tmp_path)
    assert running.stdout is not None
    for line in running.stdout:
        if line == "ready\n":
            running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 143
    assert not list(tmp_path.glob("outputs/*"))
    assert not list(tmp_path.glob("data/.*/"))
