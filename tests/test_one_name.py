"""One head, one name: explore, TensorBoard's tab and the report agree on every checkpoint."""

import csv
import json
import math
import shutil
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest
import torch
from kill_runs import session, wait
from lightning.pytorch import Callback
from running import SMALL, measured, snapshot_headers
from viewer_data import Elements

import headscope
from headscope.analysis.head_types import Thresholds
from headscope.analysis.own_metrics import description
from headscope.analysis.reading import Reading
from headscope.errors import UserError
from headscope.show.explore.models import Models
from headscope.trained import records
from headscope.trained.records import FILE, SPEECHES
from headscope.training.callbacks import saving

pytestmark = pytest.mark.usefixtures("pictures_not_drawn")


@pytest.fixture(scope="module")
def run(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five steps whose heads have names, with ALiBi, and other ones by its thresholds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("one_name"))
        return headscope.train([*words_of(speeches), "hydra.run.dir=run"]).folder.absolute()


def words_of(speeches: Path) -> list[str]:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=5", "trainer.val_every_steps=2"]
    words += ["callbacks.saving.keep_steps=[0,3]", "model/position=alibi"]
    return [*words, "callbacks.heads.thresholds.short_range=0.99"]


def in_explore(checkpoint) -> list[str]:
    return labels(measured(Models(str(checkpoint), None, "cpu").get("this")))


def labels(record) -> list[str]:
    return [head_type.label for head_type in record.types]


def in_report(script, checkpoint, *words) -> list[str]:
    script("analyze", f"checkpoint={checkpoint}", "output_dir=report", *words).succeeded()
    return names_in(csv.DictReader(Path("report/heads.csv").read_text().splitlines()))


def names_in(rows) -> list[str]:
    """The names in the rows of heads.csv or history.csv."""
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
    """The names of the snapshots in the tab, by step."""
    return {header["step"]: header["names"] for header in snapshot_headers(run)}


def assert_one_name(run: Path, tmp_path: Path) -> None:
    """Each checkpoint has the names of its snapshot. What is measured when a checkpoint is opened
    after a kill is what training would have measured."""
    tab = in_tab(run)
    killed = Path(shutil.copytree(run, tmp_path / "killed")) / "checkpoints"
    [first, *_] = records.entries_in(killed).items()
    records.write_entries(killed, dict([first]))
    for file in run.glob("checkpoints/*.safetensors"):
        known, again = headscope.load(file), headscope.load(killed / file.name)
        assert in_explore(known.path) == in_page(known) == tab[known.step]
        assert json.dumps(known.known_record().stored()) == json.dumps(again.record().stored())


def test_a_run_has_one_name_per_head_by_its_own_thresholds(script, run, tmp_path):
    assert_one_name(run, tmp_path)
    last = run / "checkpoints/last.safetensors"
    assert "global" in in_explore(last)
    assert in_explore(last) == in_report(script, last)
    report = json.loads(Path("report/heads.json").read_text())
    stored = headscope.load(last).known_record()
    assert (report["windows"], report["tokens"]) == (stored.windows, stored.tokens)
    assert stored.windows * stored.tokens == 1024
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
    known = loaded.known_record()
    assert labels(known) != labels(replace(known, thresholds=Thresholds()))
    shutil.copy(last, copy)
    assert records.record_in(tmp_path, loaded.digest, loaded.model) is None
    heads = Path(shutil.copy(last.parent / FILE, tmp_path))
    assert labels(headscope.load(copy).known_record()) == labels(known)
    for damaged in (b"", b"[]", b"{}", heads.read_bytes()[:-9], b"\xff" * 99):
        heads.write_bytes(damaged)
        assert records.record_in(tmp_path, loaded.digest, loaded.model) is None


@contextmanager
def busy(programs: int):
    """Other programs keep the machine busy."""
    loops = [Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    yield
    for each in loops:
        each.kill()
        each.wait()


@pytest.mark.slow
@pytest.mark.parametrize("programs", [0, 4])
def test_a_killed_resumed_and_imported_run_has_one_name_per_head(
    programs, script, speeches, tmp_path, monkeypatch
):
    words, log = words_of(speeches), tmp_path / "log"
    assert wait(session([*words, "hydra.run.dir=whole"], log)) == 0
    with busy(programs):
        killed = session([*words, "hydra.run.dir=outputs/run"], log, "training_step", 4)
        assert wait(killed) == -signal.SIGKILL
        assert wait(session(["resume=outputs/run"], log)) == 0
    resumed = Path("outputs/run")
    both = [records.entries_in(folder / "checkpoints") for folder in (resumed, Path("whole"))]
    assert both[0] == both[1]
    assert {entry["step"] for entry in both[0].values()} == {0, 3, 5}
    assert script("train", f"resume={resumed}", "trainer.max_steps=8").code == 0
    tab = in_tab(resumed)
    assert tab.keys() >= {0, 3, 8}
    assert_one_name(resumed, tmp_path)
    for file in resumed.glob("checkpoints/*.safetensors"):
        assert in_explore(file) == in_report(script, file)
    rows = [*csv.DictReader(Path("report/history.csv").read_text().splitlines())]
    for step in (0, 3):
        assert tab[step] == names_in([row for row in rows if row["step"] == str(step)])
    record = headscope.load(resumed, step=3).record().metrics["previous"].flatten().tolist()
    table = headscope.history(resumed).query("step == 3 and metric == 'previous'")
    assert table["value"].tolist() == record

    assert script("convert", f"checkpoint={resumed}", "to=huggingface", "output=exported").code == 0
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    for more, source in (((), SPEECHES), ((f"text={speeches}",), str(speeches))):
        output = f"outputs/imported{len(more)}"
        script("convert", "source=exported", f"output={output}", *more).succeeded()
        assert measured(Models(output, None, "cpu").get("this")).source == source
    both = map(headscope.load, (resumed / "checkpoints/best.safetensors", output))
    default = [replace(each.record(), thresholds=Thresholds()) for each in both]
    assert labels(default[0]) == labels(default[1])


class Stop(Callback):
    def on_train_batch_end(self, trainer, *args) -> None:
        if trainer.global_step == 5:
            signal.raise_signal(signal.SIGINT)


def test_best_and_last_have_a_record_of_the_steps_they_saved(speeches, tmp_path, monkeypatch):
    """Also when no planned step is one of them, and in a run that is stopped."""
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=6", "trainer.val_every_steps=2"]
    words += ["callbacks.attention.steps=0", "callbacks.saving.keep_steps=[]", "optimizer.lr=30"]
    with pytest.raises(KeyboardInterrupt):
        headscope.train([*words, "hydra.run.dir=run"], callbacks=[Stop()])
    files = [Path(f"run/checkpoints/{name}.safetensors") for name in ("best", "last")]
    best, last = map(headscope.load, files)
    assert best.step < last.step == 5
    for loaded in (best, last):
        record = records.record_in(loaded.path.parent, loaded.digest, loaded.model)
        assert record.step == loaded.step


@pytest.mark.parametrize("error", [UserError("the disk is full"), KeyboardInterrupt()])
def test_an_interrupt_stays_one_if_its_records_cannot_be_written(
    speeches, tmp_path, monkeypatch, error
):
    monkeypatch.chdir(tmp_path)

    def fail(*given):
        raise error

    monkeypatch.setattr(saving, "write_entries", fail)
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=6", "hydra.run.dir=run"]
    with pytest.raises(KeyboardInterrupt):  # not the error, and no SystemExit of Lightning
        headscope.train(words, callbacks=[Stop()])
    assert headscope.load("run").step <= 5


def test_a_few_tokens_give_no_names(run):
    loaded = headscope.load(run)
    texts = ["We the people of the United States, in Order to form", "We the"]
    names = [{each.name for each in loaded.read(text).record().types} for text in texts]
    alone = [Reading(loaded.model, loaded.tokens(text), loaded.tokenizer) for text in texts]
    assert [{each.name for each in reading.record().types} for reading in alone] == [{"-"}, {"-"}]
    assert names[0] == names[1] != {"-"}


DAMAGED = {
    "metric": lambda entry: entry["metrics"].update(self=[[1e308] * 4] * 2),
    "name": lambda entry: entry["metrics"].update({"\ud800": [[0.1] * 4] * 2}),
    "name of uniform": lambda entry: entry["uniform"].update({"\ud800": entry["uniform"]["self"]}),
    "no metric": lambda entry: entry["metrics"].pop("self"),
    "uniform": lambda entry: entry["uniform"]["self"].__setitem__(0, 1e308),
    "length of uniform": lambda entry: entry["uniform"]["self"].append(0.1),
    "descriptions": lambda entry: entry.update(descriptions={"self": "\ud800"}),
    "many": lambda entry: entry.update(descriptions={str(number): "" for number in range(101)}),
    "source": lambda entry: entry.update(source="\ud800"),
    "windows": lambda entry: entry.update(windows=0),
    "tokens": lambda entry: entry.update(tokens=2**60),
    "thresholds": lambda entry: entry["thresholds"].update(previous="a"),
}


@pytest.mark.parametrize("change", DAMAGED)
def test_heads_json_with_what_nobody_can_show_counts_as_damaged(run, tmp_path, change, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    entries = records.entries_in(folder)
    for entry in entries.values():
        DAMAGED[change](entry)
    records.write_entries(folder, entries)
    loaded = headscope.load(tmp_path / "run")
    assert records.record_in(folder, loaded.digest, loaded.model) is None
    assert len(in_page(loaded)) == len(in_explore(tmp_path / "run"))


def test_a_metric_may_have_every_number_of_float32(run, tmp_path):
    folder = Path(shutil.copytree(run, tmp_path / "run")) / "checkpoints"
    entries, loaded = records.entries_in(folder), headscope.load(run)
    layers, heads = loaded.model.attentions, loaded.model.attentions[0].heads
    entries[loaded.digest]["metrics"]["mine"] = [[3e38] * heads] * len(layers)
    entries[loaded.digest]["uniform"]["mine"] = [3e38] * len(layers) * heads
    records.write_entries(folder, entries)
    record = records.record_in(folder, loaded.digest, loaded.model)
    assert record is not None
    assert record.uniform["mine"] == [3e38] * len(layers) * heads


def test_a_checkpoint_without_a_record_is_measured_as_those_of_its_run(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    folder = Path(shutil.copytree(run, tmp_path / "run")) / "checkpoints"
    [(digest, entry), *others] = records.entries_in(folder).items()
    records.write_entries(folder, {digest: entry | {"windows": 3}})
    found = [headscope.load(file).record() for file in folder.glob("*.safetensors")]
    assert {record.digest for record in found} == {digest, *dict(others)}
    assert {record.windows for record in found} == {3}
    records.write_entries(folder, {"other": entry | {"windows": 10**6}})  # of a stranger
    assert records.settings_in(folder, headscope.load(run).model) == {}


def test_a_metric_that_is_not_a_number_stays_one(run, tmp_path):
    loaded = headscope.load(run)
    stored = loaded.record().stored()
    stored["metrics"]["own"] = [[math.nan] * 4] * 2
    records.write_entries(tmp_path, {loaded.digest: stored})
    found = records.record_in(tmp_path, loaded.digest, loaded.model)
    assert found.metrics["own"].isnan().all()
    assert found.metrics.keys() == stored["metrics"].keys()


def test_a_docstring_with_half_of_a_surrogate_pair_can_be_shown():
    def metric(weights, tokens):
        raise NotImplementedError

    metric.__doc__ = "Half \ud800 of a pair."
    assert description(metric) == "Half ? of a pair."
