"""The whole of it on real text: train, sample, evaluate, be killed, resume."""

import json
import math
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from running import ROOT, SMALL, Said, Script
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headscope.data.store import open_store


def figures(said: Said) -> dict[str, float]:
    assert said.code == 0, said.err
    return json.loads(said.out)


def weights(run: str | Path) -> dict[str, torch.Tensor]:
    return torch.load(Path(run) / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def assert_same_weights(one: str, other: str) -> None:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def events(run: str) -> EventAccumulator:
    return EventAccumulator(
        f"{run}/tensorboard", size_guidance={"images": 0, "tensors": 0}
    ).Reload()


def test_it_learns_and_tells_what_it_learned(script: Script, speeches: Path) -> None:
    said = script(
        "train",
        *SMALL,
        f"data.path={speeches}",
        "model.embed_dim=64",
        "trainer.max_steps=300",
        "trainer.val_every_steps=100",
        "optimizer.lr=3e-3",
        "schedule.warmup_steps=20",
    )
    assert said.code == 0, said.err
    assert said.err == ""
    run = Path("outputs") / Path("outputs/latest").read_text().strip()
    summary = json.loads((run / "summary.json").read_text())

    # It learned more than how often each token comes.
    [store] = [path for path in Path("data").iterdir() if path.is_dir()]
    tokens = open_store(store).validation[1:].tolist()
    counts = Counter(tokens)
    unigram = -sum(n / len(tokens) * math.log(n / len(tokens)) for n in counts.values())
    assert summary["val_loss"] < unigram - 0.5

    assert summary["steps"] == 300
    assert summary["tokens"] == 300 * 12 * 32
    assert summary["wall_seconds"] > summary["train_seconds"] > 0
    assert f"{run}/checkpoints/best.ckpt" in said.out
    assert "--samples_per_plugin images=" in said.out

    # What is in TensorBoard.
    log = events(str(run))
    logged = log.Tags()
    assert {
        "train/loss",
        "train/lr",
        "train/grad_norm",
        "train/tokens_per_second",
        "val/loss",
        "val/bits_per_byte",
    } <= set(logged["scalars"])
    assert [event.step for event in log.Scalars("val/loss")] == [100, 200, 300]
    assert set(logged["images"]) == {"attention/layer_0", "attention/layer_1"}
    image_steps = [event.step for event in log.Images("attention/layer_0")]
    assert image_steps[0] == 0
    assert image_steps[-1] == 300
    assert len(image_steps) <= 10
    assert [event.step for event in log.Tensors("samples/text_summary")] == [100, 200, 300]

    # Evaluation is the summary's own figure, to the last bits of a different batch size.
    last = figures(script("evaluate", f"checkpoint={run}/checkpoints/last.ckpt"))
    assert last["loss_nats_per_token"] == pytest.approx(summary["val_loss"], rel=1e-5)
    assert last["bits_per_byte"] == pytest.approx(summary["val_bits_per_byte"], rel=1e-5)
    assert last["perplexity"] == pytest.approx(math.exp(last["loss_nats_per_token"]))
    text = b"".join(file.read_bytes() for file in sorted(speeches.glob("*.txt"))[9::10])
    assert last["bytes"] == len(text.replace(b"\r\n", b"\n"))
    other = figures(script("evaluate", f"data.path={sorted(speeches.glob('*.txt'))[0]}"))
    assert other["bytes"] != last["bytes"]

    # Sampling: the newest run without being told; text alone on standard output.
    words = ("max_new_tokens=60", "prompt=My fellow citizens, ")
    one, again = script("sample", *words), script("sample", *words)
    assert one.code == 0, one.err
    assert one.out.startswith("My fellow citizens, ")
    assert one.out == again.out != script("sample", *words, "seed=2").out
    assert script("sample", "temperature=0", "seed=3").out == script("sample", "temperature=0").out

    # Its weights start a new run, which is another run.
    new = script(
        "train",
        *SMALL,
        f"data.path={speeches}",
        f"init_from={run}/checkpoints/last.ckpt",
        "trainer.max_steps=1",
        "model.embed_dim=64",
        "optimizer.lr=0",
        "hydra.run.dir=outputs/a = copy",
    )
    assert new.code == 0, new.err
    copied = json.loads(Path("outputs/a = copy/summary.json").read_text())
    assert copied["val_loss"] == pytest.approx(summary["val_loss"], rel=1e-5)
    assert copied["steps"] == 1


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
    from headscope.training import checkpoints
    calls = []
    save = torch.save
    def half(content, file):
        calls.append(file)
        if len(calls) == int(at):
            file.write(b"half of it")
            file.flush()
            die()
        save(content, file)
    checkpoints.torch.save = half
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""


def test_a_run_killed_four_times_ends_as_one_that_never_was(script: Script, speeches: Path) -> None:
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
    # TensorBoard reads event files in order of their second, and this process is quick to start.
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

    # One event stream: every validation once, in order, as TensorBoard shows it.
    steps = [event.step for event in events("outputs/killed").Scalars("val/loss")]
    assert steps == [10, 20, 30, 40]

    # More steps: the new length's schedule, and said so.
    more = script("train", "resume=outputs/killed", "trainer.max_steps=60")
    assert more.code == 0, more.err
    assert "trainer.max_steps from 40 to 60" in more.out
    assert "schedule of the new length" in more.out
    assert json.loads(Path("outputs/killed/summary.json").read_text())["steps"] == 60


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(
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
    saved = torch.load(tmp_path / "outputs/run/checkpoints/last.ckpt", weights_only=True)
    assert saved["global_step"] >= 150
    assert not (tmp_path / "outputs/run/summary.json").exists()


def test_a_sweep_has_a_numbered_folder_for_each_run(script: Script, speeches: Path) -> None:
    said = script(
        "train",
        "-m",
        *SMALL,
        f"data.path={speeches}",
        "trainer.max_steps=2",
        "model.heads=1,2",
        "hydra.sweep.dir=outputs/sweep",
    )
    assert said.code == 0, said.err
    for number, heads in enumerate((1, 2)):
        content = torch.load(f"outputs/sweep/{number}/checkpoints/best.ckpt", weights_only=True)
        assert content["headscope"]["config"]["model"]["heads"] == heads
    assert Path("outputs/latest").read_text().strip() == "sweep/1"


def test_early_stopping_outlives_a_kill_and_a_new_patience_holds(
    script: Script, speeches: Path
) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.val_every_steps=2", "optimizer.lr=0"]
    words += ["trainer.max_steps=30", "callbacks.early_stopping_patience=2"]
    said = script("train", *words, "hydra.run.dir=outputs/run")
    assert said.code == 0, said.err
    assert "stopped early: 2 validations without a new best" in said.out
    summary = Path("outputs/run/summary.json")
    assert json.loads(summary.read_text())["steps"] == 6
    assert [event.step for event in events("outputs/run").Images("attention/layer_0")][-1] == 6

    again = script("train", "resume=outputs/run")
    assert again.code == 1
    assert "finished, at 6 steps" in again.err
    summary.unlink()  # as if it had been killed before the end was written
    assert script("train", "resume=outputs/run").code == 0
    assert json.loads(summary.read_text())["steps"] == 6
    more = script("train", "resume=outputs/run", "callbacks.early_stopping_patience=4")
    assert more.code == 0, more.err
    assert json.loads(summary.read_text())["steps"] == 10


def test_a_loss_that_is_no_number_ends_it_and_spoils_no_checkpoint(
    script: Script, speeches: Path
) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=20", "optimizer.lr=1e30"]
    said = script(
        "train",
        *words,
        "schedule.warmup_steps=0",
        "trainer.val_every_steps=15",
        "trainer.log_every_steps=100",
        "callbacks.save_every_minutes=0",
        "hydra.run.dir=outputs/run",
    )
    assert said.code == 1
    assert "loss is nan" in said.err
    assert "optimizer.lr" in said.err
    for file in Path("outputs/run/checkpoints").glob("*.ckpt"):
        content = torch.load(file, weights_only=True)
        assert all(weight.isfinite().all() for weight in content["state_dict"].values())


def test_a_run_goes_on_with_its_own_text_alone(script: Script, speeches: Path) -> None:
    texts = Path("texts")
    texts.mkdir()
    for file in speeches.iterdir():
        (texts / file.name).write_bytes(file.read_bytes())
    words = [*SMALL, "data.path=texts", "trainer.max_steps=2"]
    assert script("train", *words, "hydra.run.dir=outputs/run").code == 0
    with next(texts.iterdir()).open("a") as file:
        file.write("One more sentence.")
    said = script("train", "resume=outputs/run", "trainer.max_steps=4")
    assert said.code == 1
    assert "the text is not the one this run began with" in said.err

    # A new run may take the weights to the new text; it keeps the tokens they were trained on.
    init = "init_from=outputs/run/checkpoints/last.ckpt"
    words = [word for word in words if not word.startswith("tokenizer.")]
    said = script("train", *words, init, "tokenizer=byte", "hydra.run.dir=outputs/new")
    assert said.code == 0, said.err
    old, new = (
        torch.load(f"outputs/{run}/checkpoints/last.ckpt", weights_only=True)["headscope"]
        for run in ("run", "new")
    )
    assert old["tokenizer"] == new["tokenizer"]
    assert old["store"] != new["store"]
