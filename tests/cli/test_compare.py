"""The laws of a comparison: it says what its runs said, and goes on where it was stopped."""

import csv
import json
import statistics
from pathlib import Path

import pytest
import running
from running import SMALL, Said, Script

from headscope.errors import UserError
from headscope.stop import Interrupted
from headscope.training import run as training

FOLDER = Path("outputs/compare_own")
CHOICES = ["model/position=learned model.heads=2", "model/position=rotary"]  # the better one last
NAMES = {"rotary": "rotary", "learned heads=2": "learned_heads=2"}


@pytest.fixture
def compare(script: Script, speeches: Path):
    def run(*arguments: str) -> Said:
        words = [*SMALL, f"data.path={speeches}", "seeds=[1,2]", "speed_rounds=1"]
        words += ["trainer.max_steps=3", "trainer.val_every_steps=3"]
        if not any(word.startswith("compare") for word in arguments):
            words += [f"compare.choices={json.dumps(CHOICES)}", "compare.block_sizes=[32,64]"]
        return script("compare", *words, *arguments)

    return run


def rows() -> dict[str, dict[str, str]]:
    with (FOLDER / "comparison.csv").open() as file:
        return {row["choice"]: row for row in csv.DictReader(file)}


def summary(choice: str, seed: int) -> dict[str, float]:
    return running.summary(FOLDER / NAMES[choice] / f"seed_{seed}")


def failing(error: Exception, *, heads: int):
    """`fit`, which raises an error for a model of so many heads."""
    fit = training.fit

    def fails(run):
        if run.config.model.heads == heads:
            raise error
        return fit(run)

    return fails


@pytest.mark.slow
def test_the_figures_are_those_of_the_runs(compare, script: Script, monkeypatch) -> None:
    said = compare().succeeded()
    assert rows().keys() == NAMES.keys()
    means = [float(row["bits_per_byte"]) for row in rows().values()]
    assert means == sorted(means)
    for choice, row in rows().items():
        summaries = [summary(choice, seed) for seed in (1, 2)]
        bits = [run["val_bits_per_byte"] for run in summaries]
        assert bits[0] != bits[1]
        assert [float(row["seed_1"]), float(row["seed_2"])] == bits
        assert float(row["bits_per_byte"]) == pytest.approx(statistics.mean(bits))
        assert float(row["deviation"]) == pytest.approx(statistics.stdev(bits))
        assert float(row["bits_per_byte_at_32"]) == pytest.approx(bits[0], rel=1e-5)
        assert int(row["parameters"]) == summaries[0]["parameters"]
        assert int(row["cache_bytes_per_token"]) == 2 * 2 * 32 * 4  # layers, K and V, width, fp32
        assert float(row["step_ms"]) > 0
        assert float(row["sampled_tokens_per_second"]) > 0
        assert choice in said.out
    assert float(rows()["rotary"]["bits_per_byte_at_64"]) > 0
    assert rows()["learned heads=2"]["bits_per_byte_at_64"] == ""
    for picture in ("comparison.png", "lengths.png"):
        assert (FOLDER / picture).read_bytes().startswith(b"\x89PNG")
    assert list(FOLDER.glob("rotary/seed_1/tensorboard/events*"))
    assert script("sample", f"checkpoint={FOLDER}/rotary/seed_2", "max_new_tokens=3").code == 0

    # Once more, it trains nothing, and only the times differ.
    before = rows()
    monkeypatch.setattr(training, "fit", None)
    compare().succeeded()
    for choice, row in rows().items():
        same = row.keys() - {"step_ms", "sampled_tokens_per_second"}
        assert {key: row[key] for key in same} == {key: before[choice][key] for key in same}


@pytest.mark.slow
def test_a_stopped_comparison_goes_on_and_ends_alike(compare, monkeypatch) -> None:
    brief = ["seeds=[1]", "speed_rounds=0"]
    assert compare(*brief, "name=whole").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", failing(Interrupted(), heads=4))  # the second choice
        said = compare(*brief)
    assert said.code == 130
    assert "The same command continues" in said.out
    assert not (FOLDER / "comparison.csv").exists()
    said = compare(*brief).succeeded()
    whole = Path("outputs/compare_whole/comparison.csv").read_bytes()
    assert (FOLDER / "comparison.csv").read_bytes() == whole
    compare(*brief, "trainer.max_steps=4").refused("other settings of trainer: move")


def test_a_failed_choice_does_not_end_the_others(compare, monkeypatch) -> None:
    """Their figures are those of the run."""
    monkeypatch.setattr(training, "fit", failing(UserError("the disk is full"), heads=2))
    said = compare("seeds=[1]", "speed_rounds=0")
    assert said.code == 1
    assert "  choice=learned heads=2: the disk is full" in said.err
    assert rows().keys() == {"rotary"}
    assert float(rows()["rotary"]["bits_per_byte"]) == summary("rotary", 1)["val_bits_per_byte"]
