"""Gradients exist only between the first backward pass and the end of an optimizer step."""

from pathlib import Path

import pytest
from composing import training_config
from rich.console import Console
from running import SMALL
from torch import Tensor

from headscope.training.build import build
from headscope.training.module import LanguageModel


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_starts_without_gradients_and_accumulates_those_of_its_batches(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["data=text", f"data.path='{speeches}'", f"trainer.accumulate={accumulate}"]
    config = training_config(*SMALL, *words, "callbacks=plain", "trainer.max_steps=3", "~logger")
    run = build(config, folder=Path("run"), console=Console(quiet=True))
    backward, had_gradients = LanguageModel.manual_backward, []

    def recorded(self: LanguageModel, loss: Tensor) -> None:
        has_gradient = {parameter.grad is not None for parameter in self.model.parameters()}
        assert len(has_gradient) == 1
        had_gradients.append(has_gradient.pop())
        backward(self, loss)

    monkeypatch.setattr(LanguageModel, "manual_backward", recorded)
    run.trainer.fit(run.module, datamodule=run.data)
    assert had_gradients == [False, *[True] * (accumulate - 1)] * 3
    assert all(parameter.grad is None for parameter in run.model.parameters())
