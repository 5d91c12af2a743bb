"""The steps that a run keeps, and the table of what happened at them."""

import csv
import shutil
from pathlib import Path

import pytest
from refusals import refused
from running import SMALL, events

import headscope
from headscope.trained.checkpoint import find
from headscope.training.callbacks.steps import spread_steps

WORDS = [*SMALL[1:], "data=repeats", "data.characters=20000", "tokenizer=char"]
WORDS += ["trainer.max_steps=40"]
KEPT = spread_steps(10, 40)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("kept"))
        words = ["trainer.val_every_steps=20", "trainer.log_every_steps=10"]
        return headscope.train([*WORDS, *words, "hydra.run.dir=outputs/run"]).folder.resolve()


@pytest.mark.parametrize(
    ("words", "steps", "kept"),
    [
        ("keep_megabytes=0.4", 40, [0, 4, 40]),
        ("keep_megabytes=0", 4, []),
        ("keep_steps=[]", 4, []),
        ("keep_steps=[1,2] keep_megabytes=0", 4, [1, 2]),
    ],
)
def test_a_run_keeps_as_many_steps_as_fit_or_those_of_a_list(
    tmp_path, monkeypatch, words, steps, kept
):
    monkeypatch.chdir(tmp_path)
    given = [f"callbacks.saving.{word}" for word in words.split()]
    other = headscope.train([*WORDS, f"trainer.max_steps={steps}", *given])
    assert headscope.load(other.folder).steps == kept
    sizes = [file.stat().st_size for file in other.folder.glob("checkpoints/step_*")]
    assert "megabytes=0.4" not in words or 100_000 < sum(sizes) < 440_000  # and the metadata


def test_every_name_of_a_step_opens_it(run, monkeypatch):
    monkeypatch.chdir(run.parents[1])
    assert len(KEPT) == len(headscope.load(run).steps) == 10
    for step in KEPT:
        loaded = headscope.load(run, step=step)
        assert (loaded.step, loaded.steps) == (step, KEPT)
        for name in (f"outputs/run@{step}", f"@{step}", f"{loaded.path}@{step}"):
            assert find(name).resolve() == loaded.path
    loaded.path.rename(run / "mine@7.safetensors")
    assert find("@40").name == "last.safetensors"
    assert headscope.load(run / "mine@7.safetensors").step == 40
    (run / "mine@7.safetensors").rename(loaded.path)
    for step in (7, "x", 1.5, -1, "", "4" * 200, "4" * 5000):
        with refused(f"@{str(step)[:80]}: ", ", ".join(map(str, KEPT))):
            headscope.load(run, step=step)
    for name in ("x" * 5000, "x" * 5000 + "@4"):
        with refused("xxx does not exist"):
            headscope.load(name)
    renamed = headscope.load(run, step=KEPT[1]).path.rename(
        run / "checkpoints/step_000007.safetensors"
    )
    with refused("run@7: ", "step_000007.safetensors was renamed", f"step {KEPT[1]};"):
        headscope.load(run, step=7)
    assert headscope.load(renamed).step == KEPT[1]
    renamed.rename(renamed.with_name(f"step_{KEPT[1]:06}.safetensors"))
    with refused("only from its newest state", "init_from=outputs/run@2"):
        headscope.train(["resume=outputs/run@2"])


@pytest.mark.usefixtures("pictures_not_drawn")
def test_the_history_is_that_of_the_report_and_of_the_log(run, script, tmp_path):
    run = Path(shutil.copytree(run, tmp_path / "outputs/run"))
    kept = [KEPT[0], KEPT[-1]]
    for file in run.glob("checkpoints/step_*"):
        if int(file.stem.removeprefix("step_")) not in kept:
            file.unlink()
    table = headscope.history([run, "outputs/run"], ablation=True)
    assert [*table.columns] == ["run", "seed", "step", "layer", "head", "metric", "value"]
    table, again = (table[table["run"] == name] for name in (str(run), "outputs/run"))
    assert table["value"].equals(again["value"].reset_index(drop=True))
    heads = table.dropna(subset="layer")
    script("analyze", "checkpoint=outputs/run", "ablation=true", "tensorboard=false").succeeded()
    with (run / "analysis" / "history.csv").open() as lines:
        rows = [*csv.DictReader(lines)]
    assert [*dict.fromkeys(int(row["step"]) for row in rows)] == kept
    for metric, of_metric in heads.groupby("metric"):
        values = of_metric.sort_values(["step", "layer", "head"])["value"].tolist()
        assert values == pytest.approx([float(row[metric]) for row in rows], nan_ok=True), metric
    assert {*heads["metric"]} > {"previous", "induction", "loss_change", "other_induction"}
    alone = headscope.load(run, step=40).ablations()
    at_end = heads[(heads["step"] == 40) & (heads["metric"] == "loss_change")]
    assert at_end["value"].tolist() == pytest.approx(alone["loss_change"].tolist())
    whole = table[table["layer"].isna()]
    for tag in ("train/loss", "val/loss"):
        logged = [(event.step, event.value) for event in events(run).Scalars(tag)]
        found = whole[whole["metric"] == tag]
        assert [*zip(found["step"], found["value"], strict=True)] == logged
    tokens = whole[whole["metric"] == "measured_tokens"].set_index("step")["value"].to_dict()
    assert tokens == {int(row["step"]): int(row["measured_tokens"]) for row in rows}
    with refused("nowhere is not the folder of a run"):
        headscope.history("nowhere")
