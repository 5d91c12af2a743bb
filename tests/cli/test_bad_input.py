"""A user's mistake gives one line with the value and what to do, and leaves no files behind."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from running import SMALL, Said, Script
from safetensors.torch import save_file

from headscope.cli import command_line


def assert_one_line(said: Said, *words: str) -> None:
    assert said.refused(*words).err.count("\n") == 1
    assert all(line.startswith("Encoding") for line in said.out.splitlines())


MISTAKES = {
    "train": [
        ("model.haeds=8", "model.haeds|heads"),
        ("model.haeds=2,3 -m", "model.haeds|heads"),
        ("max_steps=10", "max_steps|did you mean trainer.max_steps?"),
        ("--max_steps=10", "--max_steps=10| max_steps=10|--help"),
        ("model=gtp", "model=gtp|gpt"),
        ("model.heads=3 data=modular tokenizer=char", "heads=3|embed_dim=128"),
        ("model.layers=100000000 data=modular tokenizer=char", "model.layers=100000000|10,000"),
        ("optimizer.lr=nan", "optimizer.lr=nan"),
        (os.fsdecode(b"data.path=caf\xe9.txt"), "not valid UTF-8|rename"),
        ("callbacks.samples=5", "callbacks.samples.KEY="),
        ("store_dir=short.txt", "short.txt|name another folder"),
        ("trainer.devices=[5,5]", "trainer.devices=[5, 5]"),
        ("seed=1 -m resume=nowhere", "resume=nowhere|-m"),
        ("hydra/sweeper=optuna data.path=short.txt", "hydra/sweeper=optuna|add -m"),
        ("callbacks.samples.max_new_tokens=1099511627776", "max_new_tokens|100000"),
        ("data.path=missing.txt", "data.path=missing.txt"),
        ("data.path=short.txt tokenizer=byte", "training tokens|block_size"),
        ("short.txt", "short.txt has no key|data.path=short.txt"),
        ("data=short.txt", "data.path=short.txt"),
        ("resume=nowhere", "resume=nowhere|does not exist"),
    ],
    "compare": [
        ("compare=own", "compare.choices= must be given"),
        ("compare=own seed=3", "seed=|seeds=[1,2,3]"),
        ('compare.choices=["model.heads=3"]', "model.heads=3|embed_dim=128"),
        ('compare.choices=["model.heads=2","model.heads=2"]', "compare.choices=|two runs"),
        ('compare.choices=["model.heads=2","seed=4"]', "seed=4"),
        ("hydra.run.dir=x compare=attention", "name="),
        ("experiment=nanogpt_cpu", "experiment=|trainer.max_steps="),
    ],
    "benchmark": [
        ("suite=attention suite.shapes=[[8,10,4]]", "embed_dim=10|heads=4"),
        ("suite=attention suite.batch_size=10000000000", "memory|lower the batch size"),
        ("suite=attention model.heads=8", "model.heads=8|suite.*"),
        ("suite=attention suite.shapes=[]", "suite.shapes=[]|at least one"),
        ("suite=unknown", "suite/unknown|attention"),
        ("suite=training model.dropout=0.1", "model.dropout=0.1|model.dropout=0"),
        ("suite=race experiment=speedrun_cpu suite.against=speedrun_cpu", "suite.against"),
        ("suite=race", "default|nanogpt_cpu|texts|data=..."),
        ("suite=race suite.nanogpt=nowhere", "suite.nanogpt=nowhere|train.py|checkout"),
    ],
}
"""By the script: arguments, and what the message must have."""


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        pytest.param(name, *each, marks=[pytest.mark.slow] * (name == "benchmark"))
        for name, table in MISTAKES.items()
        for each in table
    ],
    ids=ascii,
)
def test_a_mistake_is_told_before_anything_is_trained(script, name, arguments, words) -> None:
    Path("short.txt").write_text("Too short to train on.")
    assert_one_line(script(name, *arguments.split()), *words.split("|"))
    folders = {"train": ["outputs", "data"], "compare": ["outputs"], "benchmark": []}
    assert {path.name for path in Path().iterdir()} <= {"short.txt", *folders[name]}
    assert not list(Path().glob("outputs/*"))
    assert not list(Path().glob("data/.*/"))


def test_a_mistake_when_training_begins_leaves_only_the_users_files(script: Script) -> None:
    Path("short.txt").write_text("Too short to train on. " * 30)
    mine = ["events.out.tfevents.123.host", "step_100.safetensors", "events.out.tfevents.1"]
    for file, folder in zip(mine, ("exp1", "checkpoints", "tensorboard"), strict=True):
        Path("runs", folder).mkdir(parents=True, exist_ok=True)
        Path("runs", folder, file).write_text("mine")
    words = [*SMALL[1:], "tokenizer=byte", "data.path=short.txt", "trainer.max_steps=1"]
    for run in ("runs", "outputs/new"):
        said = script("train", *words, "optimizer.beta1=1", f"hydra.run.dir={run}")
        assert said.refused("Error: optimizer.beta1=").err.count("\n") == 1
    assert not list(Path().glob("outputs/*"))
    assert script("train", *words, "callbacks=plain", "hydra.run.dir=runs").code == 0
    kept = [file.read_text() for name in mine for file in Path("runs").glob(f"*/{name}")]
    assert kept == ["mine"] * 3


def test_a_mistake_with_a_checkpoint_leaves_it_as_it_is(script: Script, speeches: Path) -> None:
    text, new = f"data.path={speeches}", "hydra.run.dir=outputs/r"
    assert script("train", *SMALL, text, "trainer.max_steps=2", new).code == 0
    checkpoint = Path("outputs/r/checkpoints/best.safetensors")
    whole = checkpoint.read_bytes()
    Path("cut.safetensors").write_bytes(whole[: len(whole) // 2])
    save_file({"weights": torch.zeros(2)}, "other.safetensors")
    from_it = f"{text} init_from={checkpoint}"
    for name, arguments, *words in (
        ("sample", "checkpoint=cut.safetensors", "cut.safetensors"),
        ("evaluate", "checkpoint=other.safetensors", "other.safetensors"),
        ("sample", "checkpoint=missing.safetensors", "missing.safetensors", "does not exist"),
        ("sample", "temperature=-1", "temperature=-1"),
        ("sample", "~prompt", "prompt is missing"),
        ("sample", "device=tpu", "device=tpu"),
        ("train", "resume=outputs/r", "2 steps", "trainer.max_steps"),
        ("train", "hydra.run.dir=outputs/r", "resume=outputs/r"),
        ("train", f"{from_it} tokenizer=byte", "tokenizer=", "headscope.byte", "headscope.bpe"),
        ("train", f"{from_it} tokenizer=bpe tokenizer.vocab_size=400", "400", "320", "init_from"),
    ):
        assert_one_line(script(name, *arguments.split()), *words)
    assert checkpoint.read_bytes() == whole


def test_a_failed_command_leaves_a_folder_that_another_process_uses(tmp_path, monkeypatch):
    """A lock is of an open file, so one of this process is like that of another."""
    monkeypatch.setattr(command_line, "run_folder", lambda: tmp_path)
    for used in (True, False):
        lock = FileLock(tmp_path / ".lock") if used else nullcontext()
        with lock, pytest.raises(ZeroDivisionError):
            command_line.attempt(lambda config: 1 / 0, {})
        assert tmp_path.is_dir() == used


def test_a_lock_file_that_is_a_symbolic_link_and_sampling_without_any_run(script: Script) -> None:
    assert_one_line(script("sample"), "no run", "scripts/train.py")
    Path("run").mkdir()
    Path("run/.lock").symlink_to("elsewhere")
    assert_one_line(script("train", "hydra.run.dir=run"), "run/.lock")
    assert not Path("elsewhere").exists()
