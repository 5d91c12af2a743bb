"""A user's mistake gives one line with the value and what to do, and leaves no files behind."""

import os
from pathlib import Path

import pytest
import torch
from running import SMALL, Said, Script
from safetensors.torch import save_file


def assert_one_line(said: Said, *words: str) -> None:
    assert said.code == 1
    assert all(line.startswith("Encoding") for line in said.out.splitlines())
    assert said.err.startswith("Error: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.haeds=8"], ["model.haeds", "heads"]),
        (["max_steps=10"], ["max_steps", "did you mean trainer.max_steps?"]),
        (["--max_steps=10"], ["--max_steps=10", " max_steps=10", "--help"]),
        (["model.heads=two"], ["model.heads", "two"]),
        (["model=gtp"], ["model/gtp", "gpt"]),
        (["model.heads=3"], ["heads=3", "embed_dim=128"]),
        (["model.layers=100000000"], ["model.layers=100000000", "10,000"]),
        (["model.layers=9000", "model.embed_dim=8192"], ["training needs", "smaller model"]),
        (["trainer.compile=maybe"], ["trainer.compile=maybe"]),
        (["trainer.accumulate=1.5"], ["trainer.accumulate="]),
        (["trainer.precision=half"], ["trainer.precision=half", "bf16-mixed"]),
        (["optimizer.lr=nan"], ["optimizer.lr=nan"]),
        (["data.path=short.txt", "tokenizer=byte", "optimizer.beta1=1"], ["beta1=1"]),
        (["seed=-1"], ["seed=-1"]),
        ([os.fsdecode(b"data.path=caf\xe9.txt")], ["not valid UTF-8", "rename"]),
        (["name=a/b"], ["name=a/b"]),
        (["~model.heads"], ["model.heads", "--help"]),
        (["callbacks.samples=5"], ["callbacks.samples.KEY="]),
        (["store_dir=short.txt"], ["short.txt", "name another folder"]),
        (["+model.bogus=1"], ["model.bogus", "no such key"]),
        (["model.attention._target_=os.system"], ["os.system", "is not allowed there"]),
        (["trainer.devices=[5]"], ["trainer.devices=[5]", "no GPU"]),
        (["-m", "resume=nowhere"], ["resume=nowhere", "-m"]),
        (["callbacks.samples.max_new_tokens=1099511627776"], ["max_new_tokens", "100,000"]),
        (["callbacks.attention.steps=501"], ["attention.steps=501", "500"]),
        (["data.path="], ["data.path= is empty"]),
        (["data=text"], ["data.path"]),
        (["data.path=missing.txt"], ["data.path=missing.txt"]),
        (["data.path=empty.txt"], ["empty"]),
        (["data.path=short.txt", "tokenizer=byte"], ["training tokens", "block_size"]),
        (["data.path=short.txt"], ["vocab_size=8192"]),
        (["resume=nowhere"], ["resume=nowhere", "does not exist"]),
        (["resume=."], ["is not a run"]),
        (["init_from=missing.safetensors"], ["missing.safetensors", "does not exist"]),
    ],
    ids=lambda words: ascii(" ".join(words)),
)
def test_training(script: Script, arguments: list[str], words: list[str]) -> None:
    Path("empty.txt").touch()
    Path("short.txt").write_text("Too short to train on.")
    assert_one_line(script("train", *arguments), *words)
    left = {path.name for path in Path().iterdir()} - {"empty.txt", "short.txt"}
    assert left <= {"outputs", "data"}
    assert not list(Path().glob("outputs/*"))
    assert not list(Path().glob("data/.*/"))


def test_the_users_files_in_a_run_folder_are_kept(script: Script) -> None:
    Path("short.txt").write_text("Too short to train on. " * 30)
    mine = ["runs/exp1/events.out.tfevents.123.host", "runs/checkpoints/step_100.safetensors"]
    mine.append("runs/tensorboard/events.out.tfevents.1")
    for file in mine:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text("mine")
    words = [*SMALL[1:], "tokenizer=byte", "data.path=short.txt", "trainer.max_steps=1"]
    assert script("train", *words, "model.heads=3", "hydra.run.dir=runs").code == 1
    assert script("train", *words, "callbacks=plain", "hydra.run.dir=runs").code == 0
    assert [Path(file).read_text() for file in mine] == ["mine"] * len(mine)


@pytest.fixture
def checkpoint(script: Script, speeches: Path) -> Path:
    done = script(
        "train", *SMALL, f"data.path={speeches}", "trainer.max_steps=2", "hydra.run.dir=outputs/r"
    )
    assert done.code == 0, done.err
    return Path("outputs/r/checkpoints/best.safetensors")


def test_checkpoints_and_sampling(script: Script, checkpoint: Path, speeches: Path) -> None:
    whole = checkpoint.read_bytes()
    Path("truncated.safetensors").write_bytes(whole[: len(whole) // 2])
    Path("text.safetensors").write_text("not one")
    save_file({"weights": torch.zeros(2)}, "other.safetensors")
    for name in ("truncated", "text", "other"):
        for command in ("sample", "evaluate"):
            assert_one_line(
                script(command, f"checkpoint={name}.safetensors"), f"{name}.safetensors"
            )
    for command, word, *words in (
        ("sample", "checkpoint=missing.safetensors", "missing.safetensors", "does not exist"),
        ("sample", "temperature=-1", "temperature=-1"),
        ("sample", "num_samples=99999999999", "num_samples=99999999999", "GiB"),
        ("sample", "~prompt", "prompt is missing"),
        ("sample", "+bogus=1", "bogus", "no such key"),
        ("sample", "device=tpu", "device=tpu"),
        ("evaluate", "data.path=missing.txt", "missing.txt"),
    ):
        assert_one_line(script(command, word), *words)
    assert_one_line(script("train", "resume=outputs/r", "model.heads=2"), "model", "init_from")
    assert_one_line(script("train", "resume=outputs/r"), "2 steps", "trainer.max_steps")
    assert_one_line(script("train", "hydra.run.dir=outputs/r"), "resume=outputs/r")
    assert_one_line(
        script("train", f"init_from={checkpoint}", f"data.path={speeches}", "tokenizer=byte"),
        "tokenizer=byte",
        "tokenizer=bpe",
    )
    same = ["tokenizer=bpe", "tokenizer.vocab_size=320", "trainer.max_steps=1"]
    words = [*SMALL, f"data.path={speeches}", f"init_from={checkpoint}", *same]
    assert script("train", *words).code == 0
    assert_one_line(script("train", *words, "tokenizer.vocab_size=400"), "400", "320", "init_from")
    assert checkpoint.read_bytes() == whole


def test_a_current_folder_that_is_not_utf8(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(os.fsdecode(b"caf\xe9")).mkdir()
    monkeypatch.chdir(os.fsdecode(b"caf\xe9"))
    assert_one_line(script("train"), "not valid UTF-8", "rename")


@pytest.mark.parametrize("place", ["outputs/latest", "outputs/r/checkpoints/last.safetensors"])
def test_a_folder_with_the_name_of_a_file(script: Script, speeches: Path, place: str) -> None:
    Path(place).mkdir(parents=True)
    words = [*SMALL, f"data.path={speeches}", "hydra.run.dir=outputs/r"]
    assert_one_line(script("train", *words), place, "is a folder")


def test_a_lock_file_that_is_a_symbolic_link(script: Script) -> None:
    Path("run").mkdir()
    Path("run/.lock").symlink_to("elsewhere")
    assert_one_line(script("train", "hydra.run.dir=run"), "run/.lock")
    assert not Path("elsewhere").exists()


def test_sampling_without_any_run(script: Script) -> None:
    assert_one_line(script("sample"), "no run", "scripts/train.py")
