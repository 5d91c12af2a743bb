"""Laws of sweeps whose runs train in other processes, started for real, and of Optuna."""

import csv
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from many_processes import SCRIPT, SECONDS, TINY, Ended, end, start
from running import Script

from headscope.checkpoint import load
from headscope.cli import command_line
from headscope.training.run_folder import is_run

pytestmark = pytest.mark.slow

FOLDER = Path("outputs/sweep")


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file whose name has a meaning in Hydra's grammar."""
    monkeypatch.chdir(tmp_path)
    Path("a, $b=c.txt").write_text("".join(f"line {i} of the text\n" for i in range(400)))
    return "data.path=a, $b=c.txt"


def sweep_words(*words: str) -> list[str]:
    tiny = [word for word in TINY if not word.startswith("model.heads=")]
    return ["-m", *tiny, f"hydra.sweep.dir={FOLDER}", *words, "trainer.max_steps=2"]


def sweep(*words: str) -> Ended:
    return end(start([sys.executable, SCRIPT, *sweep_words(*words)]))


def rows() -> list[dict[str, str]]:
    with (FOLDER / "sweep.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_runs_in_parallel_share_tokens_and_one_failure_is_listed(
    launcher: str, text: str, script: Script
) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    ended = sweep(text, f"hydra/launcher={launcher}", "model.heads=2,3,4")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert ended.err.splitlines()[-1].startswith("  model.heads=3: ")
    assert "must be a multiple of heads=3" in ended.err.splitlines()[-1]
    assert len([path for path in Path("data").iterdir() if path.is_dir()]) == 1
    for run, heads in (("0", 2), ("2", 4)):
        model = load(FOLDER / run / "checkpoints/best.safetensors")
        assert model.config.model.heads == heads
        assert model.config.data.path == "a, $b=c.txt"
    table = rows()
    assert [row["state"] for row in table] == ["best", "finished", "failed"]
    assert float(table[0]["val_loss"]) <= float(table[1]["val_loss"])
    if launcher == "joblib":
        before = (FOLDER / "0/checkpoints/last.safetensors").stat().st_mtime_ns
        (FOLDER / "2/summary.json").unlink()  # as if the process had been killed
        said = script("train", *sweep_words(text, "model.heads=2,3,4"))  # by another launcher
        assert said.code == 1
        assert rows() == table
        assert (FOLDER / "0/checkpoints/last.safetensors").stat().st_mtime_ns == before
        assert "already finished" in said.out
        assert "at step 2 of 2" in said.out


def test_a_failed_trial_does_not_end_the_study(text: str) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    ended = sweep(
        text,
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=6",
        "optimizer.lr=interval(0.001,0.01)",
        "model.heads=choice(2,3)",
    )
    assert ended.code == 1
    assert "Traceback" not in ended.err
    table = rows()
    assert len(table) == 6
    assert {row["state"] for row in table} == {"best", "finished", "failed"}
    assert all((row["state"] == "failed") == (row["model.heads"] == "3") for row in table)
    assert all(0.001 <= float(row["optimizer.lr"]) <= 0.01 for row in table)


def test_another_launcher_continues_the_same_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["train.py", "-m", *words])
        return command_line._command_line_id()

    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert identity("seed=1,2", *launcher) == identity("seed=1,2") != identity("seed=1,3")


def test_ctrl_c_saves_the_runs_in_other_processes(text: str) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = [*TINY, text, "trainer.max_steps=1000000", "trainer.val_every_steps=20"]
    launcher = ["seed=1,2", "hydra/launcher=joblib", f"hydra.sweep.dir={FOLDER}"]
    running = start([sys.executable, SCRIPT, "-m", *words, *launcher])
    logs = [FOLDER / "0.log", FOLDER / "1.log"]
    wait_until(lambda: all(log.exists() and "step 20 " in log.read_text() for log in logs))
    os.killpg(running.pid, signal.SIGINT)
    ended = end(running)
    assert ended.code == 130
    assert ended.err.splitlines() == [
        "Stopped by SIGINT.",
        "The runs finish their current step and save. To continue: the same command",
    ]
    wait_until(lambda: all("Saved at step " in log.read_text() for log in logs))
    assert all(is_run(log.with_suffix("")) for log in logs)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("choice", ["hydra/launcher=slurm", "hydra/sweeper=optuna"])
def test_a_missing_extra_is_one_line(choice: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['hydra_plugins'] = None")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = end(start([sys.executable, SCRIPT, "-m", "seed=1,2", choice], PYTHONPATH=paths))
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    key = choice.replace("=slurm", "=submitit_slurm")
    assert ended.err == f"Error: {key} is not installed: pip install -e '.[sweeps]'\n"
