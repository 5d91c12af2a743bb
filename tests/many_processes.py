"""Starts scripts/train.py as several processes, in each of the three ways."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from running import ROOT

SCRIPT = str(ROOT / "scripts" / "train.py")
SECONDS = 120
"""No start and no end of a run takes this long. A run that hangs fails its test."""

TINY = [
    "tokenizer=byte",
    "model.block_size=16",
    "model.embed_dim=16",
    "model.layers=2",
    "model.heads=2",
    "model.dropout=0",
    "trainer.batch_size=8",
    "trainer.log_every_steps=1",
    "callbacks=plain",
]


def command(way: str, count: int) -> list[str]:
    """The command that starts `count` processes: by Lightning or by torchrun."""
    if way == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*torchrun, f"--nproc_per_node={count}", SCRIPT]
    return [sys.executable, SCRIPT, f"trainer.devices={count}"]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def slurm(rank: int, count: int, port: int) -> dict[str, str]:
    """The variables that srun sets for a task of a job on one machine."""
    return {
        "SLURM_JOB_ID": str(port),
        "SLURM_JOB_NAME": "gpt",
        "SLURM_NTASKS": str(count),
        "SLURM_NNODES": "1",
        "SLURM_NODELIST": "localhost",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "MASTER_PORT": str(port),
    }


def start(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"} | environment,
        start_new_session=True,  # Ctrl-C reaches all of them, and not the tests
    )


@dataclass
class Ended:
    """How a run of several processes ended, and what its processes printed."""

    code: int
    out: str
    err: str


def end(*running: subprocess.Popen[str]) -> Ended:
    """Waits for the first process, and for all others."""
    try:
        printed = [each.communicate(timeout=SECONDS) for each in running]
    finally:
        for each in running:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
    out, err = ("".join(parts) for parts in zip(*printed, strict=True))
    return Ended(running[0].returncode, out, err)


def train(way: str, count: int, *words: str) -> Ended:
    """Trains with `count` processes, and waits until all of them have ended."""
    if way == "srun":
        port = free_port()
        tasks = [
            start([sys.executable, SCRIPT, *words], **slurm(rank, count, port))
            for rank in range(count)
        ]
        return end(*tasks)
    return end(start([*command(way, count), *words]))


def wait_for_steps(running: subprocess.Popen[str], steps: int) -> list[int]:
    """Waits until the run has printed `steps` steps. Returns the processes that it has started."""
    assert running.stdout is not None
    while steps:
        line = running.stdout.readline()
        assert line, running.stderr and running.stderr.read()
        steps -= line.startswith("step ")
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    return [int(number) for number in children.read_text().split()]


def wait_for_end(processes: list[int]) -> None:
    """Waits until none of the processes runs any more."""
    deadline = time.monotonic() + 10
    while any(runs(process) for process in processes):
        assert time.monotonic() < deadline, "a process is still running"
        time.sleep(0.1)


def runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
