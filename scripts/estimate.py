"""Prints the memory and time that a training run needs: python scripts/estimate.py."""

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from headscope.cli import command_line
from headscope.files import json_text


def estimate(composed: DictConfig) -> None:
    """Prints the estimate to standard output as a JSON object."""
    from headscope.cli.initial_model import trained_vocab_size, with_trained_model
    from headscope.config import from_hydra
    from headscope.config.scripts import EstimateConfig
    from headscope.training.build import precision_of
    from headscope.training.fit import plan

    given = from_hydra(EstimateConfig, composed)
    planned, start = given.estimate, given.init_from
    config = with_trained_model(given, list(HydraConfig.get().overrides.task))
    if start is not None:
        planned.vocab_size = planned.vocab_size or trained_vocab_size(start)
    print(json_text(plan(config, planned, precision_of(config.trainer)), indent=2))


if __name__ == "__main__":
    command_line.run(estimate, "estimate")
