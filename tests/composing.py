"""Configurations as the scripts compose them."""

from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from headscope.cli.conf import CONF, prepare_hydra
from headscope.config.parse import from_hydra
from headscope.config.training import TrainConfig


def training_config(*overrides: str) -> TrainConfig:
    """What scripts/train.py builds, given these words; a new one at each call."""
    return from_hydra(TrainConfig, composed(*overrides))


@cache
def composed(*overrides: str, root: str = "train", conf: Path = CONF) -> DictConfig:
    """What scripts/<root>.py runs with, given these words; shared, so copied to be changed."""
    prepare_hydra()
    # A comparison is named after Hydra's choice, which is only known where Hydra runs.
    named = ["name=ours"] if root == "compare" else []
    with initialize_config_dir(str(conf), version_base="1.3"):
        return compose(root, [*named, *overrides])
