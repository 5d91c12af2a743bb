"""Prints the table at the end of gpu_check.sh: python scripts/gpu_table.py FOLDER.

The table has one row for each finished run in FOLDER, and one row for each result of a benchmark.
MFU is model FLOPs utilization (PaLM 2022): the FLOPs per second of training, divided by the FLOPs
per second of a large matrix product on the same device and in the same precision.
"""

import json
import sys
from functools import cache
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from headscope import trained
from headscope.errors import UserError
from headscope.nn.precision import tf32
from headscope.trained import TrainedModel, checkpoint
from headscope.trained.evaluation import choose_precision

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the folder benchmarks/

from benchmarks.training import matrix_rate, training_flops

Figure = float | dict[str, float] | None
COLUMNS = ("", "loss", "seconds", "tokens/s", "MFU", "peak MiB", "attention kernel")


def rows(folder: Path) -> list[list[str]]:
    """The rows of all runs in `folder`, and then the rows of all benchmarks."""
    runs = sorted(folder.glob("*/summary.json"))
    files = sorted(folder.glob("*/benchmark.json"))
    return [run_row(file.parent) for file in runs] + [
        row for file in files for row in benchmark_rows(file)
    ]


def run_row(run: Path) -> list[str]:
    summary = json.loads((run / "summary.json").read_text())
    peak = summary.get("peak_memory_mib")
    mfu, kernel = None, "-"
    try:
        device = checkpoint.pick_device("cpu" if peak is None else "cuda")
        loaded = trained.load(run / "checkpoints" / "last.safetensors", device=device)
        rate = matrix_rate_in(device, choose_precision("auto", loaded))
        mfu = training_flops(loaded.model) * summary["tokens_per_second"] / rate
        kernel = attention_kernel(loaded)
    except (UserError, RuntimeError) as error:
        print(f"{run.name}: {error}", file=sys.stderr)
    seconds, speed = summary["train_seconds"], summary["tokens_per_second"]
    return row(run.name, summary["val_loss"], seconds, speed, mfu, peak, kernel)


@cache
def matrix_rate_in(device: torch.device, precision: str) -> float:
    """The FLOPs per second of a large matrix product, in TF32 or bf16 if training uses them."""
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision != "fp32")
    with tf32(device), autocast:
        return matrix_rate(device)


def attention_kernel(loaded: TrainedModel) -> str:
    """The scaled_dot_product_attention kernels that are called in a forward pass of training."""
    model, precision = loaded.model.train(), choose_precision("auto", loaded)
    model = model.bfloat16() if precision == "bf16" else model
    tokens = torch.zeros(1, model.block_size, dtype=torch.long, device=model.device)
    autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
    with autocast, profile(activities=[ProfilerActivity.CPU]) as profiled:
        model.hidden(tokens)
    prefix = "aten::_scaled_dot_product_"
    names = {event.key for event in profiled.key_averages() if event.key.startswith(prefix)}
    return ", ".join(sorted(name.removeprefix(prefix) for name in names)) or "-"


def benchmark_rows(file: Path) -> list[list[str]]:
    """One row of the table for each result in the JSON file of a benchmark."""
    return [
        row(
            f"{file.parent.name}: {side['side']}",
            speed=side.get("tokens_per_second"),
            mfu=side.get("mfu"),
            peak=side.get("peak_mib"),
        )
        for group in json.loads(file.read_text())["groups"]
        for side in group["rows"]
    ]


def row(
    name: str,
    loss: Figure = None,
    seconds: Figure = None,
    speed: Figure = None,
    mfu: Figure = None,
    peak: Figure = None,
    kernel: str = "-",
) -> list[str]:
    """The cells of one row of the table. A number with a median and a range is shown as its
    median."""
    figures = ((loss, ".4f"), (seconds, ".1f"), (speed, ",.0f"), (mfu, ".1%"), (peak, ",.0f"))
    cells = []
    for figure, form in figures:
        value = figure["median"] if isinstance(figure, dict) else figure
        cells.append("-" if value is None else format(value, form))
    return [name, *cells, kernel]


def print_table(folder: Path) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for cells in rows(folder):
        table.add_row(*cells)
    Console(width=160, soft_wrap=True).print(table)


if __name__ == "__main__":
    print_table(Path(sys.argv[1]))
