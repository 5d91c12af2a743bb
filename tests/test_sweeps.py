"""Laws of sweeps: in this process, in other processes, started for real, and of Optuna."""

import csv
import os
import re
import signal
import statistics
import sys
from pathlib import Path

import psutil
import pytest
from choices import slow_unless
from many_processes import SCRIPT, SECONDS, TINY, end, start
from running import Said, until

from headscope.cli import sweeps
from headscope.trained import load
from headscope.training.run_folder import is_run

FOLDER = Path("outputs/sweep")
SHORT = [*(word for word in TINY if not word.startswith("model.heads=")), "trainer.max_steps=2"]


@pytest.fixture(autouse=True)
def text(tmp_path, monkeypatch):
    """A file whose name has a meaning in Hydra's grammar."""
    monkeypatch.chdir(tmp_path)
    Path("a, $b=c.txt").write_text("".join(f"line {i} of the text\n" for i in range(400)))
    Path("words.txt").write_text("words of another text\n" * 400)
    return 'data.path="a, $b=c.txt"'


def sweep(*words: str, **environment: str) -> Said:
    return end(start([sys.executable, SCRIPT, "-m", *words], **environment))


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("launcher", slow_unless(["basic"], ["basic", "joblib", "submitit_local"]))
def test_runs_share_tokens_and_the_same_command_continues(launcher, text, script):
    """A failure is listed."""
    words = [*SHORT, text, "model.heads=2,3,4,two"]
    if launcher == "basic":
        ended = script("train", "-m", *words)
    else:
        pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
        ended = sweep(*words, f"hydra/launcher={launcher}")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    built, composed = ended.err.splitlines()[-2:]
    assert built.startswith("  model.heads=3: ")
    assert "must be a multiple of heads=3" in built
    assert composed == "  model.heads=two: model.heads=two must be an integer"
    assert len([path for path in Path("data").iterdir() if path.is_dir()]) == 1
    [folder] = Path("outputs").glob("gpt_multirun_*")
    assert {path.name for path in folder.iterdir() if path.is_dir() and is_run(path)} == {"0", "2"}
    for run, heads in (("0", 2), ("2", 4)):
        config = load(folder / run / "checkpoints/best.safetensors").config
        assert (config.model.heads, config.data.path) == (heads, "a, $b=c.txt")
    table = rows(folder)
    assert sorted(row["state"] for row in table) == ["best", "failed", "failed", "finished"]
    assert float(table[0]["val_loss"]) <= float(table[1]["val_loss"])

    before = (folder / "0/checkpoints/last.safetensors").stat().st_mtime_ns
    (folder / "2/summary.json").unlink()  # as if the process had been killed
    said = script("train", "-m", *words)  # perhaps by another launcher
    assert said.code == 1
    assert rows(folder) == table
    assert (folder / "0/checkpoints/last.safetensors").stat().st_mtime_ns == before
    assert f"{folder}/0 is already finished" in said.out
    assert "at step 2 of 2" in said.out
    assert script("train", "-m", *SHORT, text, "model.heads=2").code == 0  # another sweep
    assert len(list(Path("outputs").glob("gpt_multirun_*"))) == 2


def test_commas_separate_texts_and_a_repetition_with_other_settings_changes_no_result(text, script):
    words = ["-m", *SHORT, "model.heads=2", f"hydra.sweep.dir={FOLDER}"]
    assert script("train", *words, f"{text},words.txt").code == 0
    table = {row["run"]: row["data.path"] for row in rows(FOLDER)}
    assert table == {"0": "a, $b=c.txt", "1": "words.txt"}
    for run, path in table.items():
        assert load(FOLDER / run / "checkpoints/best.safetensors").config.data.path == path
    before = (FOLDER / "sweep.csv").read_bytes()
    said = script("train", *words, text.replace("=", "=words.txt,", 1))
    assert said.code == 1
    assert re.fullmatch("Error: .* holds a run with other settings of data: .*\n", said.err)
    assert (FOLDER / "sweep.csv").read_bytes() == before
    assert not (FOLDER / "0" / "error.txt").exists()


def test_a_report_has_the_runs_of_its_sweep_also_if_others_are_in_the_same_folder(text, script):
    script("train", *SHORT, "data.path=words.txt", "hydra.run.dir=outputs/alone").succeeded()
    subdir = "hydra.sweep.subdir='heads/${hydra.job.num}'"
    for words in ("seed=1,2", "seed=3,4 hydra.sweep.dir=outputs/other", f"seed=5,6 {subdir}"):
        given = [] if "sweep.dir" in words else ["hydra.sweep.dir=outputs"]
        script("train", "-m", *SHORT, text, "model.heads=2", *words.split(), *given).succeeded()
    assert {row["run"] for row in rows(Path("outputs/other"))} == {"0", "1"}
    assert {row["seed"] for row in rows(Path("outputs"))} == {"1", "2", "5", "6"}


def test_a_run_whose_process_ended_at_once_is_reported(text, script, monkeypatch):
    monkeypatch.setattr(sweeps, "run_one", lambda task, config: None)
    said = script("train", "-m", *SHORT, text, "seed=1,2", "hydra.sweep.subdir='s_${seed}'")
    assert (said.code, said.err.count("its process ended")) == (1, 2)
    [table] = Path("outputs").glob("*/sweep.csv")
    assert [row["state"] for row in rows(table.parent)] == ["unfinished"] * 2


@pytest.mark.slow
def test_a_failed_trial_does_not_end_the_study(text):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    words = ["hydra/sweeper=study", "hydra.sweeper.n_trials=6", f"hydra.sweep.dir={FOLDER}"]
    words += ["optimizer.lr=interval(0.001,0.01)", "model.heads=choice(2,3)"]
    ended = sweep(*SHORT, text, *words)
    assert ended.code == 1
    assert "Traceback" not in ended.err
    table = rows(FOLDER)
    assert len(table) == 6
    assert {row["state"] for row in table} == {"best", "finished", "failed"}
    assert all((row["state"] == "failed") == (row["model.heads"] == "3") for row in table)
    assert all(0.001 <= float(row["optimizer.lr"]) <= 0.01 for row in table)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_saves_the_runs_of_joblib(text, jobs):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = [*TINY, text, "trainer.max_steps=1000000", "trainer.val_every_steps=20"]
    launcher = ["seed=1,2", "hydra/launcher=joblib", f"hydra.sweep.dir={FOLDER}"]
    launcher += [f"hydra.launcher.n_jobs={jobs}"]
    running = start([sys.executable, SCRIPT, "-m", *words, *launcher])
    runs = [FOLDER / str(number) for number in range(jobs)]
    until(lambda: all(map(is_run, runs)), "a checkpoint of both", SECONDS)
    os.killpg(running.pid, signal.SIGINT)
    ended = end(running)
    assert ended.code == (130 if jobs == 1 else -signal.SIGINT)  # in its own or other processes
    said = "The runs save. To continue: the same command"
    assert (said in ended.err) == (jobs > 1)
    assert ended.out.count("Saved at step") == jobs


@pytest.mark.slow
def test_a_job_at_its_time_limit_saves_and_is_requeued(text):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = [*TINY, text, "trainer.max_steps=1500", "trainer.val_every_steps=20", "seed=1"]
    launcher = ["hydra/launcher=submitit_local", f"hydra.sweep.dir={FOLDER}"]
    running = start([sys.executable, SCRIPT, "-m", *words, *launcher])
    until(lambda: is_run(FOLDER / "0"), "a checkpoint", SECONDS)
    [job] = [
        each
        for each in psutil.Process(running.pid).children(recursive=True)
        if "submitit.core._submit" in each.cmdline()
    ]
    job.send_signal(signal.SIGUSR2)
    assert end(running).code == 0
    [log] = FOLDER.glob(".submitit/*/*_log.out")
    said = log.read_text()
    assert said.index("Saved at step") < said.index("Requeued job") < said.index("1500")
    assert [row["state"] for row in rows(FOLDER)] == ["best"]


@pytest.mark.slow
def test_a_sweep_over_texts_and_seeds_is_interrupted_and_continued(text):
    words = [*TINY, f"{text},words.txt", "seed=1,2", "trainer.val_every_steps=20"]
    words += ["trainer.max_steps=200", f"hydra.sweep.dir={FOLDER}"]
    running = start([sys.executable, SCRIPT, "-m", *words])
    until(lambda: is_run(FOLDER / "1"), "the second run", SECONDS)
    os.killpg(running.pid, signal.SIGINT)
    assert end(running).code == 130
    first = (FOLDER / "0/checkpoints/last.safetensors").stat().st_mtime_ns
    ended = sweep(*words).succeeded()
    assert (FOLDER / "0/checkpoints/last.safetensors").stat().st_mtime_ns == first
    table = rows(FOLDER)
    assert len(table) == 4
    for path in ("a, $b=c.txt", "words.txt"):
        losses = [float(row["val_loss"]) for row in table if row["data.path"] == path]
        assert f"{statistics.mean(losses):.4f}" in ended.out
        assert f"{statistics.stdev(losses):.4f}" in ended.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "key"),
    [("launcher=slurm", "launcher=submitit_slurm"), ("sweeper=study", "sweeper=optuna")],
)
def test_a_missing_extra_is_one_line(choice, key, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['hydra_plugins'] = None")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = sweep("seed=1,2", f"hydra/{choice}", PYTHONPATH=paths)
    assert ended.code == 1
    assert ended.err == f"Error: hydra/{key} is not installed: pip install 'headscope[sweeps]'\n"
