"""Estimates from gradients, activation patching and the event file in a report."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from reports import moments_of, rows_of
from running import Script
from tab_runs import in_process

import headscope
from headscope import checkpoint
from headscope.analysis.gradients import gradient_importance
from headscope.analysis.patch_texts import patch_texts
from headscope.analysis.report.inputs import Ablation
from headscope.evaluation import validation_text

pytestmark = pytest.mark.usefixtures("pictures_not_drawn")

ESTIMATES = ("gradient_importance", "loss_change_estimate")


def test_estimates_from_gradients_stand_beside_the_ablation(script: Script, run: Path) -> None:
    words = ("gradients=true", "ablation_windows=5", "windows=2")
    for replace_by, removes in (("zero", "ablation=true"), ("mean", "ablation=false")):
        said = script("analyze", f"checkpoint={run}", f"replace_by={replace_by}", removes, *words)
        assert said.code == 0, said.err
        loaded = headscope.load(run / "checkpoints" / "best.safetensors")
        text = validation_text(checkpoint.stored_corpus(loaded.config), loaded.tokenizer)
        chosen = Ablation.on(text, "zero", windows=5, length=8).windows
        expected = gradient_importance(
            loaded.model, chosen[:, :-1], chosen[:, 1:], replace_by=replace_by
        )
        rows = rows_of(run / "analysis" / "heads.csv")
        for name, key in zip(ESTIMATES, ("importance", "nats_per_token"), strict=True):
            found = torch.tensor([float(row[name]) for row in rows])
            torch.testing.assert_close(found, expected[key].flatten(), rtol=1e-4, atol=1e-9)
        assert ("loss_change" in rows[0]) == (removes == "ablation=true")
        assert (run / "analysis" / "gradient_importance.png").is_file()
        assert (run / "analysis" / "ablation.png").is_file()
        about = json.loads((run / "analysis" / "heads.json").read_text())["ablation"]
        lines = said.out.splitlines()[8:]
        if removes == "ablation=true":
            changes = [float(row["loss_change"]) for row in rows]
            for name in ESTIMATES:
                values = [float(row[name]) for row in rows]
                together = np.corrcoef(values, changes)[0, 1]
                assert about["correlation_with_loss_change"][name] == pytest.approx(together)
            assert lines.pop().startswith("correlation with the measured change")
            lines = lines[6:]
        assert lines[0].startswith("most important heads by their gradients")
        order = expected["importance"].flatten().argsort(descending=True)[:5].tolist()
        assert [line.split()[0] for line in lines[1:]] == [f"L{n // 4}H{n % 4}" for n in order]


def test_heads_are_exchanged_between_two_texts(script: Script, run: Path) -> None:
    words = ["windows=1", "patch.clean=a, 'b' a", "patch.corrupted=a, 'c' a"]
    words += ['patch.answers=["\'", ","]', "patch.position=7"]
    said = script("analyze", f"checkpoint={run}", *words)
    assert said.code == 0, said.err
    loaded = headscope.load(run / "checkpoints" / "best.safetensors")
    texts = patch_texts(
        loaded,
        clean="a, 'b' a",
        corrupted="a, 'c' a",
        answers=["'", ","],
        position=7,
    )
    expected = texts.run(loaded)
    rows = rows_of(run / "analysis" / "patching.csv")
    assert [(row["layer"], row["head"]) for row in rows] == [(n, h) for n in "01" for h in "0123"]
    for name in ("denoising", "noising"):
        found = torch.tensor([float(row[name]) for row in rows])
        torch.testing.assert_close(found, getattr(expected, name).flatten(), rtol=1e-4, atol=1e-4)
    about = json.loads((run / "analysis" / "heads.json").read_text())["patching"]
    assert about["clean"] == list("a,·'b'·a")
    assert about["position"] == 7
    assert about["metric_clean"] == pytest.approx(expected.clean, rel=1e-4)
    assert len(about["heads"]) == 8
    lines = said.out.splitlines()[8:]
    assert "the logit of ' minus the logit of , at the last token" in lines[0]
    best = expected.denoising.flatten().argsort(descending=True, stable=True)[0]
    assert lines[2].split()[0] == f"L{best // 4}H{best % 4}"
    worst = expected.noising.flatten().argsort(stable=True)[0]
    assert lines[8].split() == [f"L{worst // 4}H{worst % 4}", f"{expected.noising.min():.2f}"]


def test_the_event_file_shows_the_report_in_the_tab(script: Script, run: Path) -> None:
    moments_of(run)
    words = (f"checkpoints={run}", "tensorboard=true", "text=We the", "output_dir=report")
    said = script("analyze", *words)
    assert said.code == 0, said.err
    assert "tensorboard --logdir report" in said.err
    [file] = Path("report").glob("*tfevents*")
    assert file.name in json.loads(Path("report/heads.json").read_text())["files"]
    ask = in_process(Path("report"))
    assert ask("runs").json == {"runs": [{"name": ".", "texts": ["attention"]}]}
    found = ask("history", run=".", text="attention").json
    assert found["labels"] == list("We·the")
    assert [step["step"] for step in found["steps"]] == [0, 3, 7]
    page = Path("report/attention.html").read_text()
    for key in (key for step in found["steps"] for key in step["parts"]):
        assert base64.b64encode(ask("part", key=key).body).decode() in page
    assert script("analyze", *words[2:], f"checkpoint={run}").code == 0
    assert not file.exists()  # it belonged to the first report
