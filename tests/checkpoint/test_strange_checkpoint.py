"""The law of a stranger's checkpoint: it is refused, and nothing of it has run."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from checkpoint_files import configuration, content

from headscope import checkpoint
from headscope.config import parse
from headscope.config.training import TrainConfig
from headscope.errors import UserError


def refused(path: Path) -> None:
    with pytest.raises(ValueError, match=path.name):
        checkpoint.load(path)


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("save", [torch.save, lambda thing, file: pickle.dump(thing, file)])
@pytest.mark.parametrize("place", ["alone", "headscope", "state_dict", "optimizer_states"])
def test_a_pickle_that_would_run_code_runs_none(tmp_path, save, place):
    bomb, path = Bomb(tmp_path / "ran"), tmp_path / "bomb.ckpt"
    with path.open("wb") as file:
        save(bomb if place == "alone" else content()[0] | {place: bomb}, file)
    refused(path)
    assert not bomb.marker.exists()


def traps(marker: Path) -> list:
    """Parts of a configuration that make a folder if anything is made of them."""
    hub = marker.parent / "hub"
    hub.mkdir()
    (hub / "hubconf.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    torch_hub = {"repo_or_dir": str(hub), "model": "x", "source": "local"}
    return [
        {"_target_": "os.mkdir", "path": str(marker)},
        {"_target_": "os.system", "command": f"mkdir {marker}"},
        {"_target_": "headscope.nn.attention.torch.hub.load", **torch_hub},
        {"_target_": "headscope.checkpoint.Path.mkdir", "self": marker},
        {"_target_": ["os.mkdir"], "path": str(marker)},
        {"_target_": "hydra.utils.instantiate", "config": {"_target_": "os.mkdir"}},
        f"${{oc.create:{{_target_: os.mkdir, path: {marker}}}}}",
    ]


@pytest.mark.parametrize("place", ["", "position", "attention", "dropout", "unheard_of"])
def test_a_configuration_that_names_other_code_runs_none(tmp_path, place):
    marker = tmp_path / "ran"
    for trap in traps(marker):
        saved, _ = content()
        config = saved["headscope"]["config"]
        if not place:
            config["model"] = trap
        else:
            config["model"][place] = trap
        torch.save(saved, tmp_path / "trap.ckpt")
        refused(tmp_path / "trap.ckpt")
        assert not marker.exists()


def test_a_corpus_that_names_other_code_runs_none(tmp_path):
    marker = tmp_path / "ran"
    for trap in traps(marker):
        for data in (trap, {"_target_": "headscope.data.built_in.Sotu", "x": trap}):
            with pytest.raises(UserError, match=r"is not allowed there|no such key|must be keys"):
                parse(TrainConfig, configuration() | {"data": data})
            assert not marker.exists()
