"""Runs that end early: by a signal or a kill, out of memory, or with a full disk."""

import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import pytest
import torch
from checkpoint_files import assert_same_weights, opened
from filelock import FileLock
from kill_runs import differences, fast_loader, saved, slow_loader
from running import DRAWN, ROOT, SMALL, Script, events, summary

from headscope.errors import UserError
from headscope.files import write_atomically
from headscope.training.checkpoint_io import SafetensorsIO, copy_checkpoint
from headscope.training.module import LanguageModel

RUN = [*SMALL, "callbacks.heads.windows=1", "trainer.val_batch_size=2", "trainer.batch_size=2"]


def with_action(method: str, step: int, action: Callable[[], object]) -> Callable:
    """A method of `LanguageModel` that calls `action` once, at the second batch of a step."""
    original, results = getattr(LanguageModel, method), []

    def wrapped(module: LanguageModel, batch: tuple, batch_idx: int) -> torch.Tensor:
        if module.global_step == step and batch_idx > 0 and not results:
            results.append(action())
        return original(module, batch, batch_idx)

    return wrapped


@pytest.mark.slow
def test_a_stopped_run_equals_an_uninterrupted_one(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        *(*RUN, f"data.path={speeches}", "model.dropout=0.1", "trainer.accumulate=2"),
        *("trainer.max_steps=13", "trainer.val_every_steps=6", "trainer.log_every_steps=4"),
        "callbacks.heads.every_steps=5",
    ]
    assert script("train", *words, "hydra.run.dir=outputs/whole").code == 0
    given = [*words, "hydra.run.dir=outputs/run"]
    stops = [
        ("training_step", 3, signal.SIGTERM),  # saved at a logged step
        ("validation_step", 6, signal.SIGHUP),  # the next session repeats the validation
        ("training_step", 8, signal.SIGINT),
        ("validation_step", 13, signal.SIGTERM),  # after the last step
    ]
    for method, step, number in stops:
        with monkeypatch.context() as patch:
            stopped = with_action(method, step, lambda number=number: signal.raise_signal(number))
            patch.setattr(LanguageModel, method, stopped)
            said = script("train", *given)
        assert said.code == 128 + number, said.err
        assert f"{signal.Signals(number).name}: finishing the current step" in said.err
        command = f"python {quote(str(ROOT / 'scripts' / 'train.py'))} resume=outputs/run"
        assert f"To continue: {command}" in said.out
        assert "Traceback" not in said.err
        after = step + (method == "training_step")
        assert opened("outputs/run/checkpoints/last.safetensors")["step"] == after
        assert not Path("outputs/run/summary.json").exists()
        given = ["resume=outputs/run"]
    said = script("train", *given)
    assert said.code == 0, said.err
    whole, stopped = Path("outputs/whole"), Path("outputs/run")
    assert differences(saved(whole), saved(stopped)) == []
    shown = slow_loader(whole)
    assert [step for step, _ in shown["train/loss"]] == [1, 4, 8, 12]
    assert len(shown["custom_scalars__config__"]) == 1
    assert differences(shown, slow_loader(stopped)) == []


@pytest.mark.slow
def test_a_resumed_run_is_shown_whatever_the_clock_and_the_event_files_say(
    script: Script, speeches: Path
) -> None:
    words = [*RUN, f"data.path={speeches}", "trainer.log_every_steps=1"]
    assert script("train", *words, "trainer.max_steps=4", "hydra.run.dir=outputs/run").code == 0
    logs = Path("outputs/run/tensorboard")
    for steps in (6, 8):
        for file in logs.glob("events.*"):  # as written by a clock that was an hour ahead
            start, second, rest = re.fullmatch(r"(\D+)(\d+)(.*)", file.name).groups()
            file.rename(logs / f"{start}{int(second) + 3600}{rest}")
        assert script("train", "resume=outputs/run", f"trainer.max_steps={steps}").code == 0
        for shown in (
            slow_loader(Path("outputs/run")),
            fast_loader(Path("outputs"))[str(logs)[8:]],
        ):
            assert [step for step, _ in shown["train/loss"]] == [*range(1, steps + 1)]
            assert [step for step, _ in shown["val/loss"]] == [4, 6, 8][: steps // 2 - 1]
    for file in logs.glob("events.*"):
        file.write_bytes(b"")
    assert script("train", "resume=outputs/run", "trainer.max_steps=10").code == 0
    shown = slow_loader(Path("outputs/run"))
    assert [step for step, _ in shown["train/loss"]] == [9, 10]
    assert len(shown["custom_scalars__config__"]) == 1


KILLED = f"""
import runpy, sys
sys.path.append({str(ROOT / "tests")!r})
from kill_runs import die_in

place, count, *sys.argv = sys.argv[1:]
die_in(place, int(count))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_run_killed_four_times_equals_an_uninterrupted_one(
    script: Script, speeches: Path
) -> None:
    arguments = [
        *(*SMALL, f"data.path={speeches}", "model.dropout=0.1", "trainer.accumulate=2"),
        *("trainer.max_steps=40", "trainer.val_every_steps=10", "callbacks.saving.every_minutes=0"),
    ]
    assert script("train", *arguments, "hydra.run.dir=outputs/whole").code == 0
    moments = [
        ("training_step", "21"),
        ("validation_step", "2"),
        ("half a checkpoint", "2"),
        ("training_step", "4"),
    ]
    words = [*arguments, "hydra.run.dir=outputs/killed"]
    for moment in moments:
        script_file = str(ROOT / "scripts" / "train.py")
        command = [sys.executable, "-c", KILLED, *moment, script_file, *words]
        killed = subprocess.run(command, capture_output=True, text=True)
        assert killed.returncode == -9, killed.stderr
        words = ["resume=outputs/killed"]
    hydra = Path("outputs/killed/.hydra")
    before = {file.name: file.read_bytes() for file in hydra.iterdir()}
    said = script("train", "resume=outputs/killed")
    assert said.code == 0, said.err
    assert_same_weights("outputs/whole", "outputs/killed")
    assert {file.name: file.read_bytes() for file in hydra.iterdir()} == before
    whole, resumed = summary("outputs/whole"), summary("outputs/killed")
    for same in ("val_loss", "best_val_loss", "steps", "tokens"):
        assert whole[same] == resumed[same]
    assert resumed["wall_seconds"] > resumed["train_seconds"]

    # TensorBoard shows every validation once and in order.
    steps = [event.step for event in events("outputs/killed").Scalars("val/loss")]
    assert steps == [10, 20, 30, 40]


@pytest.mark.slow
def test_early_stopping_survives_a_kill_and_accepts_a_new_patience(
    script: Script, speeches: Path
) -> None:
    words = [*SMALL, *DRAWN, f"data.path={speeches}", "optimizer.lr=0", "optimizer.matrix_lr=0"]
    words += ["trainer.val_every_steps=2", "trainer.max_steps=30", "hydra.run.dir=outputs/run"]
    words += ["callbacks.saving.keep_steps=[0,30]"]
    said = script("train", *words, "callbacks.early_stopping.patience=2")
    assert said.code == 0, said.err
    assert "stopped early: 2 validations without a new best" in said.out
    assert summary("outputs/run")["steps"] == 6
    log = events("outputs/run")
    tag = next(tag for tag in log.Tags()["images"] if tag.startswith("attention/layer_0 "))
    assert [event.step for event in log.Images(tag)][-1] == 6
    [kept] = Path("outputs/run/checkpoints").glob("step_*")  # only those that were asked for
    assert kept.name == "step_000000.safetensors"

    again = script("train", "resume=outputs/run")
    assert again.code == 0, again.err
    assert "a larger callbacks.early_stopping.patience=" in again.out
    assert summary("outputs/run")["steps"] == 6
    Path("outputs/run/summary.json").unlink()  # as if the process had been killed
    assert script("train", "resume=outputs/run").code == 0
    assert summary("outputs/run")["steps"] == 6
    more = script("train", "resume=outputs/run", "callbacks.early_stopping.patience=4")
    assert more.code == 0, more.err
    assert summary("outputs/run")["steps"] == 10


def test_a_run_without_a_checkpoint_starts_again(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=2", "hydra.run.dir=outputs/run"]
    assert script("train", *words).code == 0
    for file in ("last", "best"):
        Path(f"outputs/run/checkpoints/{file}.safetensors").unlink()
    Path("outputs/run/checkpoints/step_000000.safetensors").touch()
    Path("outputs/run/mine.txt").write_text("the user's own file")
    before = set(Path("outputs/run/tensorboard").glob("events*"))
    assert "is not a run" in script("train", "resume=outputs/run").err
    assert script("train", *words).code == 0
    assert not before & set(Path("outputs/run/tensorboard").iterdir())
    for mine in ("checkpoints/step_000000.safetensors", "mine.txt"):
        assert Path("outputs/run", mine).exists()
    assert [event.step for event in events("outputs/run").Scalars("val/loss")] == [2]

    # Another process cannot train the same run at the same time.
    with FileLock("outputs/run/.lock"):
        said = script("train", "resume=outputs/run", "trainer.max_steps=4")
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert "is used by another process" in said.err

    # A different number of threads causes a warning.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    said = script("train", "resume=outputs/run", "trainer.max_steps=4")
    assert said.code == 0, said.err
    assert re.search(r"\d before, 99 now: the weights will differ in their last bits", said.out)
    assert "the learning rate schedule now covers the new number of steps" in said.out


def test_out_of_memory_is_reported_in_one_line(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=6", "trainer.val_every_steps=2"]
    with monkeypatch.context() as patch:
        too_much = with_action("training_step", 4, lambda: torch.empty(2**48))
        patch.setattr(LanguageModel, "training_step", too_much)
        said = script("train", *words, "hydra.run.dir=outputs/run")
    assert said.code == 1
    assert said.err.startswith("Error: out of memory after step 4: lower trainer.batch_size=2")
    assert said.err.count("\n") == 1
    assert script("train", "resume=outputs/run").code == 0


@pytest.fixture
def small_files() -> object:
    """Limits the size of new files to 4 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("before", [True, False])
def test_a_failed_write_leaves_no_partial_file_and_reports_the_free_space(
    small_files: None, before: bool, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    if before:
        target.write_text("as before")
    content = {"state_dict": {"x": torch.zeros(10_000)}, "global_step": 1}

    def fails(write: Callable[[], None], size: str) -> None:
        with pytest.raises(UserError, match=re.escape(str(target))) as caught:
            write()
        assert "File too large" in str(caught.value)
        assert size in str(caught.value)
        assert "free" in str(caught.value)
        assert {path.name for path in tmp_path.iterdir()} == ({"target"} if before else set())
        if before:
            assert target.read_text() == "as before"

    fails(lambda: write_atomically(target, "x" * 9999), "9,999 bytes")
    fails(lambda: SafetensorsIO({}).save_checkpoint(content, target), "at least 40,")
    (tmp_path / "file").touch()
    inside = tmp_path / "file" / "last.safetensors"
    with pytest.raises(UserError, match=re.escape(f"{inside} could not be written")):
        copy_checkpoint(tmp_path / "file", inside)
    with pytest.raises(UserError, match=re.escape(f"{inside} could not be written")):
        SafetensorsIO({}).save_checkpoint(content, inside)


@pytest.mark.parametrize("kept", ["nothing", "mine", "checkpoint"])
def test_a_full_disk_before_the_first_checkpoint_leaves_no_files(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:  # the disk has no room for a checkpoint
        if kept == "mine":
            Path("outputs/run/mine.txt").touch()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))

    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=8", "trainer.val_every_steps=4"]
    monkeypatch.setattr(
        LanguageModel,
        "training_step",
        with_action("training_step", 5 if kept == "checkpoint" else 2, fill),
    )
    try:
        said = script("train", *words, "hydra.run.dir=outputs/run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert "bytes are free there" in said.err
    left = {file.name for file in Path("outputs").glob("run/*")}
    expected = {
        "nothing": set(),
        "mine": {"mine.txt", ".hydra", ".lock", "train.log"},
        "checkpoint": {".hydra", ".lock", "train.log", "checkpoints", "tensorboard"},
    }
    assert left == expected[kept]
    assert Path("outputs/run").exists() == bool(left)


def test_a_run_whose_folder_is_deleted_says_so(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=8", "trainer.val_every_steps=4"]
    deleted = with_action("training_step", 2, lambda: shutil.rmtree("outputs/run"))
    monkeypatch.setattr(LanguageModel, "training_step", deleted)
    said = script("train", *words, "hydra.run.dir=outputs/run")
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert re.search(r"^Error: \S*outputs/run: .*start the run again", said.err)
    assert "b'" not in said.err
