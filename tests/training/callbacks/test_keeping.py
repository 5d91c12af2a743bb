"""Checkpoints that are kept on the way: what is in them, and that keeping them changes nothing."""

import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch
from running import SMALL, Script

import headscope
from headscope import checkpoint
from headscope.training.callbacks.snapshot_saver import SnapshotSaver


@pytest.fixture
def kept(script: Script, speeches: Path) -> Path:
    """The checkpoints of a run of 5 steps that keeps three."""
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=5", "trainer.accumulate=2"]
    for folder, steps in (("kept", "[0,2,5]"), ("plain", "[]")):
        said = script(
            *("train", *words, f"callbacks.keep_steps={steps}", f"hydra.run.dir=outputs/{folder}")
        )
        assert said.code == 0, said.err
    return Path("outputs/kept/checkpoints")


def test_every_step_is_kept_as_it_was(script: Script, kept: Path, speeches: Path) -> None:
    names = {file.name for file in kept.glob("step_*")}
    assert names == {f"step_{step:06}.ckpt" for step in (0, 2, 5)}
    moments = [headscope.load(kept / f"step_{step:06}.ckpt") for step in (0, 2, 5)]
    assert [moment.step for moment in moments] == [0, 2, 5]

    fresh = checkpoint.read(kept / "step_000000.ckpt")
    torch.manual_seed(1)
    expected = checkpoint.build_model(moments[0].config.model, vocab_size=320)
    for name, weight in checkpoint.model_weights(fresh).items():
        assert torch.equal(weight, expected.state_dict()[name]), name
    assert "optimizer_states" not in fresh

    last = checkpoint.model_weights(checkpoint.read(kept / "last.ckpt"))
    plain = checkpoint.model_weights(checkpoint.read(Path("outputs/plain/checkpoints/last.ckpt")))
    for name, weight in moments[-1].model.state_dict().items():
        assert torch.equal(weight, last[name]), name
        assert torch.equal(weight, plain[name]), name
    assert any(
        not torch.equal(weight, last[name])
        for name, weight in moments[1].model.state_dict().items()
    )

    # A run can start from one, and a text be sampled.
    said = script(
        *("train", *SMALL, f"data.path={speeches}", "trainer.max_steps=1"),
        f"init_from={kept / 'step_000002.ckpt'}",
    )
    assert said.code == 0, said.err
    said = script("sample", f"checkpoint={kept / 'step_000002.ckpt'}", "max_new_tokens=3")
    assert said.code == 0, said.err


def test_a_kept_step_is_nothing_to_resume_from(script: Script, kept: Path) -> None:
    shutil.copy(kept / "step_000002.ckpt", kept / "last.ckpt")
    (kept / "best.ckpt").unlink()  # it would be resumed from
    said = script("train", "resume=outputs/kept", "trainer.max_steps=7")
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert "init_from=" in said.err


def test_a_run_that_is_stopped_early_keeps_what_was_asked_for_alone(tmp_path: Path) -> None:
    keeping = SnapshotSaver(folder=tmp_path, steps=[0, 100])
    trainer = mock.Mock(global_step=57, max_steps=100)
    keeping.on_train_end(trainer, mock.Mock())
    trainer.save_checkpoint.assert_not_called()


@pytest.mark.parametrize("steps", ["[-1]", "[0,6]"])
def test_steps_that_never_come_are_refused(script: Script, speeches: Path, steps: str) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=5"]
    said = script("train", *words, f"callbacks.keep_steps={steps}")
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert "callbacks.keep_steps" in said.err
    assert "trainer.max_steps=5" in said.err
