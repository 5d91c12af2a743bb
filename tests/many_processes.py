"""Starts scripts/train.py as several processes, in each of the three ways."""

import os
import signal
import socket
import subprocess
import sys

import psutil
from running import ROOT, Said, until

SCRIPT = str(ROOT / "scripts" / "train.py")
SECONDS = 120
"""No start and no end of a run takes this long. A run that hangs fails its test."""

TINY = [
    *("tokenizer=byte", "model.block_size=16", "model.embed_dim=16", "model.layers=2"),
    *("model.heads=2", "model.dropout=0", "trainer.batch_size=8", "trainer.log_every_steps=1"),
    "callbacks=plain",
]


def command(way: str, count: int) -> list[str]:
    """The command that starts `count` processes: by Lightning or by torchrun."""
    if way == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*torchrun, f"--nproc_per_node={count}", SCRIPT]
    return [sys.executable, SCRIPT, f"trainer.devices={count}"]


def slurm(count: int) -> list[dict[str, str]]:
    """The variables that srun sets for each task of a job on one machine."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    job = {"SLURM_JOB_ID": port, "SLURM_JOB_NAME": "gpt", "MASTER_PORT": port}
    job |= {"SLURM_NTASKS": str(count), "SLURM_NNODES": "1"}
    job |= {"SLURM_NODELIST": "localhost", "SLURM_NODEID": "0", "SLURM_STEP_ID": "0"}
    return [job | {"SLURM_PROCID": str(n), "SLURM_LOCALID": str(n)} for n in range(count)]


def start(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"} | environment,
        start_new_session=True,  # Ctrl-C reaches all of them, and not the tests
    )


def end(*running: subprocess.Popen[str]) -> Said:
    """Waits for all processes. Returns the exit status of the first, and what all printed."""
    try:
        printed = [each.communicate(timeout=SECONDS) for each in running]
    finally:
        for each in running:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
    return Said(running[0].returncode, *map("".join, zip(*printed, strict=True)))


def train(way: str, count: int, *words: str) -> Said:
    """Trains with `count` processes, and waits until all of them have ended."""
    if way == "srun":
        tasks = slurm(count)
        return end(*(start([sys.executable, SCRIPT, *words], **task) for task in tasks))
    return end(start([*command(way, count), *words]))


def wait_for_steps(running: subprocess.Popen[str], steps: int) -> list[psutil.Process]:
    """Waits until the run has printed `steps` steps. Returns the processes that it has started."""
    assert running.stdout is not None
    while steps:
        line = running.stdout.readline()
        assert line, running.stderr and running.stderr.read()
        steps -= line.startswith("step ")
    return psutil.Process(running.pid).children()


def wait_for_end(processes: list[psutil.Process]) -> None:
    """Waits until none of the processes runs any more."""
    until(lambda: not any(map(runs, processes)), "the end of all processes", 10)


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
