"""Several processes train the same model as one process: real processes, connected by gloo."""

import json
import os
import shutil
import signal
import sys
import time
from contextlib import chdir
from pathlib import Path

import psutil
import pytest
from checkpoint_files import assert_same_weights, opened
from many_processes import (
    SCRIPT,
    TINY,
    command,
    end,
    slurm,
    start,
    train,
    wait_for_end,
    wait_for_steps,
)
from running import events, scalars, summary

from headscope.trained.checkpoint import read

pytestmark = pytest.mark.slow

STEPS = [
    *("trainer.max_steps=9", "trainer.val_every_steps=4", "trainer.accumulate=2"),
    "optimizer=adamw",  # Muon may compute in bf16, which turns float error into larger differences
    # Windows of 12 tokens have one to three answers, so their mean is no mean of means.
    *("data=modular", "model.block_size=12"),
    *("callbacks.hold.heads=[L0H1]", "callbacks.hold.by=mean", "callbacks.hold.from_step=3"),
]
ENDLESS = ["trainer.max_steps=100000", "trainer.val_every_steps=5", "hydra.run.dir=outputs/run"]
LITERAL = """prompt 'a', "b" = ${c} [d]"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run of one process."""
    with chdir(tmp_path_factory.mktemp("alone")):
        ended = train("lightning", 1, *TINY, *STEPS, "hydra.run.dir=run")
        assert (ended.code, ended.err) == (0, "")
        return Path("run").absolute()


@pytest.fixture(scope="module")
def tiny(speeches, tmp_path_factory):
    """The words of a small run; the runs share their tokens."""
    return [*TINY, f"data.path={speeches}", f"store_dir={tmp_path_factory.mktemp('tokens')}"]


@pytest.mark.parametrize(("way", "count"), [("torchrun", 2), ("srun", 2), ("lightning", 4)])
def test_several_processes_train_as_one(way, count, alone, script, monkeypatch):
    """One run folder, one console, one stream of logs and one checkpoint; literal values arrive in
    every process. Variables of an earlier run of several processes change nothing."""
    words = [
        *("name=a = b@c", f"callbacks.samples.prompt={LITERAL}"),
        # Only the first process watches and samples.
        *("callbacks.heads.every_steps=4", "callbacks.samples.max_new_tokens=4"),
    ]
    if way == "lightning":
        for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "7"}.items():
            monkeypatch.setenv(name, value)
    ended = train(way, count, *TINY, *STEPS, *words).succeeded()
    (run,) = Path("outputs").glob("a = b@c_*")
    assert [*Path("outputs").iterdir()] == [run]
    assert len(list((run / "tensorboard").glob("events.*"))) == 2  # of training and of the summary
    ours, theirs = summary(run), summary(alone)
    assert ours["devices"] == count
    assert ours["tokens"] == theirs["tokens"]
    assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=2e-6)
    for tag in ("train/loss", "val/loss", "train/lr", "train/grad_norm"):
        assert scalars(run, tag) == pytest.approx(scalars(alone, tag), rel=2e-6)
    for line in ("run  ", "step 9 of 9", "Validating on", "best_val_loss"):
        assert ended.out.count(line) == 1, line
    content = opened(run / "checkpoints" / "best.safetensors")
    assert content["config"]["callbacks"]["samples"]["prompt"] == LITERAL
    # One process computes the same validation loss from this checkpoint. It is logged in float32.
    said = script("evaluate", f"checkpoint={run / 'checkpoints' / 'last.safetensors'}")
    loss = json.loads(said.out)["loss_nats_per_token"]
    assert loss == pytest.approx(ours["val_loss"], rel=1e-7)


def test_a_killed_run_is_usable_and_continues_bit_by_bit(tiny, script):
    """In another number of processes, too, but with other draws of dropout."""
    words = [
        *("trainer.max_steps=20", "trainer.val_every_steps=3", "optimizer=adamw"),
        "callbacks.saving.keep_steps=[3]",
        "trainer.log_every_steps=20",  # the logged mean includes steps before the kill
        *("model.dropout=0.1", "callbacks.hold.heads=[L0H1]", "callbacks.hold.by=mean"),
        *("callbacks.hold.from_step=1", "callbacks.hold.until_step=15"),
    ]
    train("lightning", 2, *tiny, *words, "hydra.run.dir=whole").succeeded()
    words += ["callbacks.saving.every_minutes=0", "hydra.run.dir=run"]
    killed = start([*command("lightning", 2), *tiny, *words])
    children = wait_for_steps(killed, 3)
    killed.kill()
    assert end(killed).code == -signal.SIGKILL
    wait_for_end(children)
    assert not Path("run/summary.json").exists()
    shutil.copytree("run", "alone")

    assert script("sample", "checkpoint=run/checkpoints/step_000003.safetensors").code == 0
    training = read(Path("run/checkpoints/last.safetensors")).data["training"]
    assert len({*training["language_model"]["running_loss"]}) == 2  # of both processes
    said = train("torchrun", 2, "resume=run").succeeded()
    assert_same_weights("whole", "run")
    logs = [events(each).Scalars("train/loss") for each in ("whole", "run")]
    one, other = ([(event.step, event.value) for event in log] for log in logs)
    assert one == other

    said = train("lightning", 1, "resume=alone").succeeded()
    assert "processes   2 before, 1 now" in said.out
    assert summary("alone")["val_loss"] == pytest.approx(summary("whole")["val_loss"], rel=0.05)


@pytest.mark.parametrize(
    ("way", "receiver", "number", "code"),
    [
        ("lightning", "all", signal.SIGINT, 130),
        ("lightning", "first", signal.SIGTERM, 143),
        ("lightning", "other", signal.SIGTERM, 143),
        ("torchrun", "all", signal.SIGINT, 1),
    ],
)
def test_a_signal_to_any_process_saves_and_ends_all(way, receiver, number, code, tiny, script):
    running = start([*command(way, 2), *tiny, *ENDLESS, "trainer.val_every_steps=100000"])
    children = wait_for_steps(running, 1)
    time.sleep(0.5)  # between two validations
    if receiver == "all":
        os.killpg(running.pid, number)
    else:
        os.kill(running.pid if receiver == "first" else children[0].pid, number)
    ended = end(running)
    assert ended.code == code, ended.err
    assert ended.out.count("Saved at step ") == 1
    assert "Traceback" not in ended.err or way == "torchrun"
    wait_for_end(children)
    step = int(ended.out.split("Saved at step ")[1].split(".")[0].replace(",", ""))
    assert read(Path("outputs/run/checkpoints/last.safetensors")).step == step


@pytest.mark.parametrize("way", ["lightning", "torchrun"])
@pytest.mark.parametrize("receiver", [0, -1])
def test_a_second_signal_to_any_process_ends_all(way, receiver, tiny, script):
    running = start([*command(way, 2), *tiny, *ENDLESS, "trainer.accumulate=1500"])
    children = wait_for_steps(running, 1)
    trainers = [*[psutil.Process(running.pid)] * (way == "lightning"), *children]
    for _ in range(2):
        time.sleep(1.5)
        trainers[receiver].send_signal(signal.SIGTERM)
    assert end(running).code != 0
    wait_for_end(children)


@pytest.mark.parametrize("way", ["lightning", "torchrun"])
def test_a_crash_of_one_process_ends_all(way, tiny, script):
    running = start([*command(way, 2), *tiny, *ENDLESS])
    children = wait_for_steps(running, 8)
    children[-1].kill()
    ended = end(running)
    assert ended.code in (1, -signal.SIGKILL)  # Lightning kills it, if it does not end first
    line = "Error: another process of this run has ended unexpectedly; to continue from "
    # torchrun sends SIGTERM to the other process, which may arrive first.
    assert ended.err.count(line) == 1 or ended.code < 0 or "SIGTERM: " in ended.err
    wait_for_end(children)


@pytest.mark.parametrize("way", ["lightning", "torchrun"])
def test_an_error_is_printed_once(way, tiny, script):
    ended = train(way, 2, *tiny, "trainer.batch_size=9")
    assert ended.code == 1, ended.err
    [line] = [line for line in ended.err.splitlines() if line.startswith("Error: ")]
    assert "trainer.batch_size=9 is no multiple of 2 devices" in line
    assert not list(Path().glob("outputs/*"))


TORCHRUN = {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "LOCAL_RANK": "0"}
TORCHRUN |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
SRUN = slurm(2)[0]


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        (["-m", "seed=1,2"], TORCHRUN, "torchrun has started several processes, but a sweep is"),
        (["-m", "seed=1,2", "trainer.devices=2"], {}, "runs of a sweep and in Python train on one"),
        (["trainer.devices=0"], {}, "trainer.devices=0 must be at least 1"),
        # A rank outside the run, for example of an earlier run. Each starter counts differently.
        ([], {"LOCAL_RANK": "3"}, "LOCAL_RANK=3 must be below"),
        ([], TORCHRUN | {"RANK": "2"}, "RANK=2 must be below 2, the number of processes"),
        ([], SRUN | {"SLURM_PROCID": "2"}, "SLURM_PROCID=2 must be below"),
    ],
)
def test_impossible_processes_are_refused(words, environment, expected, script, tiny, monkeypatch):
    monkeypatch.setattr("headscope.cli.error_messages.REPORT_SECONDS", 0)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = script("train", *tiny, *words, "trainer.accelerator=cpu")
    assert said.code == 1
    assert expected in said.err
    if environment:
        assert said.err.count("\n") == 1
        assert not list(Path().iterdir())


@pytest.mark.parametrize("words", [[], ["-m", "seed=1,2"]])
def test_a_batch_script_of_slurm_without_srun_trains_alone(words, tiny):
    """It has all variables of a task, as if it were the first of four, but no step."""
    job = slurm(4)[0]
    del job["SLURM_STEP_ID"]
    said = end(start([sys.executable, SCRIPT, *words, *tiny, "trainer.max_steps=2"], **job))
    notes = [line for line in said.err.splitlines() if "SLURM_NTASKS=4" in line]
    assert said.code == 0, said.err
    assert len(notes) == (2 if words else 1)
    assert "srun" in notes[0]
    assert {summary(file.parent)["devices"] for file in Path().rglob("summary.json")} == {1}


def test_a_run_that_waits_for_another_machine_says_so(script):
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": SRUN["MASTER_PORT"]}
    both = TORCHRUN | address | {"LOCAL_WORLD_SIZE": "1"}
    words = [sys.executable, SCRIPT, *TINY, *STEPS, "hydra.run.dir=outputs/run"]
    first = start(words, **both)
    assert first.stderr is not None
    assert any("GLOBAL_RANK: 0, MEMBER: 1/2" in line for line in first.stderr)
    end(first, start(words, **both | {"RANK": "1", "GROUP_RANK": "1"})).succeeded()
    assert summary("outputs/run")["devices"] == 2
