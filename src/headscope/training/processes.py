"""The processes that train one model together: one for each device.

There are three ways to start them. `python scripts/train.py trainer.devices=2` is the first
process, and Lightning starts the others with the same command. `torchrun` or `srun` start all of
them.

The first process (rank 0) chooses the run folder, prints, and writes the files of the run.
"""

import ctypes
import logging
import math
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope import stop
from headscope.config.training import TrainerConfig
from headscope.data.machine import process_cores
from headscope.errors import UserError, first_line, short
from headscope.training.run_folder import is_run, remove_leftovers

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from torch.distributed import ProcessGroup

FIRST_PROCESS = "HEADSCOPE_FIRST_PROCESS"
"""An environment variable for the processes that Lightning starts: the process ID of the first
process."""

REPORT_SECONDS = 5.0
"""Time that a process other than the first waits before it reports an error. If the first process
has the same error, all processes end within this time, so that the error is printed once."""

PROCESSES_ON_ANY_CPU = 4
"""Up to this number, processes may share cores, so that a run with several devices can be tried on
a small machine."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
PR_SET_PDEATHSIG = 1  # linux/prctl.h

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK", "GROUP_RANK")
"""Environment variables from which Lightning takes the rank of this process."""

TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
SRUN = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NNODES"}
"""Environment variables that `torchrun` and `srun` set for each process."""

NUMBERS = {*RANKS, *TORCHRUN, *SRUN, "SLURM_JOB_ID", "NODE_RANK", "MASTER_PORT"}
"""Environment variables that must be numbers, because Lightning or this module reads them."""

CONNECTION_ERRORS = ("gloo", "Connection closed", "Connection reset", "NCCL", "TCPStore")
"""Parts of the messages with which torch.distributed reports that another process has ended."""


def starter() -> str | None:
    """What started this process as one of several: `torchrun`, `srun`, `lightning`, or None."""
    if {"TORCHELASTIC_RUN_ID", *TORCHRUN} <= os.environ.keys():
        return "torchrun"
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if os.environ.keys() >= SRUN and not interactive:
        return "srun"
    return "lightning" if FIRST_PROCESS in os.environ else None


def rank() -> int:
    """The number of this process among all processes, according to the environment. The first
    process has the number 0. Works before the processes are connected."""
    names = {"torchrun": ("RANK",), "srun": ("SLURM_PROCID",)}
    return max(
        number(name) or 0 for name in names.get(starter() or "", ("LOCAL_RANK", "NODE_RANK"))
    )


def number(key: str) -> int | None:
    """The whole number in an environment variable. None if it is missing or something else."""
    value = os.environ.get(key, "")
    return int(value) if re.fullmatch("[0-9]{1,18}", value) else None


def check_environment() -> None:
    """Raises UserError if an environment variable about the processes of a run is no number, or
    gives this process a rank outside the run."""
    advice = "unset it, or start all processes with torchrun or srun"
    for key in sorted(NUMBERS & os.environ.keys()):
        value, port = number(key), key == "MASTER_PORT"
        if value is None or (port and value > 65535):
            kind = "a port below 65536" if port else "a whole number"
            raise UserError(f"{key}={short(os.environ[key])} must be {kind}: {advice}")
    program = starter()
    count = math.prod(started_processes() or (1, 1))
    # In a job of SLURM, torchrun may start the processes of several runs.
    for key in () if program == "lightning" else RANKS[: 2 if program == "torchrun" else None]:
        if (number(key) or 0) >= count:
            below = f"must be below {count}, the number of processes"
            raise UserError(f"{key}={number(key)} {below}: {advice}")


@dataclass(frozen=True)
class Processes:
    """The connected processes of a run, as one of them sees them.

    `count` processes run on `nodes` machines. `devices` is the value of the Trainer's argument
    `devices`. Without `fabric`, there is only this process.
    """

    rank: int = 0
    count: int = 1
    nodes: int = 1
    devices: int | list[int] = 1
    fabric: "Fabric | None" = None
    cpu_group: "ProcessGroup | None" = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def from_first(self, value: Any) -> Any:
        """The `value` of the first process, in every process."""
        return self.fabric.broadcast(value) if self.fabric else value

    def first_goes_first(self) -> AbstractContextManager[None]:
        """The other processes enter the `with` block when the first process has left it."""
        return self.fabric.rank_zero_first(local=False) if self.fabric else nullcontext()

    def largest(self, *numbers: int) -> tuple[int, ...]:
        """For each number, the largest value in all processes. Every process must call this at the
        same point, and gets the same result."""
        if self.fabric is None:
            return numbers
        import torch

        tensor = torch.tensor(numbers)  # on the CPU, so that this does not wait for a GPU
        torch.distributed.all_reduce(
            tensor, op=torch.distributed.ReduceOp.MAX, group=self.cpu_group
        )
        return tuple(tensor.tolist())


def connect(settings: TrainerConfig, *, alone: bool) -> Processes:
    """Starts the other processes, unless `torchrun` or `srun` has started them, and connects all
    processes. A run of a sweep or in Python must be `alone`.

    Raises UserError if the processes cannot be started with these settings, or cannot connect.
    """
    import torch
    from lightning.fabric import Fabric
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    check_devices(settings)
    devices, nodes = started_processes() or (settings.devices, settings.num_nodes)
    devices = 1 if devices == "auto" else devices
    count = nodes * number_of(devices)
    if starter() is None and (node := number("NODE_RANK") or 0) >= nodes:
        advice = f"unset it, or increase trainer.num_nodes={nodes}"
        raise UserError(f"NODE_RANK={node} must be below {nodes}, the number of machines: {advice}")
    if count == 1:
        return Processes(devices=devices)
    silence_libraries()
    if starter() is None:
        check_can_start(settings, alone=alone)
        os.environ[FIRST_PROCESS] = str(os.getpid())
        os.environ.pop("LOCAL_RANK", None)  # with it, Lightning would start no processes
    try:
        fabric = Fabric(
            accelerator=settings.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy="ddp",
            plugins=cluster_plugins(),
        )
    except MisconfigurationException as error:
        raise UserError(
            f"trainer.accelerator={settings.accelerator}, trainer.devices={settings.devices}: "
            f"{first_line(error)}"
        ) from error
    waiting = threading.Timer(5, say_that_it_waits, (count, nodes))
    if not number("LOCAL_RANK") and not number("SLURM_LOCALID"):  # once on each machine
        waiting.start()
    try:
        stop.block_signals(True)  # new processes receive them when they can
        fabric.launch()
    except torch.distributed.DistError as error:
        keys = ("MASTER_ADDR", "MASTER_PORT")
        address = ", ".join(f"{key}={os.environ.get(key)}" for key in keys)
        raise UserError(
            f"the processes of this run cannot connect at {address}: {first_line(error)}"
        ) from error
    finally:
        waiting.cancel()
        stop.block_signals(False)
    return Processes(
        rank=fabric.global_rank,
        count=fabric.world_size,
        nodes=nodes,
        devices=devices,
        fabric=fabric,
        cpu_group=torch.distributed.new_group(backend="gloo"),
    )


def only_this(settings: TrainerConfig) -> Processes:
    """This process alone. Raises UserError if the settings ask for more than one device."""
    check_environment()
    check_devices(settings)
    devices = 1 if settings.devices == "auto" else settings.devices
    if settings.num_nodes > 1 or number_of(devices) > 1:
        raise UserError(
            f"trainer.devices={settings.devices} trainer.num_nodes={settings.num_nodes}: only "
            "the command train uses several devices"
        )
    return Processes(devices=devices)


def cluster_plugins() -> list[Any]:
    """Plugins for Lightning's Trainer: what has started the processes. Under SLURM, Lightning must
    not submit the job again by itself, because headscope handles the signals."""
    from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment

    if starter() == "srun":
        return [SLURMEnvironment(auto_requeue=False)]
    return [] if starter() == "torchrun" else [LightningEnvironment()]


def started_processes() -> tuple[int, int] | None:
    """The number of processes per machine and the number of machines, if `torchrun` or `srun` has
    started the processes."""
    torchrun = starter() == "torchrun"
    if not torchrun and starter() != "srun":
        return None
    keys = ("WORLD_SIZE", "LOCAL_WORLD_SIZE") if torchrun else ("SLURM_NTASKS", "SLURM_NNODES")
    count, part = (number(key) or 0 for key in keys)
    if not part or count % part:
        multiple = f"{keys[0]}={count} must be a multiple of {keys[1]}={part}"
        raise UserError(f"{multiple}: start the same number of processes on each machine")
    if torchrun:
        return part, count // part
    # srun sets this variable only with --ntasks-per-node. Lightning needs it.
    os.environ["SLURM_NTASKS_PER_NODE"] = str(count // part)
    return count // part, part


def number_of(devices: int | list[int]) -> int:
    return devices if isinstance(devices, int) else len(devices)


def check_devices(settings: TrainerConfig) -> None:
    """Raises UserError if this machine does not have the devices that `trainer.devices` selects."""
    devices = settings.devices
    if devices == "auto":
        return
    import torch

    gpus = torch.cuda.device_count() if settings.accelerator != "cpu" else 0
    if isinstance(devices, list):
        if not devices or len(set(devices)) < len(devices) or max(devices) >= gpus:
            has = f"has the GPUs {list(range(gpus))}" if gpus else "has no GPU that can be used"
            raise UserError(
                f"trainer.devices={short(devices)}: this machine {has}; name each GPU once"
            )
        return
    cores = process_cores()
    if gpus and devices > gpus:
        raise UserError(f"trainer.devices={devices}: this machine has {gpus} GPUs")
    if not gpus and devices > max(cores, PROCESSES_ON_ANY_CPU):
        raise UserError(
            f"trainer.devices={devices}: this machine has {cores} cores and no GPU that can be "
            f"used, and each device of a CPU is a process: give a number up to {cores}"
        )


def check_sweep() -> None:
    """Raises UserError if `torchrun` or `srun` has started several processes of this sweep. If a
    run failed in only one of them, this process would go on to the next run, and the processes
    would train different runs together."""
    count = math.prod(started_processes() or (1, 1))
    if count > 1:
        raise UserError(
            f"-m: {starter()} has started {count} processes, but a sweep is one process, and its "
            "runs train on one device each: start every run with its own command"
        )


def check_can_start(settings: TrainerConfig, *, alone: bool) -> None:
    """Raises UserError if this process cannot start the other processes of the run."""
    if alone:
        raise UserError(
            f"trainer.devices={settings.devices}: the runs of a sweep train on one device each, "
            "and so does headscope.train in Python"
        )
    variables = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    if settings.num_nodes > 1 and not os.environ.keys() >= {*variables}:
        raise UserError(
            f"trainer.num_nodes={settings.num_nodes}: start the run with srun or torchrun, or on "
            f"every machine with the environment variables {', '.join(variables)}"
        )


def say_that_it_waits(count: int, nodes: int) -> None:
    """Prints that this process waits for the `count` processes on `nodes` machines."""
    each = f" ({count // nodes} on each of {nodes} machines)" if nodes > 1 else ""
    address = ":".join(os.environ.get(key, "?") for key in ("MASTER_ADDR", "MASTER_PORT"))
    print(f"waiting for all {count} processes of this run{each} at {address}", file=sys.stderr)


def end_with_first_process() -> None:
    """If Lightning has started this process, ends it as soon as the first process has ended. Under
    Linux, the system does this, also if this process does not run because of SIGSTOP."""
    first = int(os.environ[FIRST_PROCESS])
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == first:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def first_reports() -> Iterator[None]:
    """If the `with` block raises an error in a process that is not the first, the error is raised
    `REPORT_SECONDS` later."""
    try:
        yield
    except Exception:
        if rank() > 0:
            time.sleep(REPORT_SECONDS)
        raise


@contextmanager
def report_lost_process(folder: Path, again: str) -> Iterator[None]:
    """Inside the `with` block, an error of torch.distributed because another process of the run in
    `folder` has ended becomes a UserError, which says with `again` how to continue. It becomes
    `Interrupted` if this process has received a stop signal, which probably ended the other
    process."""
    try:
        yield
    except RuntimeError as error:
        if not any(part in str(error) for part in CONNECTION_ERRORS):
            raise
        if rank() == 0:
            remove_leftovers(folder)
        if number := stop.requested():
            raise stop.Interrupted(number) from error
        more = f"; to continue: {again}" if is_run(folder) else ""
        raise UserError(
            f"another process of this run has ended unexpectedly, so the run ends{more}"
        ) from error


# --- settings of one process ---


def prepare_process(*, keep_freed: bool = True) -> None:
    """Lets glibc keep freed memory in this process. Does nothing without glibc.

    By default, glibc returns large blocks of freed memory to the operating system and requests new
    blocks later. This costs about a thousand page faults per training step on a CPU
    (docs/performance.md). With `keep_freed`, glibc keeps all blocks below 32 MiB and up to 256 MiB
    in a row. Without `keep_freed`, it returns every block of at least 128 KiB at once, so that a
    process has little more memory than its tensors need.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mmap_threshold = 32 << 20 if keep_freed else 128 << 10  # 32 MiB: the largest value allowed
        mallopt(M_MMAP_THRESHOLD, mmap_threshold)
        mallopt(M_TRIM_THRESHOLD, 8 * mmap_threshold)


def silence_libraries() -> None:
    """Hides messages of Lightning that do not help the user."""
    # Hide messages about the hardware, the processes, the end of training, and other products.
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings(
        # Lightning 2.6 itself causes this warning with torch 2.13. It is harmless.
        "ignore",
        message="`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    )
    # torch 2.13 has a new name for this argument, which older versions do not know.
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
    # Lightning's advice to use srun is also shown on machines where one process is what is wanted.
    warnings.filterwarnings("ignore", message="The `srun` command is available")
    # `LanguageModel` sums the validation losses of all processes itself.
    warnings.filterwarnings("ignore", message="It is recommended to use `self.log\\(")
    # Hide the advice to use more workers. A single process already produces batches faster than any
    # GPU trains on them.
    warnings.filterwarnings("ignore", message="The 'train_dataloader' does not have many workers")
