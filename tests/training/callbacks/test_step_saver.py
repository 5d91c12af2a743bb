"""Snapshots contain the weights of their step, and saving them does not change training."""

from pathlib import Path

import torch
from checkpoint_files import assert_same_weights
from running import SMALL

import headscope
from headscope.trained import checkpoint


def test_a_snapshot_has_the_weights_of_its_step(script, speeches):
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=5", "callbacks=plain"]
    for folder, steps in (("snapshots", "[0,2,5]"), ("plain", "[]")):
        keep = f"callbacks.saving.keep_steps={steps}"
        headscope.train([*words, "trainer.accumulate=2", keep, f"hydra.run.dir={folder}"])
    assert_same_weights("snapshots", "plain")
    files = sorted(Path("snapshots/checkpoints").glob("step_*"))
    assert [file.name for file in files] == [f"step_{step:06}.safetensors" for step in (0, 2, 5)]
    loaded = [headscope.load(file) for file in files]
    assert [each.step for each in loaded] == [0, 2, 5]
    torch.manual_seed(1)
    fresh = checkpoint.build_model(loaded[0].config.model, vocab_size=320)
    last = headscope.load("snapshots/checkpoints/last.safetensors").model
    for model, expected in ((loaded[0].model, fresh), (loaded[2].model, last)):
        torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert "training" not in checkpoint.read(files[0]).data

    # A snapshot can be used for init_from and for sampling.
    headscope.train([*words, f"init_from={files[1]}", "trainer.max_steps=1"])
    assert script("sample", f"checkpoint={files[1]}", "max_new_tokens=3").code == 0
