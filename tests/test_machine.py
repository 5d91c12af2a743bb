"""What the machine has, and that a run says when others use it."""

import subprocess
import sys
import time
from types import SimpleNamespace as Namespace

import pytest
import torch
from rich.console import Console

from headscope import machine
from headscope.training.console import print_busy_machine


@pytest.mark.skipif(machine.core_seconds() is None, reason="needs /proc/stat")
def test_the_cores_that_other_programs_use_are_theirs_and_not_ours(monkeypatch):
    """On a made-up machine: of 20 seconds of two cores, 5 were idle and we used 8."""
    cores = machine.process_cores()
    readings = iter([(50.0, 1000.0, 3.0), (60.0, 1000.0 + 10 * (cores - 2) + 5.0, 11.0)])
    monkeypatch.setattr(machine, "core_seconds", lambda: next(readings))
    assert machine.cores_of_others(machine.core_seconds()) == pytest.approx(0.7)


@pytest.mark.skipif(machine.core_seconds() is None, reason="needs /proc/stat")
def test_a_busy_process_uses_a_core():
    before = machine.core_seconds()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        time.sleep(1)
        found = machine.cores_of_others(before)
        other.kill()
    assert 0.5 < found <= machine.process_cores()


@pytest.mark.parametrize(
    ("device", "processes", "others", "says"),
    [
        ("cpu", 1, 1.0, True),
        ("cpu", 1, 0.2, False),
        ("cpu", 2, 1.0, False),
        ("cuda", 1, 1.0, False),
    ],
)
def test_a_run_on_a_cpu_says_when_it_has_more_threads_than_cores_are_free(
    device, processes, others, says, monkeypatch, capsys
):
    monkeypatch.setattr("headscope.training.console.process_cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    strategy = Namespace(root_device=torch.device(device))
    trainer = Namespace(strategy=strategy, world_size=processes)
    print_busy_machine(Namespace(trainer=trainer, console=Console()), others)  # type: ignore[arg-type]
    assert ("OMP_NUM_THREADS=3" in capsys.readouterr().out) == says
