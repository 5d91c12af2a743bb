"""Run a benchmark suite: python scripts/benchmark.py [suite=attention]."""

import sys
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from headscope.cli import command_line
from headscope.cli.main import start_process
from headscope.config.parse import parse, parse_part
from headscope.config.training import TrainConfig


def benchmark(composed: DictConfig) -> None:
    """Run the suite that `suite=` names."""
    from benchmarks.runner import Request, run_suite

    hydra = HydraConfig.get()
    plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    keys = plain.pop("suite")
    words = [word.lstrip("+") for word in hydra.overrides.task]
    request = Request(
        run=parse(TrainConfig, plain),
        words=[word for word in words if not word.startswith("suite")],
        experiment=hydra.runtime.choices["experiment"],
        compose=composed_as,
    )
    run_suite(hydra.runtime.choices["suite"], keys, request, command_line.run_folder(), words)


def composed_as(root: str, words: list[str], key: str | None = None) -> Any:
    """The configuration of a run that conf/<root>.yaml and the overrides `words` compose, or the
    part of it that is the group `key`."""
    plain: Any = OmegaConf.to_container(compose(root, words), resolve=True)
    return parse_part(plain[key], key) if key else parse(TrainConfig, plain)


if __name__ == "__main__":
    start_process()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the folder benchmarks/
    command_line.run(benchmark, "benchmark")
