"""Several processes train the same model as one process: real processes, connected by gloo."""

import json
import os
import shutil
import signal
import sys
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import opened
from many_processes import (
    TINY,
    command,
    end,
    start,
    train,
    wait_for_end,
    wait_for_steps,
)
from running import Script, events

from headscope.checkpoint import read

pytestmark = pytest.mark.slow

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

STEPS = [
    "trainer.max_steps=9",
    "trainer.val_every_steps=4",
    "trainer.accumulate=2",
    "optimizer=adamw",  # Muon may compute in bf16, which turns float error into larger differences
]
LITERAL = """prompt 'a', "b" = ${c} [d]"""


def figures(run: str | Path) -> dict[str, list[tuple[int, float]]]:
    """The losses that a run logged, with their steps."""
    log = events(str(run))
    return {
        tag: [(event.step, event.value) for event in log.Scalars(tag)]
        for tag in ("train/loss", "val/loss", "train/lr", "train/grad_norm")
    }


def summary(run: str | Path) -> dict:
    return json.loads((Path(run) / "summary.json").read_text())


def weights(run: str | Path) -> dict[str, torch.Tensor]:
    content = opened(Path(run) / "checkpoints" / "last.safetensors")
    return content["tensors"]


def assert_same_training(one: str | Path, other: str | Path) -> None:
    """Both runs have the same steps, and the same losses up to float error."""
    ours, theirs = figures(one), figures(other)
    for tag, values in ours.items():
        assert [step for step, _ in values] == [step for step, _ in theirs[tag]]
        np.testing.assert_allclose(
            [value for _, value in values], [value for _, value in theirs[tag]], rtol=2e-6
        )
    assert summary(one)["val_loss"] == pytest.approx(summary(other)["val_loss"], rel=2e-6)
    assert summary(one)["tokens"] == summary(other)["tokens"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, speeches: Path) -> Path:
    """A folder with the token store and with outputs/alone, a run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    with chdir(folder):
        words = [*TINY, *STEPS, f"data.path={speeches}"]
        ended = train("lightning", 1, *words, "hydra.run.dir=outputs/alone")
        assert (ended.code, ended.err) == (0, "")
    return folder


@pytest.mark.parametrize(
    ("way", "count", "strategy"),
    [
        ("torchrun", 2, "fsdp"),
        ("srun", 2, "auto"),
        ("lightning", 4, "ddp"),
    ],
)
def test_several_processes_train_as_one(
    way: str, count: int, strategy: str, alone: Path, speeches: Path, script: Script
) -> None:
    """One run folder, one console, one stream of logs and one checkpoint; literal values arrive in
    every process."""
    words = [
        *(*TINY, *STEPS, f"data.path={speeches}", f"store_dir={alone / 'data'}"),
        *("name=a = b@c", f"callbacks.samples.prompt={LITERAL}"),
        f"trainer.strategy={strategy}",
        # Only the first process watches and samples.
        *("callbacks.heads.every_steps=4", "callbacks.samples.max_new_tokens=4"),
    ]
    ended = train(way, count, *words)
    assert ended.code == 0, ended.err
    (run,) = Path("outputs").glob("a = b@c_*")
    assert {entry.name for entry in Path("outputs").iterdir()} == {"latest", run.name}
    assert len(list((run / "tensorboard").glob("events.*"))) == 2  # of training and of the summary
    assert_same_training(alone / "outputs" / "alone", run)
    assert summary(run)["devices"] == count
    for line in ("run  ", "step 9 of 9", "Validating on", "best_val_loss"):
        assert ended.out.count(line) == 1, line
    content = opened(run / "checkpoints" / "best.safetensors")
    assert content["config"]["callbacks"]["samples"]["prompt"] == LITERAL
    said = script("sample", f"checkpoint={run}", "max_new_tokens=5")
    assert said.code == 0, said.err
    # One process computes the same validation loss from this checkpoint. It is logged in float32.
    said = script("evaluate", f"checkpoint={run / 'checkpoints' / 'last.safetensors'}")
    assert json.loads(said.out)["loss_nats_per_token"] == pytest.approx(
        summary(run)["val_loss"], rel=1e-7
    )


def kill(*words: str) -> None:
    """Starts outputs/killed with two processes, and kills them."""
    killed = start([*command("lightning", 2), *words, "hydra.run.dir=outputs/killed"])
    children = wait_for_steps(killed, 7)
    for child in children:  # a process that does not run ends, too
        os.kill(child, signal.SIGSTOP)
    os.kill(killed.pid, signal.SIGKILL)
    assert end(killed).code == -9
    wait_for_end(children)
    assert not Path("outputs/killed/summary.json").exists()


def assert_usable(run: Path, script: Script) -> None:
    for name in ("last", "best", "step_000003"):
        said = script("sample", f"checkpoint={run}/checkpoints/{name}.safetensors")
        assert said.code == 0, said.err


KILLED = [
    *TINY,
    *("trainer.max_steps=20", "trainer.val_every_steps=5", "optimizer=adamw"),
    *("callbacks.save_every_minutes=0", "callbacks.keep_steps=[3]"),
]


@linux
def test_a_killed_run_continues_bit_by_bit(alone: Path, speeches: Path, script: Script) -> None:
    words = [*KILLED, f"data.path={speeches}", f"store_dir={alone / 'data'}", "model.dropout=0.1"]
    whole = train("lightning", 2, *words, "hydra.run.dir=outputs/whole")
    assert whole.code == 0, whole.err
    kill(*words)
    assert_usable(Path("outputs/killed"), script)
    shutil.copytree("outputs/killed", "outputs/one_process")
    same = train("torchrun", 2, "resume=outputs/killed")
    assert same.code == 0, same.err
    one, other = weights("outputs/whole"), weights("outputs/killed")
    assert all(torch.equal(one[name], other[name]) for name in one)
    # One process draws other numbers for dropout.
    said = script("train", "resume=outputs/one_process", "trainer.devices=1")
    assert said.code == 0, said.err
    assert "processes   2 before, 1 now" in said.out
    loss = summary("outputs/one_process")["val_loss"]
    assert loss == pytest.approx(summary("outputs/whole")["val_loss"], rel=0.05)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory, alone: Path, speeches: Path) -> Path:
    """The outputs of two runs with FSDP in two processes: `whole`, and `killed` halfway."""
    folder = tmp_path_factory.mktemp("sharded")
    words = [*KILLED, f"data.path={speeches}", f"store_dir={alone / 'data'}"]
    words.append("trainer.strategy=fsdp")
    with chdir(folder):
        whole = train("lightning", 2, *words, "hydra.run.dir=outputs/whole")
        assert whole.code == 0, whole.err
        kill(*words)
    return folder / "outputs"


@linux
def test_shards_of_a_killed_run_continue_bit_by_bit(sharded: Path, script: Script) -> None:
    shutil.copytree(sharded / "killed", "outputs/killed")
    assert list(Path("outputs/killed/checkpoints").glob("shards_*/*.safetensors"))
    assert_usable(Path("outputs/killed"), script)
    same = train("lightning", 2, "resume=outputs/killed")
    assert same.code == 0, same.err
    one, other = weights(sharded / "whole"), weights("outputs/killed")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not list(Path("outputs/killed/checkpoints").glob("shards_*"))


@linux
def test_shards_of_a_killed_run_continue_in_more_processes(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sharded / "killed", "outputs/more")
    more = train("lightning", 4, "resume=outputs/more", "trainer.devices=4")
    assert more.code == 0, more.err
    assert "processes   2 before, 4 now" in more.out
    assert_same_training(sharded / "whole", "outputs/more")


@linux
@pytest.mark.parametrize(
    ("way", "receiver", "number", "code"),
    [
        ("lightning", "all", signal.SIGINT, 130),
        ("lightning", "first", signal.SIGTERM, 143),
        ("lightning", "other", signal.SIGTERM, 143),
        ("torchrun", "all", signal.SIGINT, 1),
    ],
)
def test_a_signal_to_any_process_saves_and_ends_all(
    way: str,
    receiver: str,
    number: signal.Signals,
    code: int,
    alone: Path,
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY, f"data.path={speeches}", f"store_dir={alone / 'data'}"]
    words += ["trainer.max_steps=100000", "trainer.val_every_steps=20"]
    running = start([*command(way, 2), *words, "hydra.run.dir=outputs/run"])
    children = wait_for_steps(running, 3)
    if receiver == "all":
        os.killpg(running.pid, number)
    else:
        os.kill(running.pid if receiver == "first" else children[0], number)
    ended = end(running)
    assert ended.code == code, ended.err
    assert ended.out.count("Saved at step ") == 1
    assert "Traceback" not in ended.err or way == "torchrun"
    wait_for_end(children)
    step = int(ended.out.split("Saved at step ")[1].split(".")[0].replace(",", ""))
    assert read(Path("outputs/run/checkpoints/last.safetensors")).step == step


@linux
@pytest.mark.parametrize("way", ["lightning", "torchrun"])
def test_a_crash_of_one_process_ends_all(
    way: str, alone: Path, speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY, f"data.path={speeches}", f"store_dir={alone / 'data'}"]
    words += ["trainer.max_steps=100000", "trainer.val_every_steps=5"]
    running = start([*command(way, 2), *words, "hydra.run.dir=outputs/run"])
    children = wait_for_steps(running, 8)
    os.kill(children[-1], signal.SIGKILL)
    ended = end(running)
    assert ended.code == 1
    line = (
        "Error: another process of this run has ended unexpectedly, so the run ends; to continue:"
    )
    # torchrun sends SIGTERM to the other process, which may arrive first.
    assert ended.err.count(line) == 1 or (way == "torchrun" and "SIGTERM: " in ended.out)
    wait_for_end(children)


@pytest.mark.parametrize("way", ["lightning", "torchrun"])
def test_an_error_is_printed_once(
    way: str, speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = train(way, 2, *TINY, f"data.path={speeches}", "trainer.batch_size=9")
    assert ended.code == 1, ended.err
    lines = [line for line in ended.err.splitlines() if line.startswith("Error: ")]
    assert lines == [
        "Error: trainer.batch_size=9 must be a multiple of the number of devices (2): for "
        "example 8 or 10"
    ], ended.err
    assert not list(Path().glob("outputs/*"))


@pytest.mark.parametrize(
    ("way", "environment"),
    [
        ("torchrun", {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}),
        ("srun", {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_NAME": "gpt"}),
    ],
)
def test_a_sweep_is_one_process(
    way: str, environment: dict[str, str], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = script("train", *TINY, "-m", "seed=1,2")
    assert said.code == 1
    assert f"-m: {way} has started 2 processes, but a sweep is one process" in said.err
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-m", "seed=1,2", "trainer.devices=2"], "the runs of a sweep train on one device each"),
        (["trainer.num_nodes=2"], "trainer.num_nodes=2: start the run with srun or torchrun"),
        (["trainer.strategy=dp"], "trainer.strategy=dp must be one of"),
        (["trainer.devices=0"], "trainer.devices=0 must be auto, a number"),
        (["trainer.devices=5000"], "trainer.devices=5000: this machine has"),
    ],
)
def test_impossible_devices(
    script: Script, speeches: Path, words: list[str], expected: str
) -> None:
    said = script("train", *TINY, f"data.path={speeches}", *words, "trainer.accelerator=cpu")
    assert said.code == 1
    assert expected in said.err
