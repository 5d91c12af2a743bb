"""A resumed run has the configuration of its checkpoint, with the changes of the command line.
Damaged files are reported, and a state that does not fit is refused."""

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import configuration, content, opened, save
from composing import composed, training_config
from refusals import refused
from rich.console import Console
from running import ROOT, SMALL

import headscope
from headscope import trained
from headscope.cli.train import arguments
from headscope.cli.words import key_of, quoted
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.files import read_summary, write_summary
from headscope.trained import checkpoint
from headscope.training.build import build
from headscope.training.module import LanguageModel
from headscope.training.resume import FIXED, check_is_run, newest_checkpoint, start_of
from headscope.training.run import fit

RUN = Path("a run, with 'marks' and = signs")


def save_step(name: str, config: dict | None = None, step: int = 7) -> Path:
    file = RUN / "checkpoints" / f"{name}.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    save(content(config, step=step)[0] | {"config": config or configuration()}, file)
    return file


def resumed(*words: str):
    given = quoted(arguments([f"resume={RUN}", *words]))
    task = [word for word in given if not word.startswith("hydra")]
    keys = [key_of(word) for word in task]
    start = start_of(composed(*task), RUN, keys, sweep=False, say=print)
    return start.config, start.changes


def test_a_resumed_run_has_the_configuration_of_its_checkpoint_except_where_it_writes():
    own = configuration("optimizer=adamw", "schedule=cosine", "callbacks.attention.text='a b'")
    own["callbacks"]["attention"]["text"] = "a ${name} \\${b} c"
    save_step("last", own | {"store_dir": "../elsewhere"})
    config, changes = resumed()
    assert config.kept() == own
    assert changes == []
    assert config.store_dir == "data"
    assert resumed("store_dir=mine")[0].store_dir == "mine"


def test_the_command_line_changes_the_configuration():
    own = ["optimizer=adamw", "optimizer.lr=0.123", "schedule=cosine"]
    save_step("last", configuration(*own, "trainer.max_steps=7"))
    words = ["optimizer.beta1=0.5", "schedule.final_fraction=0.5"]
    config, changes = resumed("trainer.max_steps=9", *words)
    assert config.kept() == configuration(*own, *words, "trainer.max_steps=9")
    assert changes[:2] == ["trainer.max_steps from 7 to 9", "optimizer.beta1 from 0.9 to 0.5"]
    other, _ = resumed("schedule=linear", "schedule.cooldown=0.25")
    assert other.schedule.cooldown == 0.25
    fixed = ("model.heads=1", "model/position=none", "data=repeats", "seed=3", "optimizer=muon")
    fixed += ("experiment=heads", "debug=limit")
    for word in fixed:
        with refused("init_from"):
            resumed(word)


def chosen(*words: str) -> TrainConfig:
    """The configuration of a resumed run, as the command train makes it."""
    found: list[TrainConfig] = []

    def stop_here(config: TrainConfig, *given: Any, **options: Any) -> None:
        found.append(config)
        raise UserError("resumed")

    with pytest.MonkeyPatch.context() as patch, refused("resumed"):
        patch.setattr("headscope.training.build.build", stop_here)
        headscope.train([f"resume={RUN}", *words])
    return found[0]


@pytest.mark.parametrize("fixed", [key for key in FIXED if key.startswith("trainer.")])
def test_a_group_with_a_fixed_key_is_treated_as_the_key_is(fixed):
    save_step("last", configuration(f"{fixed}=7", "trainer.log_every_steps=3"))
    file, name = Path("conf/trainer/own.yaml"), fixed.partition(".")[2]
    file.parent.mkdir(parents=True)
    default = (ROOT / "conf/trainer/default.yaml").read_text()
    for value in (7, 8):
        own = f"{name}: {value}\nval_batch_size: 5\nmax_steps: 99\nlimit_val_batches: 2\n"
        file.write_text(re.sub(rf"(?m)^({name}|val_batch_size|max_steps): .*", "", default) + own)
        if value == 8:
            with refused(f"{fixed}=8", "cannot change", "init_from"):
                headscope.train([f"resume={RUN}", "trainer=own"])
            continue
        settings = chosen("trainer=own").trainer
        assert getattr(settings, name) == 7
        assert (settings.val_batch_size, settings.max_steps) == (5, 99)
        assert settings.arguments == {"limit_val_batches": 2}
        assert settings.log_every_steps == 10


# --- damaged files ---


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_run_with_a_damaged_last_continues_from_best(damage, capsys):
    best, last = save_step("best", step=30), save_step("last", step=40)
    found = newest_checkpoint(RUN)
    assert (found.path, found.step, capsys.readouterr().err) == (last, 40, "")
    damage(last)
    found = newest_checkpoint(RUN)
    assert (found.path, found.step) == (best, 30)
    said = capsys.readouterr().err
    assert re.fullmatch(f".*{last}.*best.safetensors instead, of step 30\n", said)
    cut(best)
    with refused("resume=", "best.safetensors", *["last.safetensors"] * (damage is cut)):
        newest_checkpoint(RUN)
    with refused("is not a run"):
        check_is_run(RUN.parent)


def test_a_damaged_summary_counts_as_missing(tmp_path):
    assert read_summary(tmp_path) is None
    whole = {"val_loss": 1.5, "val_bits_per_byte": 2, "train_seconds": 3.5, "steps": 4, "x": None}
    write_summary(tmp_path, whole)
    assert read_summary(tmp_path) == whole
    text = (tmp_path / "summary.json").read_text()
    for damaged in ("", "{", "[]", "{}", '{"steps": "3"}', text.replace("1.5", "1.4")):
        (tmp_path / "summary.json").write_text(damaged)
        assert read_summary(tmp_path) is None


def test_a_damaged_best_is_replaced_by_last_unless_best_was_requested(capsys):
    best, last = save_step("best"), save_step("last")
    cut(best)
    assert checkpoint.find(str(RUN)) == last
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert str(best) in said.err
    assert f"using {last}" in said.err
    with refused("best.safetensors", "damaged"):
        trained.load(checkpoint.find(str(best)))
    last.unlink()
    with refused("best.safetensors", "damaged"):
        trained.load(checkpoint.find(str(RUN)))


# --- weights that are not finite ---


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


@pytest.mark.parametrize("at", [1, 5])
def test_diverged_training_prints_a_command_that_continues(script, speeches, monkeypatch, at):
    """Before the first checkpoint, there is nothing to continue from."""
    words = [*EIGHT, f"data.path={speeches}", "trainer.log_every_steps=1", "hydra.run.dir=run"]
    with monkeypatch.context() as patch:
        spoil(patch, at, slice(None), torch.nan)
        said = script("train", *words).refused("loss is nan", "optimizer.lr")
    assert said.err.count("\n") == 1
    if at == 1:
        assert "to continue" not in said.err
        assert not list(Path("run").rglob("*.safetensors"))
        return
    rates = trained.load("run/checkpoints/last.safetensors").config.optimizer
    command = shlex.split(said.err.partition("from the last checkpoint: ")[2])
    lower = [f"optimizer.{key}={rates[key] / 2:g}" for key in ("lr", "matrix_lr") if key in rates]
    assert command == ["python", f"{ROOT}/scripts/train.py", "resume=run", *lower]
    assert "resuming    at step 4" in script("train", *command[2:]).out


def test_weights_that_are_not_finite_are_never_saved(speeches, monkeypatch):
    words = [*EIGHT, f"data.path={speeches}", "model.tied_head=false"]
    spoil(monkeypatch, 1, -1, torch.inf)  # the loss stays finite: no text contains this token
    with refused("not finite"):
        headscope.train([*words, "callbacks.saving.keep_steps=[2]"])
    assert not list(Path("outputs").rglob("*.safetensors"))


# --- a training state that does not fit ---


REMOVED = object()
CALLBACKS, MODULE = "training/callbacks", "training/language_model"
STATE = "tensors/optimizer.norm.weight"
CHANGES = [
    *(("training", wrong) for wrong in ("x", REMOVED)),
    (CALLBACKS, "x"),
    (f"{CALLBACKS}/CheckpointSaver", {"x": 1}),
    (f"{CALLBACKS}/CheckpointSaver/best_val_loss", "low"),
    *((f"{MODULE}/running_loss", wrong) for wrong in (0, ["x"])),
    (f"{MODULE}/running_count", "x"),
    (f"{MODULE}/threads", REMOVED),
    ("training/loops", {}),
    ("training/loops/epoch_loop.manual_optimization.optim_step_progress/total/completed", 1),
    ("tensors/optimizer.", REMOVED),
    ("tensors/optimizer.x.exp_avg", torch.ones(3)),
    (f"{STATE}.exp_avg_sq", REMOVED),
    (f"{STATE}.exp_avg", torch.zeros(3)),
    ("tensors/model.x", torch.zeros(3)),
    ("tensors/model.norm.weight", REMOVED),
    ("tensors/model.norm.weight", torch.zeros(3)),
]
"""Entries of a checkpoint, and wrong values for them."""


def changed(stored: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A copy of a checkpoint with another value for an entry. Without an entry, if it is removed:
    without all entries that begin like it."""
    copied = node = copy.deepcopy(stored)
    *path, last = place.split("/")
    for key in path:
        node = node[key]
    if value is not REMOVED:
        node[last] = value
    for key in [key for key in node if value is REMOVED and key.startswith(last)]:
        del node[key]
    return copied


def test_a_training_state_that_does_not_fit_is_refused_and_each_step_starts_without_gradients(
    speeches, monkeypatch
):
    words = [*SMALL, f"data.path={speeches}", "trainer.val_batch_size=256", "callbacks=plain"]
    words += ["trainer.accumulate=2"]
    backward, had_gradients = LanguageModel.manual_backward, []

    def recorded(module, loss):
        had_gradients.append({each.grad is not None for each in module.model.parameters()})
        backward(module, loss)

    monkeypatch.setattr(LanguageModel, "manual_backward", recorded)
    headscope.train([*words, "trainer.max_steps=2", "hydra.run.dir=outputs/r"])
    assert had_gradients == [{False}, {True}] * 2
    Path("outputs/r/checkpoints/best.safetensors").unlink()
    last = Path("outputs/r/checkpoints/last.safetensors")
    stored = opened(last)
    config = training_config("data=text", *words, "~logger", "trainer.max_steps=4")
    for change in CHANGES:
        save(changed(stored, *change), last)
        before = last.read_bytes()
        with refused():
            resume = newest_checkpoint(Path("outputs/r"))
            console = Console(quiet=True)
            fit(build(config, folder=Path("outputs/r"), console=console, resume=resume))
        assert last.read_bytes() == before
    # Entries of Lightning's own checkpoint mean nothing.
    entries = {"state_dict": {}, "optimizer_states": [{}], "global_step": 9}
    save(stored | {"training": stored["training"] | entries}, last)
    assert headscope.train(["resume=outputs/r", "trainer.max_steps=4"]).summary["steps"] == 4
