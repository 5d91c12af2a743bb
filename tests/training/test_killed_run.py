"""A run that was killed or stopped continues as if it had not been interrupted."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from checkpoint_files import opened
from running import DRAWN, ROOT, SMALL, Script, events

pytestmark = pytest.mark.slow


def weights(run: str) -> dict[str, torch.Tensor]:
    return opened(Path(run) / "checkpoints" / "last.safetensors")["tensors"]


def assert_same_weights(one: str, other: str) -> None:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


KILLED = """
import os, runpy, signal, sys

import torch

def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)

where, at, script, *arguments = sys.argv[1:]
if where == "training_step" or where == "validation_step":
    from headscope.training.module import LanguageModel
    step = getattr(LanguageModel, where)
    def killed(self, batch, batch_idx):
        if self.global_step == int(at) and batch_idx > 0:
            die()
        return step(self, batch, batch_idx)
    setattr(LanguageModel, where, killed)
else:
    from contextlib import contextmanager
    from headscope.checkpoint import file as checkpoint_file
    calls = []
    replacing = checkpoint_file.replacing
    @contextmanager
    def half(path, *, size):
        calls.append(path)
        with replacing(path, size=size) as file:
            if len(calls) == int(at):
                file.write(b"half of it")
                file.flush()
                die()
            yield file
    checkpoint_file.replacing = half
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""


def test_a_run_killed_four_times_equals_an_uninterrupted_one(
    script: Script, speeches: Path
) -> None:
    arguments = [
        *SMALL,
        f"data.path={speeches}",
        "model.dropout=0.1",
        "trainer.accumulate=2",
        "trainer.max_steps=40",
        "trainer.val_every_steps=10",
        "callbacks.save_every_minutes=0",
    ]
    assert script("train", *arguments, "hydra.run.dir=outputs/whole").code == 0
    moments = [
        ("training_step", "20"),
        ("validation_step", "30"),
        ("while writing a checkpoint", "2"),
        ("training_step", "37"),
    ]
    words = [*arguments, "hydra.run.dir=outputs/killed"]
    for moment in moments:
        command = [
            sys.executable,
            "-c",
            KILLED,
            *moment,
            str(ROOT / "scripts" / "train.py"),
            *words,
        ]
        killed = subprocess.run(command, capture_output=True, text=True)
        assert killed.returncode == -9, killed.stderr
        words = ["resume=outputs/killed"]
    hydra = Path("outputs/killed/.hydra")
    before = {file.name: file.read_bytes() for file in hydra.iterdir()}
    # TensorBoard orders event files by the second in which they were created.
    time.sleep(1)
    said = script("train", "resume=outputs/killed")
    assert said.code == 0, said.err
    assert_same_weights("outputs/whole", "outputs/killed")
    assert {file.name: file.read_bytes() for file in hydra.iterdir()} == before
    whole, resumed = (
        json.loads(Path(f"outputs/{run}/summary.json").read_text()) for run in ("whole", "killed")
    )
    for same in ("val_loss", "best_val_loss", "steps", "tokens"):
        assert whole[same] == resumed[same]
    assert resumed["wall_seconds"] > resumed["train_seconds"]

    # TensorBoard shows every validation once and in order.
    steps = [event.step for event in events("outputs/killed").Scalars("val/loss")]
    assert steps == [10, 20, 30, 40]

    # A larger max_steps also changes the schedule, and a message says so.
    more = script("train", "resume=outputs/killed", "trainer.max_steps=60")
    assert more.code == 0, more.err
    assert "trainer.max_steps from 40 to 60" in more.out
    assert "the learning rate schedule now covers the new number of steps" in more.out
    assert json.loads(Path("outputs/killed/summary.json").read_text())["steps"] == 60


def test_ctrl_c_finishes_the_step_saves_and_prints_how_to_continue(
    speeches: Path, tmp_path: Path
) -> None:
    script = str(ROOT / "scripts" / "train.py")
    arguments = [*SMALL, f"data.path={speeches}", "trainer.max_steps=100000"]
    process = subprocess.Popen(
        [sys.executable, script, *arguments, "hydra.run.dir=outputs/run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "validation loss" in line:
            process.send_signal(2)
            break
    rest = process.stdout.read()
    assert process.wait() == 130
    assert "resume=outputs/run" in rest
    assert "Traceback" not in rest
    saved = opened(tmp_path / "outputs/run/checkpoints/last.safetensors")
    assert saved["step"] >= 150
    assert not (tmp_path / "outputs/run/summary.json").exists()


def test_early_stopping_survives_a_kill_and_accepts_a_new_patience(
    script: Script, speeches: Path
) -> None:
    words = [*SMALL, *DRAWN, f"data.path={speeches}", "optimizer.lr=0"]
    words += ["trainer.val_every_steps=2"]
    words += ["optimizer.matrix_lr=0", "trainer.max_steps=30"]
    words += ["callbacks.early_stopping_patience=2"]
    said = script("train", *words, "hydra.run.dir=outputs/run")
    assert said.code == 0, said.err
    assert "stopped early: 2 validations without a new best" in said.out
    summary = Path("outputs/run/summary.json")
    assert json.loads(summary.read_text())["steps"] == 6
    log = events("outputs/run")
    tag = next(tag for tag in log.Tags()["images"] if tag.startswith("attention/layer_0 "))
    assert [event.step for event in log.Images(tag)][-1] == 6

    again = script("train", "resume=outputs/run")
    assert again.code == 1
    assert "finished, at 6 steps" in again.err
    summary.unlink()  # as if the process had been killed before it wrote the summary
    assert script("train", "resume=outputs/run").code == 0
    assert json.loads(summary.read_text())["steps"] == 6
    more = script("train", "resume=outputs/run", "callbacks.early_stopping_patience=4")
    assert more.code == 0, more.err
    assert json.loads(summary.read_text())["steps"] == 10
