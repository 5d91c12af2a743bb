"""One head, one name: explore, TensorBoard's tab and the report agree on every checkpoint."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from running import SMALL, events
from viewer_data import Elements

import headscope
from headscope.analysis.head_types import Thresholds
from headscope.show.explore.models import Models
from headscope.trained.heads_file import FILE

pytestmark = pytest.mark.usefixtures("pictures_not_drawn")
RUN = Path("outputs/run")
CHECKPOINTS = RUN / "checkpoints"
WORDS = ("name=run", "hydra.run.dir=outputs/run", *SMALL, "callbacks.saving.keep_steps=[0,3]")


def in_explore(checkpoint) -> list[str]:
    return labels(Models(str(checkpoint), None, "cpu").get("this").statistics)


def labels(statistics) -> list[str]:
    return [head_type.label for head_type in statistics.types]


def in_report(script, checkpoint, *words) -> list[str]:
    said = script("analyze", f"checkpoint={checkpoint}", "output_dir=report", *words)
    assert said.code == 0, said.err
    rows = csv.DictReader(Path("report/heads.csv").read_text().splitlines())
    return [
        f"{float(row['offset']):.0f} back" if row["type"] == "fixed-offset" else row["type"]
        for row in rows
    ]


def in_page(loaded) -> list[str]:
    """The names in the page of a notebook."""
    loaded.read("We the people").save_html("page.html")
    [run] = Elements(Path("page.html").read_text(encoding="utf-8")).data["runs"]
    return run["history"]["steps"][0]["names"]


def in_tab(run) -> dict[int, list[str]]:
    """The names that the tab shows at the steps that were measured when the run ended."""
    last = events(run).Tensors("heads")[-1]
    found = json.loads(last.tensor_proto.string_val[0])
    return {int(step): each["names"] for step, each in found.items()}


@pytest.mark.parametrize("steps", [5, pytest.param(8, marks=pytest.mark.slow)])
def test_a_run_and_a_resumed_run_have_one_name_per_head(script, speeches, steps):
    script("train", *WORDS, "trainer.max_steps=5", "trainer.val_every_steps=2")
    if steps > 5:
        assert script("train", "resume=outputs/run", f"trainer.max_steps={steps}").code == 0
    tab = in_tab(RUN)
    assert {0, 3, steps} <= tab.keys()
    files = {file: headscope.load(file) for file in sorted(CHECKPOINTS.glob("*.safetensors"))}
    assert {file.stem for file in files} == {"best", "last", "step_000000", "step_000003"}
    assert len({loaded.digest for loaded in files.values()}) == len(tab)
    for file, loaded in files.items():
        assert in_explore(file) == tab[loaded.step] == in_report(script, file)
        assert in_page(loaded) == tab[loaded.step]
    measured = files[CHECKPOINTS / "last.safetensors"].stored_statistics()
    assert measured.windows * measured.tokens == 4096
    assert measured.source == "the validation split"


def test_names_follow_the_thresholds_and_the_weights(script, speeches):
    script("train", *WORDS, "trainer.max_steps=4")
    last = CHECKPOINTS / "last.safetensors"
    loaded, heads = headscope.load(last), CHECKPOINTS / FILE
    lowest = Thresholds(**dict.fromkeys(Thresholds.__dataclass_fields__, 0.001))
    assert labels(loaded.stored_statistics(lowest)) != labels(loaded.stored_statistics())
    Path("elsewhere").mkdir()
    copy = Path("elsewhere/copy.safetensors")
    copy.write_bytes(last.read_bytes())
    assert headscope.load(copy).stored_statistics() is None
    (copy.parent / FILE).write_bytes(heads.read_bytes())
    assert labels(headscope.load(copy).stored_statistics()) == labels(loaded.stored_statistics())
    for damaged in (b"", b"[]", b"{}", heads.read_bytes().replace(b"0.1", b"0.2"), b"\xff" * 99):
        (copy.parent / FILE).write_bytes(damaged)
        assert headscope.load(copy).stored_statistics() is None
        assert Models(str(copy), None, "cpu").get("this").statistics.source.endswith("wrote")


def test_explore_the_tab_and_the_report_use_the_thresholds_of_the_run(script, speeches):
    script("train", *WORDS, "trainer.max_steps=3", "callbacks.heads.thresholds.even=0.001")
    last = CHECKPOINTS / "last.safetensors"
    tab = in_tab(RUN)[3]
    assert "global" in tab  # untrained heads have no name by the default thresholds
    assert in_explore(last) == tab == in_report(script, last)
    assert "global" not in in_report(script, last, "thresholds.even=1")


def test_plain_callbacks_measure_nothing(script, speeches):
    plain = ("callbacks.attention.steps=0", "callbacks.samples.max_new_tokens=0")
    script("train", *WORDS, "callbacks=plain", *plain, "trainer.max_steps=2")
    assert not (CHECKPOINTS / FILE).exists()


def test_the_windows_of_a_report_are_those_of_the_file(script, speeches):
    script("train", *WORDS, "trainer.max_steps=3")
    stored = headscope.load(CHECKPOINTS / "last.safetensors").stored_statistics()
    in_report(script, CHECKPOINTS / "last.safetensors", "windows=2")
    other = json.loads(Path("report/heads.json").read_text())
    assert (other["windows"], other["tokens"]) == (2, 32)
    in_report(script, CHECKPOINTS / "last.safetensors")
    content = json.loads(Path("report/heads.json").read_text())
    assert (content["windows"], content["tokens"]) == (stored.windows, stored.tokens)
    for name, values in stored.metrics.items():
        found = np.array([row[name] for row in content["heads"]], dtype=float)
        torch.testing.assert_close(torch.tensor(found).float(), values.flatten(), equal_nan=True)


@pytest.mark.slow
def test_an_imported_model_has_the_names_that_its_text_gives(script, speeches):
    script("train", *WORDS, "trainer.max_steps=3")
    assert script("convert", f"checkpoint={RUN}", "to=huggingface", "output=exported").code == 0
    for words, source in (((), "wrote"), ((f"text={speeches}",), str(speeches))):
        output = f"outputs/imported{len(words)}"
        said = script("convert", "source=exported", f"output={output}", *words)
        assert said.code == 0, said.err
        assert Models(output, None, "cpu").get("this").statistics.source.endswith(source)
    of_run = headscope.load(CHECKPOINTS / "best.safetensors").stored_statistics()
    assert labels(headscope.load(output).stored_statistics()) == labels(of_run)
