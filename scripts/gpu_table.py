"""The table at the end of gpu_check.sh: python scripts/gpu_table.py FOLDER.

A row for each finished run and each benchmark in the folder. MFU is the share of the device's
matrix rate, measured here in the run's precision, that the model's own arithmetic takes.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from headscope import checkpoint
from headscope.benchmarks.roofline import matrix_rate, training_flops
from headscope.checkpoint import Checkpoint
from headscope.errors import UserError
from headscope.evaluation import choose_precision

COLUMNS = ("", "loss", "seconds", "tokens/s", "MFU", "peak MiB", "attention kernel")


def rows(folder: Path) -> list[list[str]]:
    """A row for each run in `folder`, then one for each benchmark's figures."""
    runs = sorted(folder.glob("*/summary.json"))
    files = sorted(folder.glob("*.json"))
    return [run_row(file.parent) for file in runs] + [
        row for file in files for row in benchmark_rows(file)
    ]


def run_row(run: Path) -> list[str]:
    summary = json.loads((run / "summary.json").read_text())
    mfu, kernel = "-", "-"
    try:
        device = checkpoint.pick_device("auto" if "peak_memory_mib" in summary else "cpu")
        loaded = checkpoint.load(run / "checkpoints" / "last.ckpt", device=device)
        rate = matrix_rate_in(device, choose_precision("auto", loaded))
        mfu = f"{training_flops(loaded.model) * summary['tokens_per_second'] / rate:.1%}"
        kernel = attention_kernel(loaded)
    except (UserError, RuntimeError) as error:
        print(f"{run.name}: {error}", file=sys.stderr)
    return [
        run.name,
        f"{summary['val_loss']:.4f}",
        f"{summary['train_seconds']:.1f}",
        f"{summary['tokens_per_second']:,.0f}",
        mfu,
        f"{summary.get('peak_memory_mib', '-')}",
        kernel,
    ]


@cache
def matrix_rate_in(device: torch.device, precision: str) -> float:
    with torch.autocast(device.type, torch.bfloat16, enabled=precision != "fp32"):
        return matrix_rate(device)


def attention_kernel(loaded: Checkpoint) -> str:
    """The kernels of scaled_dot_product_attention that a forward pass of training calls."""
    model, plan = loaded.model.train(), loaded.config.trainer
    precision = choose_precision("auto", loaded)
    model = model.bfloat16() if precision == "bf16" else model
    tokens = torch.zeros(plan.batch_size, model.block_size, dtype=torch.long, device=model.device)
    autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
    with autocast, torch.profiler.profile() as profile:
        model.hidden(tokens)
    prefix = "aten::_scaled_dot_product_"
    names = {event.key for event in profile.key_averages() if event.key.startswith(prefix)}
    return ", ".join(sorted(name.removeprefix(prefix) for name in names)) or "-"


def benchmark_rows(file: Path) -> list[list[str]]:
    """Of suite=training, memory and sampling: what each side needs."""
    figures: dict[str, Any] = json.loads(file.read_text())
    suite = figures.get("suite")
    if suite == "training":
        return [
            row(f"{file.stem}: {side}", rate=rate, mfu=figures["mfu"][side])
            for side, rate in figures["tokens_per_second"].items()
        ]
    if suite == "sampling":
        return [
            row(f"{file.stem}: {way['way']}", rate=way["tokens_per_second"]["median"])
            for size in ("small", "large")
            for way in figures[size]["ways"]
        ]
    if suite == "memory":
        return [
            row(f"{file.stem}: {side}", peak=found["peak_mib"])
            for side, found in figures["sides"].items()
        ]
    return []


def row(
    name: str, *, rate: float | None = None, mfu: float | None = None, peak: float | None = None
) -> list[str]:
    speed, share, memory = (
        "-" if value is None else format(value, form)
        for value, form in ((rate, ",.0f"), (mfu, ".1%"), (peak, ".0f"))
    )
    return [name, "-", "-", speed, share, memory, "-"]


if __name__ == "__main__":
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for cells in rows(Path(sys.argv[1])):
        table.add_row(*cells)
    Console(width=140 if not sys.stdout.isatty() else None).print(table)
