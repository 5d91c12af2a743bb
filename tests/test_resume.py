"""Going on with a run: its own configuration, ours on top, and nothing of a stranger's."""

from pathlib import Path

import pytest
import torch
from checkpoint_files import SIZES, configuration, content
from composing import composed
from omegaconf import OmegaConf

from headscope.command_line import literal_arguments
from headscope.resume import resume_arguments, resumed_config


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "a run, with 'marks' and = signs"


def save(run: Path, *, config: dict | None = None, overrides: list[str] | None = None) -> None:
    saved, _ = content()
    saved["headscope"]["config"] = config or configuration()
    saved["headscope"]["overrides"] = SIZES if overrides is None else overrides
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    torch.save(saved, run / "checkpoints" / "last.ckpt")


def resumed(run: Path, *words: str):
    typed = [f"resume={run}", *words]
    arguments = resume_arguments(typed, literal_arguments(typed))
    task = [word for word in arguments if not word.startswith("hydra.")]
    return resumed_config(composed(*SIZES, *[word for word in task if word not in SIZES]), task)


def test_a_run_keeps_its_own_configuration(run: Path) -> None:
    own = configuration("optimizer.lr=0.123", "callbacks.attention.text='a \\${b} c'")
    save(run, config=own)
    config, changes = resumed(run)
    assert OmegaConf.to_container(config, resolve=True) == own
    assert changes == []


def test_the_command_line_applies_on_top_and_is_said(run: Path) -> None:
    save(run, config=configuration("optimizer.lr=0.123", "trainer.max_steps=7"))
    config, changes = resumed(run, "trainer.max_steps=9", "optimizer.beta1=0.5")
    assert config.trainer.max_steps == 9
    assert (
        config.optimizer == configuration("optimizer.lr=0.123", "optimizer.beta1=0.5")["optimizer"]
    )
    assert changes == ["trainer.max_steps from 7 to 9", "optimizer.beta1 from 0.9 to 0.5"]


def test_a_run_from_before_a_key_was_goes_on_as_conf_has_it(run: Path) -> None:
    own = configuration("trainer.max_steps=7")
    for key in ("checkpoint_activations", "loss_chunk_tokens"):
        del own["trainer"][key]
    save(run, config=own)
    config, changes = resumed(run)
    assert config.trainer == configuration("trainer.max_steps=7")["trainer"]
    assert changes == []


@pytest.mark.parametrize(
    "word", ["model.heads=1", "model/position=none", "data=sotu", "seed=3", "optimizer=adamw"]
)
def test_what_a_run_is_cannot_be_changed(run: Path, word: str) -> None:
    save(run)
    with pytest.raises(ValueError, match="init_from"):
        resumed(run, word)


@pytest.mark.parametrize(
    "word",
    [
        "hydra.callbacks.bad={_target_: os.mkdir}",
        "+hydra.callbacks.bad={_target_: os.mkdir}",
        "++hydra/launcher=bad",
        "hydra.searchpath=[/tmp]",
        "--config-dir=/tmp",
        "-m",
    ],
)
def test_a_strangers_words_do_not_reach_hydra(run: Path, word: str) -> None:
    save(run, overrides=[*SIZES, word])
    with pytest.raises(ValueError, match="not of headscope"):
        resumed(run)


@pytest.mark.parametrize("group", ["data", "tokenizer", "optimizer", "schedule", "logger", "model"])
def test_a_strangers_configuration_names_no_code(run: Path, group: str, tmp_path: Path) -> None:
    for trap in (
        {"_target_": "os.mkdir", "path": str(tmp_path / "ran")},
        {"x": {"_target_": "os.mkdir"}},
        {"x": [{"_target_": "os.mkdir"}]},
    ):
        config = configuration()
        config[group] = trap
        save(run, config=config)
        with pytest.raises(ValueError, match="no part of headscope"):
            resumed(run)
    config[group] = f"${{oc.create:{{_target_: os.mkdir, path: {tmp_path / 'ran'}}}}}"
    save(run, config=config)
    assert OmegaConf.to_container(resumed(run)[0], resolve=True)[group] == config[group]
    assert not (tmp_path / "ran").exists()
