"""A resumed run uses the configuration in its checkpoint, with the changes of the command line."""

from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import configuration, content, save
from composing import composed
from omegaconf import OmegaConf

from headscope.cli.texts import quoted
from headscope.cli.train import arguments
from headscope.cli.words import key_of
from headscope.errors import UserError
from headscope.training.resume import newest_checkpoint, resumed_config


def save_run(run, config=None):
    saved, _ = content()
    saved["config"] = config or configuration()
    (run / "checkpoints").mkdir(parents=True)
    save(saved, run / "checkpoints" / "last.safetensors")


@pytest.fixture
def run(tmp_path):
    return tmp_path / "a run, with 'marks' and = signs"


def resumed(run: Path, *words: str):
    given = quoted(arguments([f"resume={run}", *words]))
    task = [word for word in given if not word.startswith("hydra")]
    plain: Any = OmegaConf.to_container(composed(*task), resolve=True)
    keys = [key_of(word) for word in task]
    return resumed_config(plain, newest_checkpoint(run), keys)


def test_a_resumed_run_has_the_configuration_of_its_checkpoint(run):
    own = configuration("optimizer=adamw", "schedule=cosine", "callbacks.attention.text='a b'")
    own["callbacks"]["attention"]["text"] = "a ${name} \\${b} c"
    save_run(run, own)
    config, changes = resumed(run)
    assert config.kept() == own
    assert changes == []


def test_the_command_line_changes_the_configuration(run):
    own = ["optimizer=adamw", "optimizer.lr=0.123", "schedule=cosine"]
    save_run(run, configuration(*own, "trainer.max_steps=7"))
    words = ["optimizer.beta1=0.5", "schedule.final_fraction=0.5"]
    config, changes = resumed(run, "trainer.max_steps=9", *words)
    assert config.kept() == configuration(*own, *words, "trainer.max_steps=9")
    assert changes[:2] == ["trainer.max_steps from 7 to 9", "optimizer.beta1 from 0.9 to 0.5"]
    other, _ = resumed(run, "schedule=linear", "schedule.cooldown=0.25")
    assert other.schedule.cooldown == 0.25


@pytest.mark.parametrize(
    "word", ["model.heads=1", "model/position=none", "data=sotu", "seed=3", "optimizer=adamw"]
)
def test_fixed_keys_cannot_change(run, word):
    save_run(run)
    with pytest.raises(UserError, match="init_from"):
        resumed(run, word)


def test_a_checkpoint_does_not_decide_where_files_are_written(run):
    save_run(run, configuration() | {"store_dir": "../elsewhere"})
    assert resumed(run)[0].store_dir == "data"
    assert resumed(run, "store_dir=mine")[0].store_dir == "mine"
