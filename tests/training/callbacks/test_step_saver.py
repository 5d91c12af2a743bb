"""Snapshots contain the weights of their step, and saving them does not change training."""

import shutil
from pathlib import Path

import torch
from checkpoint_files import assert_same_weights
from running import SMALL, Script

import headscope
from headscope.trained import checkpoint


def test_a_snapshot_has_the_weights_of_its_step(script: Script, speeches: Path) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=5", "trainer.accumulate=2"]
    for folder, steps in (("snapshots", "[0,2,5]"), ("plain", "[]")):
        keep = f"callbacks.saving.keep_steps={steps}"
        assert script("train", *words, keep, f"hydra.run.dir=outputs/{folder}").code == 0
    snapshots = Path("outputs/snapshots/checkpoints")
    names = {file.name for file in snapshots.glob("step_*")}
    assert names == {f"step_{step:06}.safetensors" for step in (0, 2, 5)}
    loaded = [headscope.load(snapshots / f"step_{step:06}.safetensors") for step in (0, 2, 5)]
    assert [each.step for each in loaded] == [0, 2, 5]

    fresh = checkpoint.read(snapshots / "step_000000.safetensors")
    torch.manual_seed(1)
    expected = checkpoint.build_model(loaded[0].config.model, vocab_size=320)
    for name, weight in fresh.weights().items():
        assert torch.equal(weight, expected.state_dict()[name]), name
    assert "training" not in fresh.data

    assert_same_weights("outputs/snapshots", "outputs/plain")
    last = checkpoint.read(snapshots / "last.safetensors").weights()
    for name, weight in loaded[-1].model.state_dict().items():
        assert torch.equal(weight, last[name]), name
    assert any(
        not torch.equal(weight, last[name]) for name, weight in loaded[1].model.state_dict().items()
    )

    # A snapshot can be used for init_from and for sampling.
    file = snapshots / "step_000002.safetensors"
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=1"]
    assert script("train", *words, f"init_from={file}").code == 0
    assert script("sample", f"checkpoint={file}", "max_new_tokens=3").code == 0

    # It cannot be resumed.
    shutil.copy(snapshots / "step_000002.safetensors", snapshots / "last.safetensors")
    (snapshots / "best.safetensors").unlink()  # otherwise, the run would continue from it
    said = script("train", "resume=outputs/snapshots", "trainer.max_steps=7")
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert "init_from=" in said.err
