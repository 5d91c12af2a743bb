"""The report of a checkpoint's heads: what it holds, and that it is of the model and the text."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import content
from omegaconf import OmegaConf
from PIL import Image
from running import Script

import headscope
from headscope import checkpoint
from headscope.analysis.ablation import ablate_heads
from headscope.analysis.capture import attention_weights
from headscope.analysis.head_types import Thresholds
from headscope.analysis.metrics import head_figures
from headscope.command_line import CONF
from headscope.evaluation import validation_text

TEXT = "ab 🦜\n\x07中文<script>alert(1)</script>"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder with a checkpoint of two layers of four heads, of 8 tokens."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("We the people of the United States. " * 40)
    saved, _ = content()
    saved["headscope"]["config"]["data"] = {
        "_target_": "headscope.data.corpus.TextFiles",
        "path": "text.txt",
    }
    checkpoints = tmp_path / "outputs" / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    torch.save(saved, checkpoints / "best.ckpt")
    Path("outputs/latest").write_text("run")
    return checkpoints.parent


def heads(folder: Path) -> list[dict[str, str]]:
    with (folder / "heads.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_figures_are_those_of_the_text(script: Script, run: Path) -> None:
    said = script("analyze", f"checkpoint={run}", f"text={TEXT}")
    assert said.code == 0, said.err
    assert len(said.out.splitlines()) == 8
    assert said.out.startswith("L0H0  ")
    assert "the first 8 of" in said.err
    rows = heads(run / "analysis")
    loaded = headscope.load(run)
    reading = loaded.attention(TEXT)
    assert len(reading.tokens) == loaded.model.block_size == 8
    expected = head_figures(attention_weights(loaded.model, torch.tensor([reading.tokens]))[:, 0])
    for number, row in enumerate(rows):
        layer, head = divmod(number, 4)
        assert (row["layer"], row["head"]) == (str(layer), str(head))
        for name, figure in expected.items():
            assert float(row[name]) == pytest.approx(figure[layer, head].item(), rel=1e-5), name
    assert len(rows) == 8
    as_json = json.loads((run / "analysis" / "heads.json").read_text())
    assert [row["type"] for row in as_json["heads"]] == [row["type"] for row in rows]
    assert as_json["tokens"] == 8
    with (run / "analysis" / "similarity.csv").open() as file:
        similarity = list(csv.DictReader(file))
    assert [row["head"] for row in similarity] == [f"L{n // 4}H{n % 4}" for n in range(8)]
    assert all(float(row[row["head"]]) == pytest.approx(1, abs=1e-5) for row in similarity)


def test_every_picture_has_its_two_files_and_is_not_blank(script: Script, run: Path) -> None:
    said = script("analyze", f"checkpoint={run}", f"text={TEXT}", "output_dir=a report")
    assert said.code == 0, said.err
    names = {file.stem for file in Path("a report").glob("*.png")}
    assert names == {file.stem for file in Path("a report").glob("*.svg")}
    assert names == {
        *(f"attention_{kind}_{layer}" for kind in ("layer", "mean") for layer in (0, 1)),
        "figures",
        "similarity",
        "similarity_histogram",
        "position",
    }
    for file in Path("a report").glob("*.png"):
        pixels = np.asarray(Image.open(file).convert("RGB")).reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 20, file.name
    page = Path("a report/attention.html").read_text()
    assert "<script>alert" not in page


def test_heads_are_removed_on_the_validation_split(script: Script, run: Path) -> None:
    words = ("ablation=true", "ablation_windows=5", "windows=6", "replace_by=mean")
    said = script("analyze", f"checkpoint={run}", *words)
    assert said.code == 0, said.err
    assert (run / "analysis" / "ablation.png").is_file()
    assert json.loads((run / "analysis" / "heads.json").read_text())["windows"] == 6
    loaded = headscope.load(run / "checkpoints" / "best.ckpt")
    config = loaded.config
    text = validation_text(checkpoint.build_corpus(config), loaded.tokenizer)
    windows = text.tokens[: len(text.tokens) // 9 * 9].reshape(-1, 9).astype(np.int64)
    chosen = torch.from_numpy(windows[np.linspace(0, len(windows) - 1, 5).astype(int)])
    expected = ablate_heads(loaded.model, chosen[:, :-1], chosen[:, 1:], replace_by="mean")
    for number, row in enumerate(heads(run / "analysis")):
        change = expected["nats_per_token"].flatten()[number].item()
        error = expected["standard_error"].flatten()[number].item()
        assert float(row["loss_without"]) == pytest.approx(change, rel=1e-4, abs=1e-7)
        assert float(row["loss_without_error"]) == pytest.approx(error, rel=1e-4, abs=1e-7)
        # A byte a token.
        assert float(row["bits_per_byte_without"]) == pytest.approx(change / np.log(2), rel=1e-3)


def test_from_python(run: Path) -> None:
    loaded = headscope.load(run)
    reading = loaded.attention("We the")
    assert reading.labels == list("We the")
    assert reading.weights.shape == (2, 4, 6, 6)
    torch.testing.assert_close(reading.weights.sum(-1), torch.ones(2, 4, 6))
    assert torch.equal(loaded.attention(reading.tokens).weights, reading.weights)


def test_thresholds_are_the_same_everywhere() -> None:
    of_analysis = OmegaConf.load(CONF / "analyze.yaml").thresholds
    of_training = OmegaConf.load(CONF / "callbacks" / "default.yaml").heads.thresholds
    assert of_analysis == of_training
    assert Thresholds(**of_analysis) == Thresholds()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["text="], ["empty"]),
        (["windows=0"], ["windows=0"]),
        (["ablation=true", "ablation_windows=1"], ["ablation_windows=1", "2"]),
        (["replace_by=nothing"], ["replace_by=nothing", "zero", "mean"]),
        (["checkpoint=nowhere"], ["nowhere"]),
        (["output_dir=text.txt"], ["output_dir=text.txt"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_in_one_line(script: Script, run: Path, arguments, words) -> None:
    said = script("analyze", *arguments)
    assert said.code == 1
    assert said.err.startswith("Error: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err
    assert not (run / "analysis").exists()
