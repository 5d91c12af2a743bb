"""The files of a report: which it writes, which it removes, and when it writes none."""

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import configuration, content, save
from PIL import Image
from reports import moments_of
from running import Script

from headscope.data.tokenizer import char


@pytest.mark.slow
def test_every_picture_has_its_two_files_and_is_not_blank(script: Script, run: Path) -> None:
    said = script("analyze", f"checkpoint={run}", "text=We the", "output_dir=a report")
    assert said.code == 0, said.err
    names = {file.stem for file in Path("a report").glob("*.png")}
    assert names == {file.stem for file in Path("a report").glob("*.svg")}
    assert names == {
        *(f"attention_{kind}_{layer}" for kind in ("layer", "mean") for layer in (0, 1)),
        "figures",
        "similarity",
        "similarity_histogram",
        "jensen_shannon",
        "position",
    }
    for file in Path("a report").glob("*.png"):
        pixels = np.asarray(Image.open(file).convert("RGB")).reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 20, file.name


@pytest.mark.usefixtures("pictures_not_drawn")
def test_heads_and_checkpoints_are_subtracted(script: Script, run: Path) -> None:
    other = Path("other.safetensors")
    save(content(step=9, seed=1)[0], other)
    words = (f"checkpoint={run}", "difference=[L1H3,L0H0]", f"other={other}", "text=We the")
    said = script("analyze", *words)
    assert said.code == 0, said.err
    drawn = {file.name for file in (run / "analysis").glob("difference*.png")}
    assert drawn == {
        "difference_L1H3_L0H0.png",
        *(f"difference_{kind}_{layer}.png" for kind in ("layer", "mean") for layer in (0, 1)),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_not_drawn")
def test_a_model_of_one_head_and_one_of_many_are_compared_on_a_sheet(
    script: Script, run: Path
) -> None:
    other = Path("other.safetensors")
    save(content(configuration("model.heads=1"), step=9)[0], other)
    for ours, theirs in ((run, other), (other, run)):
        words = (f"checkpoint={ours}", f"other={theirs}", "text=We the", "output_dir=report")
        said = script("analyze", *words)
        assert said.code == 0, said.err
        drawn = {file.name for file in Path("report").glob("*_and_multi_*")}
        assert drawn == {
            f"single_and_multi_layer_{layer}.{kind}" for layer in (0, 1) for kind in ("png", "svg")
        }


@pytest.mark.usefixtures("pictures_not_drawn")
def test_a_second_report_leaves_nothing_of_the_first_but_what_others_put_there(
    script: Script, run: Path
) -> None:
    moments_of(run)
    words = ("text=We the", "output_dir=report")
    first_only = ("ablation=true", "gradients=true", "difference=[L0H0,L1H0]")
    first_only += ("patch.clean=ab", "patch.corrupted=cb", "patch.answers=[d,e]")
    said = script("analyze", f"checkpoints={run}", *first_only, *words)
    assert said.code == 0, said.err
    report = Path("report")
    first = {file.name for file in report.iterdir()}
    assert {"history.csv", "history.svg", "ablation.png", "difference_L0H0_L1H0.png"} <= first
    assert first == set(json.loads((report / "heads.json").read_text())["files"])
    (report / "notes.txt").write_text("mine")
    said = script("analyze", f"checkpoint={run}", *words)
    assert said.code == 0, said.err
    second = {file.name for file in report.iterdir()}
    assert second == {"notes.txt", *json.loads((report / "heads.json").read_text())["files"]}
    gone = {name.split(".")[0] for name in first - second}
    assert gone == {
        *("history", "ablation", "gradient_importance", "patching"),
        "difference_L0H0_L1H0",
    }


@pytest.mark.usefixtures("pictures_not_drawn")
def test_what_a_report_says_it_wrote_is_never_another_folders_file(
    script: Script, run: Path
) -> None:
    report = Path("report")
    report.mkdir()
    (report / "heads.json").write_text(
        json.dumps({"files": ["heads.json", "../text.txt", "/etc/x", 3, ".."]})
    )
    said = script("analyze", f"checkpoint={run}", "text=We", "output_dir=report")
    assert said.code == 0, said.err
    assert Path("text.txt").exists()


@pytest.mark.usefixtures("pictures_not_drawn")
def test_a_report_replaces_no_file_that_is_not_of_a_report(script: Script, run: Path) -> None:
    Path("mine").mkdir()
    Path("mine/heads.csv").write_text("my own")
    Path("mine/heads.json").write_text('{"files": ["../text.txt", "thesis.txt", "thesis.png"]}')
    for name in ("thesis.txt", "thesis.png"):
        Path("mine", name).write_text("my own")
    said = script("analyze", f"checkpoint={run}", "output_dir=mine", "windows=1")
    assert said.code == 1
    assert "output_dir=mine: heads." in said.err
    assert Path("mine/heads.csv").read_text() == "my own"
    Path("mine/heads.csv").unlink()
    Path("mine/heads.json").unlink()
    said = script("analyze", f"checkpoint={run}", "output_dir=mine", "windows=1")
    assert said.code == 0, said.err
    assert Path("mine/thesis.txt").read_text() == Path("mine/thesis.png").read_text() == "my own"
    assert script("analyze", f"checkpoint={run}", "output_dir=mine", "windows=1").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ablation=true", "ablation_windows=1"], ["ablation_windows=1", "2"]),
        (["output_dir=text.txt"], ["output_dir=text.txt"]),
        (["difference=[L0H0]"], ["difference=", "two heads"]),
        (["difference=[L0H0,L2H0]"], ["L2H0", "L1H3"]),
        (["thresholds.self=7"], ["thresholds.self=7", "at most 1"]),
        (["other=another.safetensors"], ["another.safetensors", "vocabulary"]),
        (["checkpoints=outputs/run"], ["outputs/run", "keep_steps"]),
        (
            ["checkpoints=[outputs/run/checkpoints/best.safetensors,gone.safetensors]"],
            ["gone.safetensors"],
        ),
        (["checkpoints=[same.safetensors,same.safetensors]"], ["two", "step 7"]),
        (["checkpoints=[same.safetensors,larger.safetensors]"], ["larger.safetensors", "one run"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_in_one_line(script: Script, run: Path, arguments, words) -> None:
    save(content()[0], "same.safetensors")
    save(content(tokenizer=char(["abc"]))[0], "another.safetensors")
    save(content(configuration("model.layers=3"), step=9)[0], "larger.safetensors")
    said = script("analyze", *arguments)
    assert said.code == 1
    assert said.err.startswith("Error: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err
    assert not (run / "analysis").exists()
