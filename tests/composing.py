"""Configurations as the scripts compose them."""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from headscope.cli.compare import CompareConfig
from headscope.cli.conf import CONF
from headscope.cli.main import COMMANDS
from headscope.config.parse import parse
from headscope.config.training import TrainConfig

CONFIGS = {"train": TrainConfig, "compare": CompareConfig}
SCRIPTS: dict[str, Any] = {
    name: CONFIGS.get(name) or getattr(import_module(f"headscope.cli.{name}"), name)
    for name in COMMANDS
}
"""What the keys of each script are the arguments of."""

CHOICES = sorted(
    (file.parent.relative_to(CONF).as_posix(), file.stem)
    for file in CONF.glob("*/**/*.yaml")
    if not file.is_relative_to(CONF / "hydra")
)
"""Every group and option."""

ROOT_OF = {"compare": "compare", "suite": "benchmark", "thresholds": "analyze"}
"""The other groups are train.yaml's."""


def training_config(*overrides: str) -> TrainConfig:
    """What scripts/train.py builds, given these words; a new one at each call."""
    return parse(TrainConfig, composed(*overrides))


@cache
def composed(*overrides: str, root: str = "train", conf: Path = CONF) -> DictConfig:
    """What scripts/<root>.py runs with, given these words; shared, so copied to be changed."""
    # A comparison is named after Hydra's choice, which is only known where Hydra runs.
    named = ["name=ours"] if root == "compare" else []
    with initialize_config_dir(str(conf), version_base="1.3"):
        return compose(root, [*named, *overrides])
