"""Measure what the docs claim: python scripts/benchmark.py experiment=nanogpt_cpu."""

import json
import sys
from pathlib import Path

from omegaconf import DictConfig

from headscope import command_line


def benchmark(config: DictConfig) -> None:
    """Run the suite; print a line a round and the figures, which also go to `output`."""
    from rich.console import Console

    from headscope.benchmarks.training import compare_steps
    from headscope.callbacks.saving import Interrupted

    if config.suite != "training":
        raise ValueError(f"suite={config.suite}: there is no such suite, only training")
    for key in ("rounds", "steps", "warmup_steps"):
        if config[key] < 1:
            raise ValueError(f"{key}={config[key]} must be at least 1")
    try:
        figures = compare_steps(
            config,
            rounds=config.rounds,
            steps=config.steps,
            warmup_steps=config.warmup_steps,
            console=Console(stderr=True, soft_wrap=True),
        )
    except Interrupted:
        sys.exit(130)
    text = json.dumps({"suite": config.suite, **figures}, indent=2)
    Path(config.output).write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    command_line.run(benchmark, "benchmark")
