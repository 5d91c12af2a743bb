"""A run with damaged files continues from an undamaged checkpoint and reports the damage."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_files import content, save
from refusals import refused
from running import ROOT, SMALL

import headscope
from headscope import trained
from headscope.files import read_summary, write_summary
from headscope.trained import checkpoint
from headscope.training.module import LanguageModel
from headscope.training.resume import newest_checkpoint


@pytest.fixture
def run(tmp_path) -> Path:
    """A run with best.safetensors of step 30 and last.safetensors of step 40."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    for name, step in (("best", 30), ("last", 40)):
        save(content(step=step)[0], folder / "checkpoints" / f"{name}.safetensors")
    return folder


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_run_with_a_damaged_last_continues_from_best(run, damage, capsys):
    last, best = (run / "checkpoints" / f"{name}.safetensors" for name in ("last", "best"))
    found = newest_checkpoint(run)
    assert (found.path, found.step, capsys.readouterr().err) == (last, 40, "")
    damage(last)
    found = newest_checkpoint(run)
    assert (found.path, found.step) == (best, 30)
    said = capsys.readouterr().err
    assert re.fullmatch(f".*{last}.*best.safetensors instead, of step 30\n", said)
    cut(best)
    with refused("resume=", "best.safetensors", *["last.safetensors"] * (damage is cut)):
        newest_checkpoint(run)
    shutil.rmtree(run / "checkpoints")
    with refused("is not a run"):
        newest_checkpoint(run)


def test_a_checkpoint_with_only_weights_is_not_resumed(run):
    (run / "checkpoints" / "best.safetensors").unlink()
    stored, _ = content(step=40)
    del stored["training"]
    save(stored, run / "checkpoints" / "last.safetensors")
    with refused("only weights", "init_from="):
        newest_checkpoint(run)


def test_a_damaged_summary_counts_as_missing(run):
    assert read_summary(run) is None
    whole = {"val_loss": 1.5, "val_bits_per_byte": 2, "train_seconds": 3.5, "steps": 4, "x": None}
    write_summary(run, whole)
    assert read_summary(run) == whole
    text = (run / "summary.json").read_text()
    for damaged in ("", "{", "[]", "{}", '{"steps": "3"}', text.replace("1.5", "1.4")):
        (run / "summary.json").write_text(damaged)
        assert read_summary(run) is None


def test_a_damaged_best_is_replaced_by_last_unless_best_was_requested(run, capsys):
    best, last = (run / "checkpoints" / f"{name}.safetensors" for name in ("best", "last"))
    (run.parent / "latest").write_text("run\n")
    assert checkpoint.find(str(run)) == best
    cut(best)
    for given in (None, str(run)):
        capsys.readouterr()
        assert checkpoint.find(given, outputs=run.parent) == last
        said = capsys.readouterr()
        assert said.out == ""
        assert str(best) in said.err
        assert f"using {last}" in said.err
        assert said.err.count("\n") == 1
    with refused("best.safetensors", "damaged"):
        trained.load(checkpoint.find(str(best)))
    last.unlink()
    with refused("best.safetensors", "damaged"):
        trained.load(checkpoint.find(str(run)))


EIGHT = [*SMALL, "trainer.max_steps=8", "trainer.val_every_steps=4", "callbacks=plain"]


def spoil(monkeypatch: pytest.MonkeyPatch, at: int, token: object, value: float) -> None:
    """From this step on, the embedding of `token` is `value`."""
    step = LanguageModel.training_step

    def spoiled(self, batches, index):
        if self.global_step == at:
            with torch.no_grad():
                self.model.embedding.weight[token] = value
        return step(self, batches, index)

    monkeypatch.setattr(LanguageModel, "training_step", spoiled)


def test_diverged_training_prints_a_command_that_continues(script, speeches, monkeypatch):
    words = [*EIGHT, f"data.path={speeches}", "trainer.log_every_steps=1"]
    with monkeypatch.context() as patch:
        spoil(patch, 1, slice(None), torch.nan)
        said = script("train", *words, "hydra.run.dir=outputs/first")
    assert said.code == 1
    assert "loss is nan" in said.err
    assert "optimizer.lr" in said.err
    assert "to continue" not in said.err
    assert not list(Path("outputs/first").rglob("*.safetensors"))
    with monkeypatch.context() as patch:
        spoil(patch, 5, slice(None), torch.nan)
        said = script("train", *words, "hydra.run.dir=outputs/later")
    assert (said.code, said.err.count("\n")) == (1, 1)
    rates = trained.load("outputs/later/checkpoints/last.safetensors").config.optimizer
    command = shlex.split(said.err.partition("from the last checkpoint: ")[2])
    lower = [f"optimizer.{key}={rates[key] / 2:g}" for key in ("lr", "matrix_lr") if key in rates]
    assert command == ["python", f"{ROOT}/scripts/train.py", "resume=outputs/later", *lower]
    assert "resuming    at step 4" in script("train", *command[2:]).out


def test_weights_that_are_not_finite_are_never_saved(speeches, monkeypatch):
    words = [*EIGHT, f"data.path={speeches}", "model.tied_head=false"]
    spoil(monkeypatch, 1, -1, torch.inf)  # the loss stays finite: no text contains this token
    with refused("not finite"):
        headscope.train([*words, "callbacks.saving.keep_steps=[2]"])
    assert not list(Path("outputs").rglob("*.safetensors"))
