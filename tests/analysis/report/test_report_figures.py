"""The figures in a report are those of the model and of the text."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import configuration, content, save
from reports import TEXT, moments_of, rows_of
from running import Script

import headscope
from headscope import checkpoint
from headscope.analysis.ablation import ablate_heads, mean_outputs, other_induction
from headscope.analysis.diversity import cosine_similarity, jensen_shannon
from headscope.analysis.metrics import head_figures
from headscope.data.tokenizer import bpe
from headscope.evaluation import validation_text
from headscope.nn.capture import attention_weights
from headscope.viewer.snapshot import max_bytes

pytestmark = pytest.mark.usefixtures("pictures_not_drawn")


def test_the_figures_are_those_of_the_text(script: Script, run: Path) -> None:
    said = script("analyze", f"checkpoint={run}", f"text={TEXT}")
    assert said.code == 0, said.err
    assert len(said.out.splitlines()) == 8
    assert said.out.startswith("L0H0  ")
    assert "the first 8 of" in said.err
    rows = rows_of(run / "analysis" / "heads.csv")
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

    largest = rows_of(run / "analysis" / "largest_weights.csv")
    assert len(largest) == 8
    for row in largest:
        layer, head, query, key = (int(row[name]) for name in ("layer", "head", "query", "key"))
        weights = reading.weights[layer, head]
        assert float(row["weight"]) == weights[1:].max() == weights[query, key]
        assert (row["query_token"], row["key_token"]) == (
            reading.labels[query],
            reading.labels[key],
        )

    names = [f"L{n // 4}H{n % 4}" for n in range(8)]
    weights = reading.weights.flatten(0, 1)
    alike = cosine_similarity(weights)
    for file, matrix in (("similarity", alike), ("jensen_shannon", jensen_shannon(weights))):
        table = rows_of(run / "analysis" / f"{file}.csv")
        assert [row["head"] for row in table] == names
        for row, expected_row in zip(table, matrix.tolist(), strict=True):
            assert [float(row[name]) for name in names] == pytest.approx(expected_row, abs=1e-5)
    others = (alike.sum(dim=1) - 1) / 7
    assert [float(row["uniqueness"]) for row in rows] == pytest.approx((1 - others).tolist())
    assert as_json["diversity"] == pytest.approx(float((1 - others).mean()), rel=1e-4)
    pairs = sorted(alike[*torch.triu_indices(8, 8, 1)].tolist())
    assert [pair["similarity"] for pair in as_json["least_alike"]] == pytest.approx(pairs[:5])
    assert [pair["similarity"] for pair in as_json["most_alike"]] == pytest.approx(pairs[:-6:-1])
    first, second = (names.index(name) for name in as_json["most_alike"][0]["heads"])
    assert alike[first, second].item() == pytest.approx(pairs[-1])


def test_heads_are_removed_on_the_validation_split(script: Script, run: Path) -> None:
    words = ("ablation=true", "ablation_windows=5", "windows=6", "replace_by=mean")
    said = script("analyze", f"checkpoint={run}", *words)
    assert said.code == 0, said.err
    assert (run / "analysis" / "ablation.png").is_file()
    assert json.loads((run / "analysis" / "heads.json").read_text())["windows"] == 6
    loaded = headscope.load(run / "checkpoints" / "best.safetensors")
    config = loaded.config
    text = validation_text(checkpoint.stored_corpus(config), loaded.tokenizer)
    windows = text.tokens[: len(text.tokens) // 9 * 9].reshape(-1, 9).astype(np.int64)
    chosen = torch.from_numpy(windows[np.linspace(0, len(windows) - 1, 5).astype(int)])
    expected = ablate_heads(loaded.model, chosen[:, :-1], chosen[:, 1:], replace_by="mean")
    means = mean_outputs(loaded.model, chosen[:, :-1], max_batch=8)
    end_of_text = loaded.tokenizer.end_of_text
    others = other_induction(loaded.model, means=means, excluded=[end_of_text]).flatten().tolist()
    for number, row in enumerate(rows_of(run / "analysis" / "heads.csv")):
        assert float(row["other_induction"]) == pytest.approx(others[number], rel=1e-3, abs=1e-6)
        change = expected["nats_per_token"].flatten()[number].item()
        error = expected["standard_error"].flatten()[number].item()
        assert float(row["loss_change"]) == pytest.approx(change, rel=1e-4, abs=1e-7)
        assert float(row["loss_change_error"]) == pytest.approx(error, rel=1e-4, abs=1e-7)
        # A byte a token.
        assert float(row["bits_per_byte_change"]) == pytest.approx(change / np.log(2), rel=1e-3)
    columns = {row["figure"]: row for row in rows_of(run / "analysis" / "columns.csv")}
    for name in ("self", "frequent", "punctuation", "uniqueness", "loss_change"):
        assert columns[name]["measured_on"] == "validation windows"
    lines = said.out.splitlines()
    assert len(lines) == 8 + 1 + 5  # what each head is called, a title, the most important ones
    order = expected["nats_per_token"].flatten().argsort(descending=True)[:5].tolist()
    assert [line.split()[0] for line in lines[9:]] == [f"L{n // 4}H{n % 4}" for n in order]
    assert float(lines[9].split()[1]) == pytest.approx(
        float(expected["nats_per_token"].max()), abs=6e-5
    )
    assert [line.split()[-1] for line in lines[9:]] == [f"{others[n]:.2f}" for n in order]
    about = json.loads((run / "analysis" / "heads.json").read_text())["ablation"]
    assert about == {
        "replace_by": "mean",
        "windows": 5,
        "loss": pytest.approx(float(expected["loss"]), rel=1e-5),
        "correlation_with_loss_change": dict.fromkeys(
            ["gradient_importance", "loss_change_estimate"]  # not estimated
        ),
    }


def test_a_bit_is_per_byte_and_not_per_token(script: Script, run: Path) -> None:
    pairs = Path("pairs.txt")
    pairs.write_text("ab" * 400)
    tokenizer = bpe(["ab" * 50], vocab_size=258)
    assert len(tokenizer.encode("abababab")) == 4
    config = configuration() | {
        "data": {"_target_": "headscope.data.own_files.TextFiles", "path": str(pairs)}
    }
    save(content(config, tokenizer)[0], run / "checkpoints" / "best.safetensors")
    said = script("analyze", f"checkpoint={run}", "ablation=true")
    assert said.code == 0, said.err
    for row in rows_of(run / "analysis" / "heads.csv"):
        bits = float(row["loss_change"]) / np.log(2) / 2  # two bytes a token
        assert float(row["bits_per_byte_change"]) == pytest.approx(bits, rel=1e-4)


def test_every_figure_has_its_uniform_value_and_the_text_it_is_of(
    script: Script, run: Path
) -> None:
    said = script("analyze", f"checkpoint={run}", "ablation=true", "text=We the people")
    assert said.code == 0, said.err
    report = run / "analysis"
    columns = {row["figure"]: row for row in rows_of(report / "columns.csv")}
    heads = rows_of(report / "heads.csv")
    figures = [
        name
        for name in heads[0]
        if name not in ("layer", "head", "type") and not name.startswith("uniform_")
    ]
    assert list(columns) == figures
    repeats = ("induction", "duplicate", "repeat_previous", "other_induction")
    for name, row in columns.items():
        expected = "repeated random texts" if name in repeats else "the given text"
        if name.startswith(("loss_change", "bits_per_byte")):
            expected = "validation windows"
        assert row["measured_on"] == expected
        if row["uniform"]:
            assert {one[f"uniform_{name}"] for one in heads} == {row["uniform"]}
        else:
            ablated = ("loss_change", "bits_per_byte", "other_induction")
            assert name.startswith((*ablated, "uniqueness"))
    even = head_figures(torch.ones(8, 8).tril() / torch.arange(1, 9)[:, None])
    for name, value in even.items():
        assert float(columns[name]["uniform"]) == pytest.approx(value.item(), abs=1e-6)
    assert float(columns["induction"]["uniform"]) == 0
    assert "frequent" not in columns  # a text is too short to tell
    as_json = json.loads((report / "heads.json").read_text(), parse_constant=pytest.fail)
    assert [row["figure"] for row in as_json["figures"]] == figures
    assert as_json["measured_on"]["jensen_shannon.csv"] == "the text of attention.html"


def test_from_python(run: Path) -> None:
    loaded = headscope.load(run)
    reading = loaded.attention("We the")
    assert reading.labels == list("We·the")
    assert reading.weights.shape == (2, 4, 6, 6)
    torch.testing.assert_close(reading.weights.sum(-1), torch.ones(2, 4, 6))
    assert torch.equal(loaded.attention(reading.tokens).weights, reading.weights)


@pytest.mark.slow
def test_every_moment_of_a_run_is_what_its_own_report_says(script: Script, run: Path) -> None:
    moments = moments_of(run)
    said = script("analyze", f"checkpoints={run}", "windows=3")
    assert said.code == 0, said.err
    folder = run / "analysis"
    assert json.loads((folder / "heads.json").read_text())["step"] == 7  # the last
    assert (folder / "history.png").is_file()
    history = rows_of(folder / "history.csv")
    assert len(history) == 3 * 8
    for step, moment in zip((0, 3, 7), moments, strict=True):
        said = script("analyze", f"checkpoint={moment}", "windows=3", "output_dir=alone")
        assert said.code == 0, said.err
        alone = rows_of(Path("alone/heads.csv"))
        assert [row for row in history if row["step"] == str(step)] == [
            {"step": str(step), **row} for row in alone
        ]
    assert len({row["entropy"] for row in history}) > 8


def test_moments_may_be_named_one_by_one_in_any_order(script: Script, run: Path) -> None:
    first, _, last = moments_of(run)
    words = (f"checkpoints=[{last}, {first}]", f"checkpoint={run}", "text=We the people")
    said = script("analyze", *words)
    assert said.code == 0, said.err
    steps = [row["step"] for row in rows_of(run / "analysis" / "history.csv")]
    assert steps == ["0"] * 8 + ["7"] * 8


def test_a_page_holds_as_many_tokens_as_a_browser_can(
    script: Script, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = max_bytes(layers=2, heads=4, tokens=5)
    monkeypatch.setattr("headscope.analysis.report.page.MAX_BYTES", size)
    said = script("analyze", f"checkpoint={run}", "text=abcdefgh")
    assert said.code == 0, said.err
    assert "attention.html has the first 5 of 8 tokens" in said.err
    page = (run / "analysis" / "attention.html").read_text()
    assert '"labels":["a","b","c","d","e"]' in page
    weights = headscope.load(run).attention("abcde").weights.flatten(0, 1)
    assert [float(row["L1H2"]) for row in rows_of(run / "analysis" / "jensen_shannon.csv")] == (
        # The distances are about 0.001, and the square root in them enlarges rounding errors.
        pytest.approx(jensen_shannon(weights)[:, 6].tolist(), abs=1e-4)
    )
