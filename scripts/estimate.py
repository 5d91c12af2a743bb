"""Prints the memory and time that a training run needs: python scripts/estimate.py."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from headscope.cli import command_line
from headscope.files import json_text


def estimate(composed: DictConfig) -> None:
    """Prints the estimate to standard output as a JSON object."""
    from headscope.config import parse
    from headscope.config.scripts import PlanConfig
    from headscope.config.training import TrainConfig
    from headscope.training.plan import plan

    plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    planned = parse(PlanConfig, plain.pop("estimate"), "estimate")
    print(json_text(plan(parse(TrainConfig, plain), planned), indent=2))


if __name__ == "__main__":
    command_line.run(estimate, "estimate")
