"""The law of a stranger's checkpoint: it is refused, and nothing of it has run."""

from pathlib import Path

import pytest
from checkpoint_files import configuration, content, save

from headscope import checkpoint
from headscope.config import parse
from headscope.config.training import TrainConfig
from headscope.errors import UserError


def refused(path: Path) -> None:
    with pytest.raises(ValueError, match=path.name):
        checkpoint.load(path)


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
        {"_target_": "headscope.checkpoint.Path.mkdir", "self": str(marker)},
        {"_target_": ["os.mkdir"], "path": str(marker)},
        {"_target_": "hydra.utils.instantiate", "config": {"_target_": "os.mkdir"}},
        f"${{oc.create:{{_target_: os.mkdir, path: {marker}}}}}",
    ]


@pytest.mark.parametrize("place", ["", "position", "attention", "dropout", "unheard_of"])
def test_a_configuration_that_names_other_code_runs_none(tmp_path, place):
    marker = tmp_path / "ran"
    for trap in traps(marker):
        saved, _ = content()
        config = saved["config"]
        if not place:
            config["model"] = trap
        else:
            config["model"][place] = trap
        save(saved, tmp_path / "trap.safetensors")
        refused(tmp_path / "trap.safetensors")
        assert not marker.exists()


def test_a_corpus_that_names_other_code_runs_none(tmp_path):
    marker = tmp_path / "ran"
    for trap in traps(marker):
        for data in (trap, {"_target_": "headscope.data.built_in.Sotu", "x": trap}):
            with pytest.raises(UserError, match=r"is not allowed there|no such key|must be keys"):
                parse(TrainConfig, configuration() | {"data": data})
            assert not marker.exists()
