"""Runs that end early: by a signal or a kill, out of memory, or with a full disk."""

import re
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import chdir
from functools import cache
from pathlib import Path
from shlex import quote

import pytest
import torch
from checkpoint_files import assert_same_weights, opened
from filelock import FileLock
from kill_runs import BOUNDARIES, differences, fast_loader, saved, session, slow_loader, wait
from many_processes import TINY
from refusals import refused
from running import ROOT, SMALL, events, summary

import headscope
from headscope.analysis.metrics import METRICS
from headscope.analysis.repeats import REPEAT_METRICS
from headscope.errors import UserError
from headscope.files import write_atomically
from headscope.training.checkpoint_io import SafetensorsIO, copy_checkpoint
from headscope.training.module import LanguageModel
from headscope.training.run_folder import is_run

RUN = [*SMALL, "callbacks.heads.windows=1", "trainer.val_batch_size=2", "trainer.batch_size=2"]
HERE = "hydra.run.dir=outputs/run"


def with_action(method, step, action):
    """A method of `LanguageModel` that calls `action` once, at the second batch of a step."""
    original, results = getattr(LanguageModel, method), []

    def wrapped(module, batch, batch_idx):
        if module.global_step == step and batch_idx > 0 and not results:
            results.append(action())
        return original(module, batch, batch_idx)

    return wrapped


@pytest.mark.slow
def test_a_stopped_run_equals_an_uninterrupted_one(script, speeches, monkeypatch):
    words = [
        *(*RUN, f"data.path={speeches}", "model.dropout=0.1", "trainer.accumulate=2"),
        *("trainer.max_steps=13", "trainer.val_every_steps=6", "trainer.log_every_steps=4"),
        "callbacks.heads.every_steps=5",
    ]
    headscope.train([*words, "hydra.run.dir=outputs/whole"])
    given = [*words, HERE]
    for method, step, number in (
        ("training_step", 3, signal.SIGTERM),  # saved at a logged step
        ("validation_step", 6, signal.SIGHUP),  # the next session repeats the validation
        ("training_step", 8, signal.SIGINT),
        ("validation_step", 13, signal.SIGTERM),  # after the last step
    ):
        with monkeypatch.context() as patch:
            stopped = with_action(method, step, lambda number=number: signal.raise_signal(number))
            patch.setattr(LanguageModel, method, stopped)
            said = script("train", *given)
        assert said.code == 128 + number, said.err
        assert f"{number.name}: finishing the current step" in said.err
        command = f"python {quote(str(ROOT / 'scripts' / 'train.py'))} resume=outputs/run"
        assert f"To continue: {command}" in said.out
        assert "Traceback" not in said.err
        after = step + (method == "training_step")
        assert opened("outputs/run/checkpoints/last.safetensors")["step"] == after
        assert not Path("outputs/run/summary.json").exists()
        given = ["resume=outputs/run"]
    headscope.train(given)
    whole, stopped = Path("outputs/whole"), Path("outputs/run")
    assert differences(saved(whole), saved(stopped)) == []
    shown = slow_loader(whole)
    assert [step for step, _ in shown["train/loss"]] == [1, 4, 8, 12]
    assert len(shown["custom_scalars__config__"]) == 1
    assert differences(shown, slow_loader(stopped)) == []


@pytest.mark.slow
def test_a_resumed_run_is_shown_whatever_the_clock_and_the_event_files_say(script, speeches):
    words = [*RUN, f"data.path={speeches}", "trainer.log_every_steps=1", "trainer.max_steps=4"]
    headscope.train([*words, HERE])
    run, logs = Path("outputs/run"), Path("outputs/run/tensorboard")
    for steps in (6, 8):
        for file in logs.glob("events.*"):  # as written by a clock that was an hour ahead
            start, second, rest = re.fullmatch(r"(\D+)(\d+)(.*)", file.name).groups()
            file.rename(logs / f"{start}{int(second) + 3600}{rest}")
        headscope.train(["resume=outputs/run", f"trainer.max_steps={steps}"])
        for shown in (slow_loader(run), fast_loader(Path("outputs"))["run/tensorboard"]):
            assert [step for step, _ in shown["train/loss"]] == [*range(1, steps + 1)]
            assert [step for step, _ in shown["val/loss"]] == [4, 6, 8][: steps // 2 - 1]
    for file in logs.glob("events.*"):
        file.write_bytes(b"")
    headscope.train(["resume=outputs/run", "trainer.max_steps=10"])
    shown = slow_loader(run)
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
def test_a_run_killed_four_times_equals_an_uninterrupted_one(script, speeches):
    """Also if the newest checkpoint is then damaged, and the run continues from the best one."""
    words = [
        *(*SMALL, f"data.path={speeches}", "model.dropout=0.1", "trainer.accumulate=2"),
        *("trainer.max_steps=40", "trainer.val_every_steps=10", "callbacks.saving.every_minutes=0"),
    ]
    headscope.train([*words, "hydra.run.dir=outputs/whole"])
    words.append(HERE)
    moments = [("training_step", "21"), ("validation_step", "2"), ("half a checkpoint", "2")]
    for moment in (*moments, ("training_step", "4")):
        command = [sys.executable, "-c", KILLED, *moment, str(ROOT / "scripts" / "train.py")]
        killed = subprocess.run([*command, *words], capture_output=True, text=True)
        assert killed.returncode == -9, killed.stderr
        words = ["resume=outputs/run"]
    last = Path("outputs/run/checkpoints/last.safetensors")
    last.write_bytes(last.read_bytes()[:-1000])
    Path("outputs/run/summary.json").write_text('{"steps": ')  # damaged, so it counts as missing
    hydra = Path("outputs/run/.hydra")
    before = {file.name: file.read_bytes() for file in hydra.iterdir()}
    said = script("train", *words).succeeded()
    assert re.search(r"best.safetensors instead, of step \d0", said.out)
    assert_same_weights("outputs/whole", "outputs/run")
    assert {file.name: file.read_bytes() for file in hydra.iterdir()} == before
    whole, resumed = summary("outputs/whole"), summary("outputs/run")
    for same in ("val_loss", "best_val_loss", "steps", "tokens"):
        assert whole[same] == resumed[same]
    assert resumed["wall_seconds"] > resumed["train_seconds"]
    # TensorBoard shows every validation once and in order.
    assert [event.step for event in events("outputs/run").Scalars("val/loss")] == [10, 20, 30, 40]


EMA = "+callbacks.ema._target_=lightning.pytorch.callbacks.EMAWeightAveraging"
MOMENTS = {"the last step": ("training_step", 8)} | {each: (each, 1) for each in BOUNDARIES}
MOMENTS["a hold begins"] = ("training_step", 5)

EVERY_CALLBACK = [
    *(*TINY[:-1], "data=repeats", "data.characters=4000", "model.dropout=0.1"),
    *("trainer.max_steps=8", "trainer.val_every_steps=3"),
    *("callbacks.hold.heads=[L1H0]", "callbacks.hold.by=mean", "callbacks.hold.from_step=3"),
    "+callbacks.zero={_target_:headscope.Hold,heads:[L0H0]}",
    "+callbacks.kept={_target_:headscope.Hold,heads:[L0H1],feed_forward:[1],by:frozen,from_step:2}",
    *("callbacks.attention.steps=4", "callbacks.attention.images=3"),
    *("callbacks.heads.every_steps=5", "callbacks.samples.max_new_tokens=5"),
]
STOPPED_EARLY = [
    *("callbacks.early_stopping.patience=1", "optimizer=adamw", "optimizer.lr=1"),
    "trainer.max_steps=40",
]
EVERY_METRIC = ["model.block_size=32", "+callbacks.heads.metrics.own._target_=my_parts.own"]

OWN = "def own(weights, tokens):\n    return weights[..., tokens == 97].sum(-1).mean(-1)\n"


def trained(words, *killed_in):
    """Trains in a forked process, in the current folder. Returns what it printed, or None if it was
    killed as it should be."""
    Path("my_parts.py").write_text(OWN)
    code, said = wait(session(words, Path("log"), *killed_in)), Path("log").read_text()
    assert code == (-signal.SIGKILL if killed_in else 0), said
    return said


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of the uninterrupted run of a command line, which is trained once."""

    @cache
    def folder(*words):
        with chdir(tmp_path_factory.mktemp("whole")):
            trained([*words, HERE])
            return Path("outputs/run").absolute()

    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "moment"),
    [
        *(([], moment) for moment in MOMENTS if moment != "early stop"),
        *((STOPPED_EARLY, moment) for moment in BOUNDARIES),
        *(([EMA], moment) for moment in ("the last step", "final validation")),
        *((EVERY_METRIC, moment) for moment in ("final validation", "measuring")),
    ],
)
def test_a_run_killed_between_two_of_its_parts_equals_an_uninterrupted_one(
    uninterrupted, more, moment
):
    words, run = [*EVERY_CALLBACK, *more], Path("outputs/run")
    trained([*words, HERE], *MOMENTS[moment])
    assert not (run / "summary.json").exists()
    resumed = is_run(run)
    assert resumed == (moment != "before the first step")
    again = ["resume=outputs/run", "parts=my_parts.py", *[EMA] * (EMA in more)]
    trained(again if resumed else [*words, HERE])
    whole = uninterrupted(*words)
    if more == EVERY_METRIC:
        text = saved(whole)["heads"]
        assert all(f'"{name}"' in text for name in (*METRICS, *REPEAT_METRICS, "own"))
    assert differences(saved(whole), saved(run)) == []
    assert differences(slow_loader(whole), slow_loader(run)) == []


@pytest.mark.slow
def test_early_stopping_survives_a_kill_and_accepts_a_new_patience(script, speeches):
    words = [*SMALL, f"data.path={speeches}", "optimizer.lr=0", "optimizer.matrix_lr=0"]
    words += ["trainer.val_every_steps=2", "trainer.max_steps=30", HERE]
    said = script("train", *words, "callbacks.early_stopping.patience=2")
    assert "stopped early: 2 validations without a new best" in said.out
    assert summary("outputs/run")["steps"] == 6
    again = script("train", "resume=outputs/run")
    assert "a larger callbacks.early_stopping.patience=" in again.out
    Path("outputs/run/summary.json").unlink()  # as if the process had been killed
    assert headscope.train(["resume=outputs/run"]).summary["steps"] == 6
    more = ["resume=outputs/run", "callbacks.early_stopping.patience=4"]
    assert headscope.train(more).summary["steps"] == 10


def test_a_run_without_a_checkpoint_starts_again(script, speeches, monkeypatch):
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=2", HERE, "callbacks=plain"]
    run = headscope.train(words).folder
    for file in ("last", "best"):
        (run / f"checkpoints/{file}.safetensors").unlink()
    for mine in ("checkpoints/step_000000.safetensors", "mine.txt"):
        (run / mine).write_text("the user's own file")
    before = set((run / "tensorboard").glob("events*"))
    with pytest.raises(UserError, match="is not a run"):
        headscope.train([f"resume={run}"])
    headscope.train(words)
    assert not before & set((run / "tensorboard").iterdir())
    for mine in ("checkpoints/step_000000.safetensors", "mine.txt"):
        assert (run / mine).read_text() == "the user's own file"
    assert [event.step for event in events(run).Scalars("val/loss")] == [2]
    with FileLock(run / ".lock"), pytest.raises(UserError, match="is used by another process"):
        headscope.train([f"resume={run}", "trainer.max_steps=4"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    said = script("train", f"resume={run}", "trainer.max_steps=4").succeeded()
    assert re.search(r"\d before, 99 now: the weights will differ in their last bits", said.out)
    assert "the learning rate schedule now covers the new number of steps" in said.out


def fill():
    """The disk has no room for a checkpoint."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))


def fill_beside_a_file():
    Path("outputs/run/mine.txt").touch()
    fill()


OF_A_RUN = {".hydra", ".lock", "train.log"}


@pytest.mark.parametrize(
    ("step", "action", "message", "left"),
    [
        (5, lambda: torch.empty(2**48), "out of memory after step 5: lower trainer.batch_", "run"),
        (2, lambda: shutil.rmtree("outputs/run"), "outputs/run: .*start the run again", set()),
        (2, fill, "bytes are free there", set()),
        (2, fill_beside_a_file, "bytes are free there", {"mine.txt", *OF_A_RUN}),
        (5, fill, "bytes are free there", {"checkpoints", "tensorboard", *OF_A_RUN}),
    ],
)
def test_a_run_that_cannot_go_on_says_why_in_one_line(
    script, speeches, monkeypatch, step, action, message, left
):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=8", "trainer.val_every_steps=4"]
    with monkeypatch.context() as patch:
        acting = with_action("training_step", step, action)
        patch.setattr(LanguageModel, "training_step", acting)
        said = script("train", *words, HERE)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert re.search(message, said.err)
    assert "b'" not in said.err
    if left == "run":
        assert headscope.train(["resume=outputs/run"]).summary["steps"] == 8
    else:
        assert {file.name for file in Path("outputs").glob("run/*")} == left
        assert Path("outputs/run").exists() == bool(left)


def test_a_failed_write_leaves_no_partial_file_and_reports_the_free_space(tmp_path):
    content = {"state_dict": {"x": torch.zeros(10_000)}, "global_step": 1}
    writers = {
        "9,999 bytes": lambda path: write_atomically(path, "x" * 9999),
        "at least 40,": lambda path: SafetensorsIO({}).save_checkpoint(content, path),
    }
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("as before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for target in (old, new):
        for size, write in writers.items():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
            try:
                with refused(target, "File too large", size, "free"):
                    write(target)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert [*tmp_path.iterdir()] == [old]
            assert old.read_text() == "as before"
    inside = old / "last.safetensors"  # in a file, and not in a folder
    for write in (*writers.values(), lambda path: copy_checkpoint(old, path)):
        with refused(f"{inside} could not be written"):
            write(inside)
