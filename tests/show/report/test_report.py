"""The laws of a report: its numbers are those of the model and of the text, and it removes only
files of a report."""

import base64
import csv
import json
from itertools import chain, pairwise, product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_files import configuration, content, opened, save
from tab_runs import in_process

import headscope
from headscope.analysis import ablation, pictures
from headscope.analysis.circuits import compositions
from headscope.analysis.diversity import cosine_similarity, jensen_shannon
from headscope.analysis.metrics import OF_QUERIES, beyond_first, first_mass, head_metrics
from headscope.data.encode import validation_text
from headscope.data.tokenizer import bpe
from headscope.data.windows import spread_windows
from headscope.files import replacing
from headscope.nn.capture import capture
from headscope.show.report import write
from headscope.show.report.patch_texts import patch_texts
from headscope.show.report.write import shares
from headscope.show.viewer.files import glossary, meanings

pytestmark = pytest.mark.usefixtures("pictures_not_drawn")

TEXT = "ab 🦜\n\x07中文<script>alert(1)</script>"
NAMES = [f"L{layer}H{head}" for layer in range(2) for head in range(4)]
TEXTS = {"clean": "a, 'b' a", "corrupted": "a, 'c' a"}
PATCH = [f"patch.{name}={text}" for name, text in TEXTS.items()]
TEXT_FILE = {"_target_": "headscope.TextFiles", "path": "text.txt"}
"""The key `data` of the configuration of a run that has read text.txt."""


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


def column(rows: list[dict[str, str]], name: str) -> torch.Tensor:
    return torch.tensor([float(row[name]) for row in rows])


def as_json(report: Path) -> dict[str, Any]:
    """heads.json, which must be valid JSON."""
    return json.loads((report / "heads.json").read_text(), parse_constant=pytest.fail)


def moments_of(run: Path, steps: tuple[int, ...] = (0, 3, 7)) -> list[Path]:
    """Checkpoints of the run at these steps, each of other weights, as training keeps them."""
    files = [run / "checkpoints" / f"step_{step:06}.safetensors" for step in steps]
    for step, file in zip(steps, files, strict=True):
        saved = opened(run / "checkpoints" / "best.safetensors")
        fresh, _ = content(step=step, seed=step)
        save(saved | {key: fresh[key] for key in ("tensors", "step")}, file)
    return files


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run's folder with a checkpoint of two layers of four heads, of 8 tokens."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("We the people of the United States. " * 40)
    saved, _ = content()
    saved["config"]["data"] = TEXT_FILE
    checkpoints = tmp_path / "outputs" / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    save(saved, checkpoints / "best.safetensors")
    return checkpoints.parent


@pytest.fixture
def analyze(script, run):
    """analyze("windows=1") writes a report on the run, if no word names another checkpoint."""

    def analyze(*words):
        if not any(word.startswith("checkpoint") for word in words):
            words = (f"checkpoint={run}", *words)
        said = script("analyze", *words)
        assert said.code == 0, said.err
        return said

    return analyze


def close(rows, name, values, rtol=1e-4, atol=1e-6):
    torch.testing.assert_close(column(rows, name), values.flatten(), rtol=rtol, atol=atol)


def test_tables_are_what_the_functions_of_a_loaded_model_say(analyze, run):
    ablate = ("ablation=true", "gradients=true", "ablation_windows=5", "replace_by=mean")
    said = analyze(f"text={TEXT}", *ablate, *PATCH, 'patch.answers=["\'", ","]', "patch.position=7")
    first, *lines = said.out.splitlines()
    assert [line.split()[0] for line in lines[5:13]] == NAMES
    assert "the first 8 of" in said.err
    assert "this file" not in said.err
    report, loaded = run / "analysis", headscope.load(run)
    about, heads = as_json(report), rows_of(report / "heads.csv")
    with pytest.warns(UserWarning, match="only the first 8"):
        reading = loaded.read(TEXT)
    deciders = reading.deciders()
    deciders = deciders[deciders["part"].str.contains("H")]
    largest = (deciders["without"] - deciders["probability"]).abs().nlargest(5).index
    rows = deciders.loc[largest]
    assert f"{rows['probability'].iloc[0]:.4f}" in first
    shown = [f"{row.part}  {row.without:.4f}" for row in rows.itertuples()]
    assert lines[:5] == shown
    assert (about["windows"], about["tokens"], len(reading.tokens)) == (18, 8, 8)
    assert [f"L{row['layer']}H{row['head']}" for row in heads] == NAMES
    assert [row["type"] for row in about["heads"]] == [row["type"] for row in heads]
    text = validation_text(loaded.corpus(), loaded.tokenizer).tokens
    windows = capture(loaded.model, spread_windows(text, length=8, windows=18)).attention
    left, others, active = beyond_first(windows)  # of the record, which is of the validation split
    for name, metric in OF_QUERIES.items():
        values, queries = metric(left, others)
        queries = (queries & active).float()
        close(heads, name, (queries * values).sum((1, 3)) / queries.sum((1, 3)))
    close(heads, "first", first_mass(windows)[0][..., 1:].mean((1, 3)))
    check_pairs(report, heads, reading.attention.flatten(0, 1), about)
    check_largest_weights(report, reading)
    check_predictions(report, reading)
    check_deciders(report, [loaded], reading.tokens.tolist())
    assert not (report / "examples.csv").exists()  # they are of other texts
    check_reads(report, [loaded], reading.tokens.tolist())
    check_ablation(heads, loaded, about["ablation"])
    patched = patch_texts(loaded, **TEXTS, answers=["'", ","], position=7).result
    rows = rows_of(report / "patching.csv")
    assert [f"L{row['layer']}H{row['head']}" for row in rows] == NAMES
    close(rows, "denoising", patched.denoising, atol=1e-4)
    close(rows, "noising", patched.noising, atol=1e-4)
    assert about["patching"]["clean"] == list("a,·'b'·a")
    assert about["patching"]["metric_clean"] == pytest.approx(patched.clean, rel=1e-4)
    row = rows_of(report / "composition.csv")[5]
    assert (row["head"], row["earlier"]) == ("L1H1", "L0H1")
    assert float(row["k"]) == pytest.approx(float(compositions(loaded.model)["k"][1, 1, 0, 1]))


def check_pairs(report, heads, weights, about):
    """How alike all pairs of heads are."""
    alike = cosine_similarity(weights)
    for file, expected in (("similarity", alike), ("jensen_shannon", jensen_shannon(weights))):
        table = rows_of(report / f"{file}.csv")
        assert [row["head"] for row in table] == NAMES
        found = torch.stack([column(table, name) for name in NAMES], dim=1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    unique = 1 - (alike.sum(dim=1) - 1) / 7
    close(heads, "uniqueness", unique)
    assert about["diversity"] == pytest.approx(float(unique.mean()), rel=1e-4)


def check_largest_weights(report, reading):
    rows = rows_of(report / "largest_weights.csv")
    for row, weights in zip(rows, reading.attention.flatten(0, 1), strict=True):
        query, key = int(row["query"]), int(row["key"])
        assert float(row["weight"]) == weights[1:].max() == weights[query, key]
        tokens = [row["query_token"], row["key_token"]]
        assert tokens == [reading.labels[query], reading.labels[key]]


def check_predictions(report, reading):
    likely, text = reading.lens.softmax(-1), reading.tokens.tolist()
    rows = rows_of(report / "lens.csv")
    close(rows, "probability", likely.max(-1).values.T)
    following = likely[:, :-1].gather(2, torch.tensor(text[1:])[None, :, None].expand(3, -1, -1))
    close([row for row in rows if row["position"] != "7"], "next_probability", following[..., 0].T)
    rows = rows_of(report / "pushes.csv")
    pushes = torch.tensor(reading.predictions().target_pushes[..., :-1])  # (L, H, T - 1)
    close(rows, "push", pushes.permute(2, 0, 1), rtol=1e-3, atol=1e-5)
    shown = [(row["token"], row["next_token"]) for row in rows[::8]]
    assert shown == [*pairwise(reading.labels)]


def check_deciders(report, checkpoints, text):
    """What decides the most likely token of the last step, at every step."""
    token = int(checkpoints[-1].logits(text)[-1].argmax())
    tables = [loaded.deciders(text, token=token) for loaded in checkpoints]
    rows = [row for table in tables for row in table.to_dict("records")]
    found = rows_of(report / "deciders.csv")
    assert [[*row.values()][1:] for row in found] == [[*map(str, row.values())] for row in rows]
    assert [*{int(row["step"]): 0 for row in found}] == [loaded.step for loaded in checkpoints]


def check_examples(report, found):
    """What each head does elsewhere, at each step."""
    expected = [{name: str(value) for name, value in row.items()} for row in found]
    assert rows_of(report / "examples.csv") == expected


def check_reads(report, checkpoints, text):
    """The pairs of parts with the largest shares in the scores of each head, at every step."""
    rows = [
        [str(loaded.step), head, *map(str, row.values())]
        for loaded in checkpoints
        for head in NAMES
        for row in loaded.why(head, text).rows()[:5]
    ]
    assert [[*row.values()] for row in rows_of(report / "reads.csv")] == rows
    last = checkpoints[-1].why(NAMES[-1], text)
    figure = shares({head: checkpoints[-1].why(head, text) for head in NAMES})
    for panel, side in zip(figure.axes, ("query_part", "key_part"), strict=False):  # and a bar
        drawn = zip(panel.get_xticklabels(), panel.images[0].get_array()[-1], strict=True)
        for label, share in drawn:
            shown = [row["share"] for row in last.rows() if row[side] == label.get_text()]
            assert share == pytest.approx(sum(shown), abs=1e-5)


@pytest.mark.parametrize("words", [["text=W"], ["checkpoint=additive.safetensors"]])
def test_without_sums_that_differ_the_report_does_not_say_what_heads_read(analyze, words):
    saved, _ = content(configuration("model/attention=additive"))
    save(saved, "additive.safetensors")
    analyze("text=We the", *words, "output_dir=report")
    assert not [*Path("report").glob("reads.*")]


def check_ablation(heads, loaded, about):
    """On windows that are evenly spread over the validation split."""
    text = validation_text(loaded.corpus(), loaded.tokenizer)
    windows = text.tokens[: len(text.tokens) // 9 * 9].reshape(-1, 9).astype(np.int64)
    chosen = torch.from_numpy(windows[np.linspace(0, len(windows) - 1, 5).astype(int)])
    inputs, targets = chosen[:, :-1], chosen[:, 1:]
    means = ablation.mean_outputs(loaded.model, inputs)
    removed = ablation.ablate_heads(loaded.model, inputs, targets, means=means)
    estimate = ablation.gradient_importance(loaded.model, inputs, targets, means=means)
    excluded = [loaded.tokenizer.end_of_text]
    loss, change = float(removed.pop("loss")), removed["loss_change"].flatten()
    for name, values in {
        "other_induction": ablation.other_induction(loaded.model, means=means, excluded=excluded),
        "bits_per_byte_change": change / np.log(2),  # a token is a byte
        **removed,
        **{name: values for name, values in estimate.items() if name != "loss"},
    }.items():
        close(heads, name, values, rtol=1e-3)
    estimates = ("gradient_importance", "loss_change_estimate")
    related = {name: np.corrcoef(column(heads, name), change)[0, 1] for name in estimates}
    assert about.pop("correlation_with_loss_change") == pytest.approx(related, rel=1e-3)
    assert about == {"replace_by": "mean", "windows": 5, "loss": pytest.approx(loss, rel=1e-5)}


def test_a_bit_is_per_byte_and_not_per_token(analyze, run):
    Path("text.txt").write_text("ab" * 400)
    tokenizer = bpe(["ab" * 50], vocab_size=258)
    assert len(tokenizer.encode("abababab")) == 4
    saved, _ = content(configuration() | {"data": TEXT_FILE}, tokenizer)
    save(saved, run / "checkpoints" / "best.safetensors")
    analyze("ablation=true")
    rows = rows_of(run / "analysis" / "heads.csv")
    bits = column(rows, "loss_change") / np.log(2) / 2  # a token is two bytes
    torch.testing.assert_close(column(rows, "bits_per_byte_change"), bits, rtol=1e-4, atol=1e-9)


def test_every_metric_has_its_uniform_value_and_the_text_that_it_was_measured_on(analyze, run):
    analyze("ablation=true", "gradients=true", "text=We the people")
    report = run / "analysis"
    columns = {row["metric"]: row for row in rows_of(report / "columns.csv")}
    heads = rows_of(report / "heads.csv")
    others = ("layer", "head", "type", "uniform_", "measured_tokens")
    assert list(columns) == [name for name in heads[0] if not name.startswith(others)]
    of_pairs = {"diversity", "cosine_similarity", "jensen_shannon", "denoising", "noising"}
    assert {*meanings()["metrics"]} - {"rare"} == {*columns} | of_pairs
    ablated = ("loss_change", "bits_per_byte", "gradient")
    repeats = ("induction", "duplicate", "repeat_previous", "prefix_matching", "other_induction")
    written = glossary()["Metrics of what heads write and read"]
    for name, row in columns.items():
        text = "the given text" if name == "uniqueness" else "the validation split"
        text = "repeated random texts" if name in repeats else text
        text = "the weights of the model" if name in ("copying", "composition") else text
        assert row["measured_on"] == text
        if row["uniform"]:
            of_heads = [float(one[f"uniform_{name}"]) for one in heads]
            assert float(row["uniform"]) == pytest.approx(mean(of_heads))
        else:
            assert name.startswith((*ablated, "other_induction", "uniqueness", "queries", *written))
    even = head_metrics(torch.ones(8, 8).tril() / torch.arange(1, 9)[:, None])
    for name in even.keys() - {"queries"}:
        value = even[name]
        assert float(columns[name]["uniform"]) == pytest.approx(value.item(), abs=1e-6)


@pytest.mark.slow
def test_every_moment_of_a_run_is_what_its_own_report_says(analyze, run):
    moments = moments_of(run)
    ablate = ("windows=3", "ablation=true", "ablation_windows=4")
    analyze(f"checkpoints={run}", *ablate)
    assert as_json(run / "analysis")["step"] == 7  # the last
    shown = as_json(run / "analysis")["text"]
    checkpoints = [*map(headscope.load, moments)]
    check_deciders(run / "analysis", checkpoints, shown)
    pairs = product(checkpoints, NAMES)
    tables = [(each.step, each.examples(head, windows=3)) for each, head in pairs]
    found = [{"step": step, **row} for step, one in tables for row in one.to_dict("records")]
    check_examples(run / "analysis", found)
    check_reads(run / "analysis", checkpoints, shown)
    history = rows_of(run / "analysis" / "history.csv")
    assert len({row["entropy"] for row in history}) > 8
    alone = []
    for step, moment in zip((0, 3, 7), moments, strict=True):
        analyze(f"checkpoint={moment}", "checkpoints=[]", *ablate, "output_dir=alone")
        alone += [{"step": str(step), **row} for row in rows_of(Path("alone/heads.csv"))]
    assert history == alone


def test_the_event_file_shows_the_report_in_the_tab(analyze, run):
    first, middle, last = moments_of(run)
    words = ("text=We the", "output_dir=report", "tensorboard=true", "ablation=true")
    said = analyze(f"checkpoints=[{last}, {first}, {middle}]", *words)
    report = Path("report")
    assert "http://localhost:6006/#headscope: tensorboard --logdir report" in said.err
    ask = in_process(report)
    [listed] = ask("runs").json["runs"]
    assert (listed["name"], listed["texts"]) == (".", ["attention"])
    found = ask("history", run=".", text="attention").json
    assert found["labels"] == list("We·the")
    assert [step["step"] for step in found["steps"]] == [0, 3, 7]
    removed = [step["metrics"].get("loss_change") for step in found["steps"]]
    changes = column(rows_of(report / "history.csv"), "loss_change").tolist()
    assert [*chain(*removed)] == pytest.approx(changes, rel=1e-4)
    page = (report / "attention.html").read_text()
    for key in (key for step in found["steps"] for key in step["parts"]):
        assert base64.b64encode(ask("part", key=key).body).decode() in page


# --- its files ---


def test_a_second_report_leaves_nothing_of_the_first_but_what_others_put_there(
    analyze, run, monkeypatch
):
    def names():
        return {file.name for file in report.iterdir()}

    moments_of(run)
    report, words = Path("report"), ("text=We the", "output_dir=report")
    patch = ("patch.clean=ab", "patch.corrupted=cb", "patch.answers=[d,e]")
    made = ("ablation=true", "gradients=true", "tensorboard=true")
    with monkeypatch.context() as patched:
        patched.setattr(write, "pictures", pictures)  # all of them are made
        analyze(f"checkpoints={run}", *made, *patch, *words)
    first = names()
    assert first == set(as_json(report)["files"])
    (report / "notes.txt").write_text("mine")
    analyze(*words, "checkpoints=[]")
    assert names() == {"notes.txt", *as_json(report)["files"]}
    gone = {"history.csv", "history.png", "ablation.png", "patching.csv", "patching.png"}
    assert gone < first - names()
    assert not any("tfevents" in name for name in names())


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


def test_the_report_on_runs_has_the_table_of_align(script, run):
    larger, _ = content(configuration("model.layers=3"), seed=1)
    larger["config"]["data"] = TEXT_FILE
    save(larger, "larger.safetensors")
    said = script("analyze", "output_dir=report", "runs=[outputs/run,larger.safetensors]")
    table = headscope.align(["outputs/run", "larger.safetensors"])
    assert table["head outputs/run"].isna().sum() == 4  # those that a third layer has more
    assert Path("report/roles.csv").read_text() == table.to_csv()
    assert {*as_json(Path("report"))["files"]} == {file.name for file in Path("report").iterdir()}
    heads = table[[f"head {name}" for name in table.attrs["runs"]]]
    assert all(pair in said.out for pair in heads.fillna("-").agg(", ".join, axis="columns"))


def test_the_files_of_a_killed_report_are_recognized(analyze, script, run, monkeypatch):
    def killed(path, **options):
        if path.suffix == ".svg":
            raise MemoryError
        return replacing(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr("headscope.show.report.write.replacing", killed)
        assert script("analyze", f"checkpoint={run}", "text=We").code != 0
    files = {file.name for file in (run / "analysis").iterdir()}
    assert "heads.csv" in files < {*as_json(run / "analysis")["files"]}
    analyze("text=We the")
    assert {*as_json(run / "analysis")["files"]} > files


MISTAKES = {
    "ablation=true ablation_windows=1": "ablation_windows=1",
    "output_dir=text.txt": "output_dir=text.txt",
    "thresholds.self=7": "thresholds.self=7",
    "runs=outputs/run": "two or more",
    "runs=[outputs/run,same.safetensors] patch.position=0": "runs=",
    "runs=[outputs/run,gone.safetensors]": "runs=gone.safetensors",
    "checkpoints=outputs/run": "keep_steps",
    "checkpoints=[same.safetensors,gone.safetensors]": "gone.safetensors",
    "checkpoints=[same.safetensors,same.safetensors]": "step 7",
    "checkpoints=[same.safetensors,larger.safetensors]": "larger.safetensors",
}


def test_mistakes_are_told_in_one_line(script, run):
    save(content()[0], "same.safetensors")
    save(content(configuration("model.layers=3"), step=9)[0], "larger.safetensors")
    for arguments, advice in MISTAKES.items():
        assert script("analyze", *arguments.split()).refused(advice).err.count("\n") == 1
        assert not (run / "analysis").exists()
