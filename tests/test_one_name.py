"""One head, one name: explore, TensorBoard's tab and the report agree on every checkpoint."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from running import SMALL, events
from viewer_data import Elements

import headscope
from headscope.analysis.head_types import Thresholds
from headscope.analysis.own_metrics import description
from headscope.show.explore.models import Models
from headscope.show.viewer.history import read_measured
from headscope.trained import heads_file
from headscope.trained.heads_file import FILE

pytestmark = pytest.mark.usefixtures("pictures_not_drawn")


@pytest.fixture(scope="module")
def run(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five steps whose heads have names, with ALiBi, and other ones by its thresholds."""
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=5", "trainer.val_every_steps=2"]
    words += ["callbacks.saving.keep_steps=[0,3]", "model/position=alibi"]
    words += ["callbacks.heads.thresholds.short_range=0.99"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("one_name"))
        return headscope.train([*words, "hydra.run.dir=run"]).folder.absolute()


def in_explore(checkpoint) -> list[str]:
    return labels(Models(str(checkpoint), None, "cpu").get("this").statistics)


def labels(statistics) -> list[str]:
    return [head_type.label for head_type in statistics.types]


def in_report(script, checkpoint, *words) -> list[str]:
    script("analyze", f"checkpoint={checkpoint}", "output_dir=report", *words).succeeded()
    rows = csv.DictReader(Path("report/heads.csv").read_text().splitlines())
    return [
        f"{float(row['offset']):.0f} back" if row["type"] == "fixed-offset" else row["type"]
        for row in rows
    ]


def in_page(loaded) -> list[str]:
    """The names in the page of a notebook."""
    loaded.read("We the people").save_html("page.html")
    [shown] = Elements(Path("page.html").read_text(encoding="utf-8")).data["runs"]
    return shown["history"]["steps"][0]["names"]


def in_tab(run) -> dict[int, list[str]]:
    """The names that the tab shows at the steps that were measured when the run ended. Beside the
    metrics that were measured then, it shows their uniform values."""
    last = events(run).Tensors("heads")[-1]
    files = [headscope.load(file) for file in run.glob("checkpoints/*.safetensors")]
    layers, heads = len(files[0].model.attentions), files[0].model.attentions[0].heads
    shape = [{"layers": layers, "heads": heads}]
    measured = read_measured(last.tensor_proto.string_val[0], shape)
    for loaded in files:
        uniform = loaded.stored_statistics().header()["uniform"]
        assert measured[loaded.step]["uniform"] == uniform
    return {step: of_step["names"] for step, of_step in measured.items()}


def assert_one_name(run: Path) -> None:
    tab = in_tab(run)
    files = {file: headscope.load(file) for file in run.glob("checkpoints/*.safetensors")}
    assert {file.stem for file in files} == {"best", "last", "step_000000", "step_000003"}
    assert len({loaded.digest for loaded in files.values()}) == len(tab)
    for file, loaded in files.items():
        assert in_explore(file) == in_page(loaded) == tab[loaded.step]


def test_a_run_has_one_name_per_head_by_its_own_thresholds(script, run):
    assert_one_name(run)
    last = run / "checkpoints/last.safetensors"
    assert "global" in in_explore(last)
    assert in_explore(last) == in_report(script, last)
    report = json.loads(Path("report/heads.json").read_text())
    stored = headscope.load(last).stored_statistics()
    assert (report["windows"], report["tokens"]) == (stored.windows, stored.tokens)
    assert stored.windows * stored.tokens == 4096
    assert stored.source == "the validation split"
    for name, values in stored.metrics.items():
        found = np.array([row[name] for row in report["heads"]], dtype=float)
        torch.testing.assert_close(torch.tensor(found).float(), values.flatten(), equal_nan=True)
    assert "global" not in in_report(script, last, "thresholds.even=1", "windows=2")
    report = json.loads(Path("report/heads.json").read_text())
    assert (report["windows"], report["tokens"]) == (2, 32)


def test_names_follow_the_thresholds_and_the_weights(run, tmp_path):
    last, copy = run / "checkpoints/last.safetensors", tmp_path / "copy.safetensors"
    loaded = headscope.load(last)
    assert labels(loaded.stored_statistics(Thresholds())) != labels(loaded.stored_statistics())
    shutil.copy(last, copy)
    assert headscope.load(copy).stored_statistics() is None
    heads = Path(shutil.copy(last.parent / FILE, tmp_path))
    assert labels(headscope.load(copy).stored_statistics()) == labels(loaded.stored_statistics())
    for damaged in (b"", b"[]", b"{}", heads.read_bytes().replace(b"0.1", b"0.2"), b"\xff" * 99):
        heads.write_bytes(damaged)
        assert headscope.load(copy).stored_statistics() is None
        assert Models(str(copy), None, "cpu").get("this").statistics.source.endswith("wrote")


@pytest.mark.slow
def test_resumed_and_imported_have_the_names_of_their_measurement(script, run, speeches):
    resumed = Path(shutil.copytree(run, "outputs/run"))
    assert script("train", f"resume={resumed}", "trainer.max_steps=8").code == 0
    assert in_tab(resumed).keys() >= {0, 3, 8}
    assert_one_name(resumed)
    for file in resumed.glob("checkpoints/*.safetensors"):
        assert in_explore(file) == in_report(script, file)
    assert script("convert", f"checkpoint={resumed}", "to=huggingface", "output=exported").code == 0
    for words, source in (((), "wrote"), ((f"text={speeches}",), str(speeches))):
        output = f"outputs/imported{len(words)}"
        script("convert", "source=exported", f"output={output}", *words).succeeded()
        assert Models(output, None, "cpu").get("this").statistics.source.endswith(source)
    measured = headscope.load(resumed / "checkpoints/best.safetensors").stored_statistics
    imported = headscope.load(output).stored_statistics
    assert labels(imported(Thresholds())) == labels(measured(Thresholds()))


def damage(entry, change):
    name = next(iter(entry["metrics"]))
    if change == "metric":
        entry["metrics"][name][0][0] = 1e308
    elif change == "uniform":
        entry["uniform"][name] = 1e308
    else:
        entry[change] = {name: "\ud800"} if change == "descriptions" else "\ud800"


@pytest.mark.parametrize("change", ["metric", "uniform", "descriptions", "source"])
def test_heads_json_with_what_nobody_can_show_counts_as_damaged(run, tmp_path, change, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    entries = heads_file.entries_in(folder)
    for entry in entries.values():
        damage(entry, change)
    heads_file.write_entries(folder, entries)
    loaded = headscope.load(tmp_path / "run")
    assert loaded.stored_statistics() is None
    assert len(in_page(loaded)) == len(in_explore(tmp_path / "run"))


def test_a_docstring_with_half_of_a_surrogate_pair_can_be_shown():
    def metric(weights, tokens):
        raise NotImplementedError

    metric.__doc__ = "Half \ud800 of a pair."
    assert description(metric) == "Half ? of a pair."
