"""Training steps of a model on the hub, or in a folder of folders, are the kept steps of a run."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from foreign_models import edit, foreign_model, write_folder
from running import ROOT, Script, scalars, snapshot_headers, until
from safetensors.torch import load_file, save_file

import headscope
from headscope.conversion.revisions import chosen_steps, step_of
from headscope.errors import UserError
from headscope.trained.evaluation import evaluate

PYTHIA = [0, *(2**power for power in range(10)), *range(1000, 144_000, 1000)]
TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer.\n"


@pytest.mark.parametrize(
    ("name", "step"),
    {
        "step512": 512,
        "step-240000": 240_000,
        "stage1-step1000-tokens5B": 1000,
        "checkpoint-500": 500,
        "iter_0001000": 1000,
        "step10k": None,
        "step1.5": None,
        "1-2": None,
        "main": None,
    }.items(),
)
def test_the_step_in_the_name_of_a_revision(name, step):
    assert step_of(name) == step


def test_revisions_are_spread_over_a_logarithmic_scale_or_listed():
    names = ["main", *(f"step{step}" for step in PYTHIA)]
    spread = [*chosen_steps(names, ["log:12"], "x").values()]
    assert spread == [143_000, 49_000, 17_000, 6000, 2000, 512, 256, 64, 32, 8, 2, 0]
    even = [f"step-{step}" for step in range(125_000, 2_000_001, 125_000)]
    assert len(chosen_steps(even, ["log:12"], "x")) == 12
    assert [*chosen_steps(names, ["step8", "step512"], "x")] == ["step512", "step8"]
    assert len(chosen_steps(names, None, "x")) == len(chosen_steps(names, ["log:999"], "x")) == 154
    for revisions, words in {
        ("step7",): ["step7", "step0"],
        ("log:0",): ["log:0"],
        ("main",): ["main", "no number"],
        ("step1", "step-1"): ["step1 and step-1"],
        (): ["revisions= chooses none"],
        ("all",): ["step1 and step-1"],
    }.items():
        with pytest.raises(UserError) as caught:
            chosen_steps([*names, "step-1"], revisions, "x")
        assert all(word in str(caught.value) for word in words)


@pytest.fixture
def steps(script: Script) -> Path:
    """Ten steps in float16. Step 0 has the weights of step 1; the file of step 64 is damaged."""
    model = foreign_model("GPTNeoXForCausalLM", max_position_embeddings=32)
    for step in (1, 2, 4, 8, 16, 64, 512, 1000, 2000):
        folder = write_folder(Path("steps", f"step{step}"), model.to(torch.float16))
        with torch.no_grad():
            for weight in model.float().parameters():
                weight += 0.1 * torch.randn_like(weight)
    shutil.copytree("steps/step1", "steps/step0")
    damaged = Path("steps/step64/model.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1000])
    Path("my.txt").write_text(TEXT * 30, "utf-8")
    return folder.parent


def test_a_branch_without_the_word_step_is_none_and_this_is_said(capsys):
    names = ["main", "step0", "step512", "release-2024"]
    assert chosen_steps(names, ["log:2"], "x") == {"step512": 512, "step0": 0}
    assert "release-2024" in capsys.readouterr().err
    with pytest.raises(UserError, match="step512 and checkpoint-512"):
        chosen_steps([*names, "checkpoint-512"], None, "x")


def assert_imported(run: str) -> None:
    """What the run has at each step is what the folder of this step has alone."""
    loaded = headscope.load(run)
    assert loaded.steps == [1, 2, 4, 8, 16, 512, 1000, 2000]
    assert loaded.step == 2000
    losses, history = scalars(run, "val/loss"), headscope.history(run)
    headers = {header["step"]: header for header in snapshot_headers(run)}
    assert [*losses] == [*headers] == loaded.steps
    for step in loaded.steps:
        kept, alone = headscope.load(run, step=step), headscope.load(f"steps/step{step}")
        assert torch.equal(kept.logits(TEXT[:20]), alone.logits(TEXT[:20]))
        assert kept.why("L1H1", TEXT[:20]).pairs.equal(alone.why("L1H1", TEXT[:20]).pairs)
        text = kept.validation
        found = evaluate(alone.model, text, batch_size=1)["loss_nats_per_token"]
        assert losses[step] == pytest.approx(found, rel=1e-6)
        record = alone.record(text, source="my.txt")
        assert kept.known_record().stored() == record.stored() | {"step": step}
        of_step = history[(history.step == step) & (history.metric == "previous")].value
        assert history.seed.isna().all()
        assert of_step.to_list() == record.metrics["previous"].flatten().tolist()
        assert headers[step]["names"] == [head_type.label for head_type in record.types]
        assert "".join(headers[step]["labels"]).replace("·", " ") == TEXT[:32]


def test_a_folder_of_folders(steps, script, monkeypatch):
    proofs = []
    with monkeypatch.context() as patch:
        patch.setattr("headscope.conversion.folder.prove_architecture", lambda *a: proofs.append(a))
        said = script("convert", "source=steps", "text=my.txt", "output=out").succeeded()
    assert len(proofs) == 1
    assert "step0 was left out: its weights are those of step 1" in said.out
    assert "step64 was left out: transformers cannot open" in said.out
    assert_imported("out")
    weights = load_file("out/checkpoints/step_000512.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float16}
    words = ["convert", "source=steps", "output=out"]
    script(*words).refused("output=out", "text=my.txt", "name a new folder")
    shutil.copy("steps/step512/model.safetensors", "steps/step64")  # the same command tries again
    assert (
        "step64 was left out: its weights are those of step 512"
        in script(*words, "text=my.txt").out
    )
    script(*words, "text=my.txt").refused("already exists")


def test_a_first_step_that_cannot_be_imported_leaves_nothing(steps, script):
    words = ["convert", "source=steps", "output=new", "revisions=[step2000,step1]", "text=my.txt"]
    Path("my.txt").write_text("")
    script(*words).refused("text=my.txt", "empty")
    Path("my.txt").write_text("a")
    weights = Path("steps/step2000/model.safetensors")
    shutil.move(weights, "kept")
    save_file({name: each * torch.nan for name, each in load_file("kept").items()}, weights)
    script(*words).refused("NaN", "step2000", "list the others in revisions=")
    assert not [*Path().glob("*new*")]
    shutil.move("kept", weights)
    assert "Imported: 2 of 2" in script(*words).succeeded().out
    assert headscope.load("new").steps == [1, 2000]
    Path("new/checkpoints/best.safetensors").unlink()  # as if it had been killed
    Path("new/checkpoints/step_000001.safetensors").unlink()
    script("explore", "checkpoint=new").refused("not finished", "repeat its command")
    Path("my.txt").write_text("b")
    script(*words).refused("text=my.txt", "has changed")
    Path("my.txt").write_text("a")
    edit(Path("steps/step1/config.json"), max_position_embeddings=16)
    assert "step1 was left out: it has other sizes" in script(*words).succeeded().out


@pytest.mark.slow
def test_revisions_on_the_hub_also_if_killed_and_continued(steps):
    server = [sys.executable, str(ROOT / "tests/hub_server.py"), "steps"]
    with (
        subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as fast,
        subprocess.Popen([*server, "0.2"], stdout=subprocess.PIPE, text=True) as slow,
    ):
        addresses = {each: each.stdout.readline().strip() for each in (fast, slow)}

        def convert(hub: subprocess.Popen[str], output: str) -> subprocess.Popen[str]:
            line = [sys.executable, "-m", "headscope", "convert", "source=someone/steps"]
            line += ["revisions=log:10", "text=my.txt", f"output={output}"]
            more = {"HF_ENDPOINT": addresses[hub], "HF_HUB_DISABLE_XET": "1", "HF_HOME": "home"}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            return subprocess.Popen(line, env={**os.environ, **more}, **pipes)

        try:
            with convert(slow, "killed") as process:
                until(lambda: len([*Path("killed").glob("checkpoints/step_*")]) == 2, "two steps")
                walked = partial(os.walk, "killed/downloads")  # ignores what was removed meanwhile
                until(lambda: "incomplete" in str([*walked()]), "a download")
                process.kill()
            times = {
                file: file.stat().st_mtime_ns for file in Path("killed").glob("checkpoints/step_*")
            }
            said = convert(fast, "killed").communicate()
            assert "8 of 10 steps to import" in said[1]
            whole = convert(fast, "whole").communicate()
        finally:
            fast.kill()
            slow.kill()
    assert said[0] == whole[0].replace("whole", "killed")
    assert "step0 was left out: its weights are those of step 1" in said[0]
    assert "step64 was left out: transformers cannot open" in said[0]
    assert times.items() <= {each: each.stat().st_mtime_ns for each in times}.items()
    assert not [*Path("home").rglob("*.safetensors")]  # the cache of the user
    assert_imported("killed")
    names = [
        {each.relative_to(run) for each in Path(run).rglob("*")} for run in ("killed", "whole")
    ]
    assert names[0] == names[1]
    records = [Path(run, "checkpoints/heads.json").read_text() for run in ("killed", "whole")]
    assert records[0] == records[1]
