"""The files of a report: which it writes, which it removes, and when it writes none."""

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import configuration, content, save
from PIL import Image
from reports import as_json, moments_of

not_drawn = pytest.mark.usefixtures("pictures_not_drawn")


@pytest.mark.slow
def test_every_picture_has_its_two_files_and_is_not_blank(analyze):
    analyze("text=We the", "output_dir=a report")
    names = {file.stem for file in Path("a report").glob("*.png")}
    assert names == {file.stem for file in Path("a report").glob("*.svg")}
    assert len(names) == 5
    for file in Path("a report").glob("*.png"):
        pixels = np.asarray(Image.open(file).convert("RGB")).reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 20, file.name


@not_drawn
def test_a_second_report_leaves_nothing_of_the_first_but_what_others_put_there(analyze, run):
    def names():
        return {file.name for file in report.iterdir()}

    moments_of(run)
    report, words = Path("report"), ("text=We the", "output_dir=report")
    patch = ("patch.clean=ab", "patch.corrupted=cb", "patch.answers=[d,e]")
    made = ("ablation=true", "gradients=true", "tensorboard=true")
    analyze(f"checkpoints={run}", *made, *patch, *words)
    first = names()
    assert first == set(as_json(report)["files"])
    (report / "notes.txt").write_text("mine")
    analyze(*words)
    assert names() == {"notes.txt", *as_json(report)["files"]}
    gone = {"history.csv", "history.png", "ablation.png", "patching.csv", "patching.png"}
    assert gone < first - names()
    assert not any("tfevents" in name for name in names())


@not_drawn
def test_a_report_removes_and_replaces_only_files_of_a_report(analyze, script, run):
    Path("mine").mkdir()
    mine = [Path("mine", name) for name in ("heads.csv", "thesis.txt", "thesis.png")]
    for file in mine:
        file.write_text("my own")
    listed = ["heads.json", "../text.txt", "/etc/x", 3, "..", "thesis.txt", "thesis.png"]
    Path("mine/heads.json").write_text(json.dumps({"files": listed}))
    words = ("output_dir=mine", "windows=1")
    said = script("analyze", f"checkpoint={run}", *words)
    assert said.code == 1
    assert "output_dir=mine: heads." in said.err
    assert mine[0].read_text() == "my own"
    mine[0].unlink()
    Path("mine/heads.json").write_text(json.dumps({"files": listed}))
    analyze(*words)
    assert {file.read_text() for file in mine[1:]} == {"my own"}
    assert Path("text.txt").exists()


@not_drawn
def test_the_files_of_a_killed_report_are_recognized(analyze, script, run, monkeypatch):
    def killed(self, stream, format):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("matplotlib.figure.Figure.savefig", killed)
        assert script("analyze", f"checkpoint={run}", "text=We").code != 0
    files = {file.name for file in (run / "analysis").iterdir()}
    assert "heads.csv" in files < {*as_json(run / "analysis")["files"]}
    analyze("text=We the")
    assert {*as_json(run / "analysis")["files"]} > files


MISTAKES = {
    "ablation=true ablation_windows=1": "ablation_windows=1",
    "output_dir=text.txt": "output_dir=text.txt",
    "thresholds.self=7": "thresholds.self=7",
    "checkpoints=outputs/run": "keep_steps",
    "checkpoints=[same.safetensors,gone.safetensors]": "gone.safetensors",
    "checkpoints=[same.safetensors,same.safetensors]": "step 7",
    "checkpoints=[same.safetensors,larger.safetensors]": "larger.safetensors",
}


def test_mistakes_are_told_in_one_line(script, run):
    save(content()[0], "same.safetensors")
    save(content(configuration("model.layers=3"), step=9)[0], "larger.safetensors")
    for arguments, advice in MISTAKES.items():
        said = script("analyze", *arguments.split())
        assert (said.code, said.err.count("\n")) == (1, 1)
        assert said.err.startswith("Error: ")
        assert advice in said.err
        assert not (run / "analysis").exists()
