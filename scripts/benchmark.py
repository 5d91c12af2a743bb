"""Run a benchmark suite: python scripts/benchmark.py [suite=attention]."""

from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from headscope.cli import command_line
from headscope.config import SCHEMAS, from_hydra, parse
from headscope.config.training import TrainConfig
from headscope.stop import stop_on_signal


def benchmark(composed: DictConfig) -> None:
    """Run the suite that `suite=` names."""
    hydra = HydraConfig.get()
    name = hydra.runtime.choices["suite"]
    plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    suite: Any = parse(SCHEMAS["suite"][name], plain.pop("suite"), "suite")
    output = Path(plain.pop("output"))
    run = parse(TrainConfig, plain)

    from headscope.benchmarks.runner import Request, run_suite

    request = Request(
        run=run,
        suite=suite,
        words=list(hydra.overrides.task),
        experiment=hydra.runtime.choices["experiment"],
        compose=composed_as,
    )
    run_suite(name, request, output)


def composed_as(schema: type, root: str, words: list[str], key: str | None = None) -> Any:
    """Composes conf/<root>.yaml with the overrides `words`, as an instance of `schema`. If `key` is
    given, only the part of the configuration under this key is converted and returned."""
    found = compose(root, words)
    return from_hydra(schema, found[key] if key else found)


if __name__ == "__main__":
    with stop_on_signal(until_end=True):
        command_line.run(benchmark, "benchmark")
