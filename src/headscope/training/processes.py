"""The processes that train one model together: one for each device.

With `trainer.devices=2`, Lightning starts the second with the same command. `torchrun` or `srun`
start all of them. The first (rank 0) chooses the run folder, prints, and writes the files.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any

from headscope.config.training import TrainerConfig
from headscope.errors import UserError, first_line
from headscope.terminal import note

FIRST_PROCESS = "HEADSCOPE_FIRST_PROCESS"  # for the processes that Lightning starts

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK", "GROUP_RANK")
"""Environment variables from which Lightning takes the rank of this process."""

CONNECTION_ERRORS = ("gloo", "Connection closed", "Connection reset", "NCCL", "TCPStore")
"""Parts of the messages with which torch.distributed reports that another process has ended."""


def starter() -> str | None:
    """What started this process as one of several: `torchrun`, `srun`, `lightning`, or None."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if "SLURM_STEP_ID" in os.environ and not interactive:  # a batch script without srun lacks it
        return "srun"
    return "lightning" if FIRST_PROCESS in os.environ else None


def rank() -> int:
    """The number of this process, from 0, also before the processes are connected."""
    names = {"torchrun": ("RANK",), "srun": ("SLURM_PROCID",)}
    return max(map(number, names.get(starter() or "", ("LOCAL_RANK", "NODE_RANK"))))


def number(key: str) -> int:
    """The whole number in an environment variable, or 0."""
    value = os.environ.get(key, "")
    return int(value) if value.isdecimal() else 0


def started() -> tuple[int, int] | None:
    """The processes per machine and the machines, if `torchrun` or `srun` started the processes."""
    if starter() == "torchrun":
        part = max(1, number("LOCAL_WORLD_SIZE"))
        return part, number("WORLD_SIZE") // part
    if starter() == "srun":
        nodes = max(1, number("SLURM_NNODES"))
        part = number("SLURM_NTASKS") // nodes
        os.environ["SLURM_NTASKS_PER_NODE"] = str(part)  # for Lightning: srun may not set it
        return part, nodes
    return None


def layout(settings: TrainerConfig) -> tuple[int | list[int], int, int]:
    """The devices of each machine, as an argument of the Trainer, the number of machines, and the
    number of processes."""
    devices, nodes = started() or (settings.devices, settings.num_nodes)
    devices = 1 if devices == "auto" else devices
    return devices, nodes, nodes * (devices if isinstance(devices, int) else len(devices))


def connect(settings: TrainerConfig, folder: Path, *, alone: bool) -> tuple[Any, Path]:
    """Starts the other processes, unless `torchrun` or `srun` has started them, and connects all.
    Returns the Fabric of Lightning that connects them, or None for a single process, and the run
    folder of the first one, which is `folder` there. Raises UserError if that is not possible, or
    if a run must be `alone` but has several."""
    from lightning.fabric import Fabric
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    devices, nodes, count = layout(settings)
    words = f"trainer.devices={settings.devices} trainer.num_nodes={settings.num_nodes}"
    # In a job of SLURM, torchrun may start the processes of several runs.
    for key in RANKS[: 2 if starter() == "torchrun" else None]:
        if key in os.environ and number(key) >= count:
            wrong = f"{key}={number(key)} must be below {count}, the number of processes"
            raise UserError(f"{wrong}: unset it, or start all of them with torchrun or srun")
    if count == 1:
        if starter() is None and number("SLURM_NTASKS") > 1:
            tasks = f"SLURM_NTASKS={number('SLURM_NTASKS')}"
            note(f"{tasks}, but srun has not started this process, so it trains alone")
        return None, folder
    if alone:
        raise UserError(f"{words}: runs of a sweep and in Python train on one device each")
    if starter() is None:
        os.environ[FIRST_PROCESS] = str(os.getpid())
        os.environ.pop("LOCAL_RANK", None)  # with it, Lightning would start no processes
    options: Any = {"accelerator": settings.accelerator, "devices": devices, "num_nodes": nodes}
    try:
        fabric = Fabric(strategy="ddp", plugins=cluster_plugins(), **options)
        fabric.launch()
    except (MisconfigurationException, ValueError, TypeError, RuntimeError) as error:
        given = f"{words} trainer.accelerator={settings.accelerator}"
        raise UserError(f"{given}: {first_line(error)}") from error
    return fabric, fabric.broadcast(folder)


def cluster_plugins() -> list[Any]:
    """What has started the processes, for Lightning. Under SLURM, headscope handles the signals."""
    from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment

    if starter() == "srun":
        return [SLURMEnvironment(auto_requeue=False)]
    return [] if starter() == "torchrun" else [LightningEnvironment()]


def end_with_first_process() -> None:
    """If Lightning has started this process, ends it when the first process has ended."""
    first = number(FIRST_PROCESS)

    def watch() -> None:
        while os.getppid() == first:
            time.sleep(0.2)
        os._exit(1)

    if starter() == "lightning":
        threading.Thread(target=watch, daemon=True).start()


def lost_connection(error: Exception) -> bool:
    """Whether torch.distributed raised `error` because another process has ended."""
    return isinstance(error, RuntimeError) and any(each in str(error) for each in CONNECTION_ERRORS)
