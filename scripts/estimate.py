"""Prints the memory and time that a training run needs: python scripts/estimate.py."""

from dataclasses import replace
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from headscope.cli import command_line
from headscope.files import json_text


def estimate(composed: DictConfig) -> None:
    """Prints the estimate to standard output as a JSON object."""
    from headscope.cli.initial_model import trained_vocab_size, with_trained_model
    from headscope.config import parse
    from headscope.config.scripts import PlanConfig
    from headscope.config.training import TrainConfig
    from headscope.training.plan import plan

    plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    planned = parse(PlanConfig, plain.pop("estimate"), "estimate")
    config = parse(TrainConfig, plain)
    start = config.init_from
    if start is not None:
        config = with_trained_model(config, list(HydraConfig.get().overrides.task))
        planned = replace(planned, vocab_size=planned.vocab_size or trained_vocab_size(start))
    print(json_text(plan(config, planned), indent=2))


if __name__ == "__main__":
    command_line.run(estimate, "estimate")
