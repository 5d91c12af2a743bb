"""The command estimate: prints the memory and time that a training run needs."""

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from headscope.cli import command_line
from headscope.files import json_text


def main() -> None:
    command_line.run(estimate, "estimate")


def estimate(composed: DictConfig) -> None:
    """Prints the estimate to standard output as a JSON object."""
    from headscope import checkpoint
    from headscope.cli.train import with_trained_model
    from headscope.config import from_hydra
    from headscope.config.scripts import EstimateConfig
    from headscope.data.tokenizer import tokenizer_from_state
    from headscope.training.build import precision_of
    from headscope.training.fit import plan

    given = from_hydra(EstimateConfig, composed)
    planned, start = given.estimate, given.init_from
    config = with_trained_model(given, list(HydraConfig.get().overrides.task))
    if start is not None and planned.vocab_size is None:
        stored = checkpoint.read(checkpoint.find(start, key="init_from"))
        planned.vocab_size = tokenizer_from_state(stored.data["tokenizer"]).vocab_size
    print(json_text(plan(config, planned, precision_of(config.trainer)), indent=2))
