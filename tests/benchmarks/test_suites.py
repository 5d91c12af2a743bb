"""The laws of every suite: all sides are measured, files and tables hold the figures, and mistakes
are reported in one line."""

import json
import math
import shlex
from itertools import chain, repeat
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from matplotlib.image import imread
from running import SMALL, Script

from benchmarks import nanogpt, sampling
from benchmarks.viewer import ACTIONS
from headscope.cli.conf import choices_of
from headscope.data.module import TokenDataModule
from headscope.generation import compile_decoding
from headscope.nn import GPT
from headscope.training.callbacks.heads import HeadWatch
from headscope.training.module import LanguageModel

pytestmark = pytest.mark.slow

SAMPLED = {"vocab_size": 19, "block_size": 12, "embed_dim": 16, "layers": 2, "heads": 2}
SAMPLING = [
    *("suite=sampling", "suite.rounds=2"),
    *(f"suite.{case}.{key}={size}" for case in ("small", "large") for key, size in SAMPLED.items()),
    *("suite.small.tokens=30", "suite.large.prompt=3", "suite.large.tokens=8"),
]
WATCHING = ["suite=watching", "suite.rounds=1", *SMALL, "trainer.max_steps=4"]
TRAINING = [
    *("suite=training", "model=gpt2", "optimizer=adamw"),
    *("suite.rounds=2", "suite.steps=3", "suite.warmup_steps=2", "suite.peers=true", *SMALL),
]


@pytest.fixture
def racing(speeches: Path) -> list[str]:
    short = ["suite.max_steps=6", "suite.every_steps=2", "callbacks=plain", "data=text"]
    return ["suite=race", "experiment=speedrun_cpu", f"data.path={speeches}", *short]


def measured(script: Script, *words: str) -> dict[str, Any]:
    """The figures of a benchmark, after what holds for every suite."""
    said = script("benchmark", *words, "output=made.json")
    assert said.code == 0, said.err
    assert "output=" not in said.out  # the tables show a command for the reader
    made = {path.name for path in Path().iterdir()} - {"data"}
    assert made == {"made.json", "made.md", "made.png"}
    assert Path("made.md").read_text() == said.out
    assert imread("made.png").std() > 0.05
    figures = json.loads(Path("made.json").read_text())
    for word in words:
        assert word.partition("=")[2] in " ".join(shlex.split(figures["command"]))
    for group in figures["groups"]:
        assert group["title"] in said.out
        for row in group["rows"]:
            assert f"\n| {row['side']} " in said.out
            for spread in (value for value in row.values() if isinstance(value, dict)):
                assert -math.inf < spread["min"] <= spread["median"] <= spread["max"] < math.inf
    return figures


def rows_of(figures: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return {row["side"]: row for row in figures["groups"][number]["rows"]}


def test_watching_is_compared_with_not_watching(script, speeches):
    figures = measured(script, *WATCHING, f"data.path={speeches}")
    without, watched = rows_of(figures).values()
    assert without["watching_seconds"]["median"] == 0
    assert watched["watching_seconds"]["median"] > 0
    assert 0 < watched["watching_percent"]["median"] < 100


def test_every_action_of_the_viewer_is_timed(script, browser):
    words = ["suite=viewer", "suite.rounds=2", "suite.steps=4", "suite.shapes=[[2,2,8],[1,1,3]]"]
    figures = measured(script, *words)
    for number in (0, 1):
        rows = rows_of(figures, number)
        assert list(rows) == ["headscope: open the tab", *ACTIONS]
        assert all(row["milliseconds"]["min"] > 0 for row in rows.values())


def test_attention_measures_every_choice(script):
    words = ["suite=attention", "suite.rounds=2", "suite.shapes=[[5,24,6],[2,15,3]]"]
    figures = measured(script, *words)
    even, odd = rows_of(figures, 0), rows_of(figures, 1)
    assert {name.partition(",")[0] for name in even} == set(choices_of("model/attention"))
    assert "multi_head, explicit" in even
    assert list(odd) == [name.replace("kv_heads=2", "kv_heads=1") for name in even]  # divides 3
    assert even["multi_head"]["milliseconds"]["ratio"] == 1


def test_all_sides_train_alike(script, speeches):
    figures = measured(script, *TRAINING, f"data.path={speeches}")
    rows = rows_of(figures)
    assert list(rows) == ["headscope", "bare loop", "transformers"]
    for row in rows.values():
        tokens = round(row["tokens_per_second"] * row["milliseconds"]["median"] / 1e3)
        assert f" {tokens:,} tokens per step" in figures["groups"][0]["title"]
        assert 0 < row["mfu"] < 1


def test_every_tokenizer_is_timed_at_every_size(script):
    figures = measured(script, "suite=encoding", "suite.megabytes=[1]")
    assert list(rows_of(figures)) == ["bpe", "char", "byte"]
    for row in rows_of(figures).values():
        assert row["peak_memory_mib"]["median"] > 20  # numpy and torch
        assert 0 < row["tokenizer_seconds"]["median"] < row["seconds"]["median"]


def test_the_clock_stops_where_the_target_is_reached(script, racing, monkeypatch):
    every: set[int] = set()
    dataloader = TokenDataModule.val_dataloader

    def observed(data: TokenDataModule) -> Any:
        every.add(data.validation_every)
        return dataloader(data)

    monkeypatch.setattr(TokenDataModule, "val_dataloader", observed)
    figures = measured(script, *racing, "suite.target=3.6", "suite.seeds=[1,2]")
    assert every == {1}  # the whole split
    runs = figures["groups"][0]["rows"]
    first, second = runs[:2], runs[2:]
    assert [run["side"] for run in runs] == ["speedrun_cpu"] * 2 + ["nanogpt_cpu"] * 2
    assert [run["seed"] for run in runs] == [1, 2, 1, 2]
    for run in runs:
        assert [mark["step"] for mark in run["marks"]] == [2, 4, 6]
        below = [mark["seconds"] for mark in run["marks"] if mark["loss"] <= 3.6]
        assert run["target_seconds"] == (below[0] if below else None)
        assert run["train_seconds"] == run["marks"][-1]["seconds"]
    assert all(run["target_seconds"] for run in first)
    assert not any(run["target_seconds"] for run in second)  # warms up for longer than 6 steps
    assert first[0]["marks"] != first[1]["marks"]
    faster = [b["train_seconds"] / a["target_seconds"] for a, b in zip(first, second, strict=True)]
    assert "reaches 3.6 nats per token" in figures["note"]
    assert f"; {min(faster):.2f} to {max(faster):.2f})" in figures["note"]


def test_without_a_target_whole_trainings_are_compared(script, racing):
    """Recipes with different tokenizers, in bits per byte."""
    Path("data").mkdir()
    letters = Random(0).choices("abcdefgh ", k=200_000)  # enough for BPE with 8192 tokens
    Path("data/letters.txt").write_text("".join(letters))
    words = ["data.path=data/letters.txt", "suite.against=null", "suite.target=null"]
    figures = measured(script, *racing, *words, "suite.seeds=[1]")
    [group] = figures["groups"]
    assert "bits per byte" in group["title"]
    first, second = group["rows"]
    assert (first["side"], second["side"]) == ("speedrun_cpu", "default")
    assert first["target_seconds"] is second["target_seconds"] is None
    faster = second["train_seconds"] / first["train_seconds"]
    assert f"finishes training {faster:.2f} times as fast as default" in figures["note"]


FAKE_NANOGPT = """
import os, pickle, sys, numpy, torch
settings = dict(word.lstrip("-").split("=") for word in sys.argv[1:] if "=" in word)
steps = int(settings["max_iters"])
vocab_size = pickle.load(open("data/shakespeare_char/meta.pkl", "rb"))["vocab_size"]
tokens = numpy.fromfile("data/shakespeare_char/train.bin", dtype="uint16")
assert 0 <= tokens.max() < vocab_size
for step in range(steps + 1):
    print(f"iter {step}: loss 4.0, time 500.00ms, mfu 0.00%")
shapes = {
    "wte": (vocab_size, 4), "wpe": (64, 4), "ln_f": (4,), "h.0.ln_1": (4,), "h.0.ln_2": (4,),
    "h.0.attn.c_attn": (12, 4), "h.0.attn.c_proj": (4, 4),
    "h.0.mlp.c_fc": (16, 4), "h.0.mlp.c_proj": (4, 16),
}
weights = {f"transformer.{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
weights["lm_head.weight"] = weights["transformer.wte.weight"]
sizes = {"vocab_size": vocab_size, "block_size": 64, "n_embd": 4, "n_layer": 1, "n_head": 1}
content = {"model": weights, "model_args": sizes | {"bias": False}, "iter_num": steps}
os.makedirs(settings["out_dir"])
torch.save(content, settings["out_dir"] + "/ckpt.pt")
"""


@pytest.fixture
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a train.py that behaves like nanoGPT's, but trains nothing."""
    folder = tmp_path_factory.mktemp("nanogpt")
    (folder / "config").mkdir()
    for name in nanogpt.FILES:
        (folder / name).write_text("")
    (folder / "train.py").write_text(FAKE_NANOGPT)
    return folder


def test_the_process_of_a_fake_nanogpt_is_timed_and_evaluated(script, racing, checkout):
    words = [*racing, "suite.seeds=[1]", f"suite.nanogpt={checkout}"]
    rows = rows_of(measured(script, *words))
    assert list(rows) == ["speedrun_cpu", "nanoGPT"]
    assert rows["nanoGPT"]["train_seconds"] == pytest.approx(6 * 0.5)
    vocab_size = (rows["nanoGPT"]["parameters"] - 64 * 4 - 12 * 4**2 - 3 * 4) / 4
    assert rows["nanoGPT"]["final_loss"] == pytest.approx(math.log(vocab_size))  # equal logits
    files = {path.name for path in checkout.iterdir()}
    assert files == {Path(file).parts[0] for file in nanogpt.FILES}  # it is left as it was


def test_a_train_py_that_fails_is_told_in_one_line(script, racing, checkout):
    for train, reason in (
        ("raise SystemExit('no data')", "no data"),
        ("print('done')", "does not have the times"),
    ):
        (checkout / "train.py").write_text(train)
        said = script("benchmark", *racing, "suite.seeds=[1]", f"suite.nanogpt={checkout}")
        line = said.err.splitlines()[-1]
        assert said.code == 1
        assert line.startswith("Error: suite.nanogpt: ")
        assert reason in line


def test_every_way_to_sample_is_timed(script, monkeypatch):
    # Compiles only the small model. tests/test_sampling.py compiles in every precision.
    steps = chain([compile_decoding], repeat(lambda model: model.next_logits))
    monkeypatch.setattr(sampling, "compile_decoding", lambda model: next(steps)(model))
    figures = measured(script, *SAMPLING)
    assert list(rows_of(figures, 0)) == ["no cache", "headscope", "headscope, compiled"]
    large = rows_of(figures, 1)
    assert list(large) == [
        *("transformers fp32", "transformers bf16"),
        *("headscope fp32", "headscope, compiled, fp32"),
        *("headscope bf16", "headscope, compiled, bf16"),
        *("headscope int8", "headscope, compiled, int8"),
    ]


def changes_weights(measure: Any) -> Any:
    def disturb(watch: HeadWatch, model: GPT, *given: Any) -> Any:
        measured = measure(watch, model, *given)
        with torch.no_grad():
            model.embedding.weight[0, 0] += 1e-3
        return measured

    return disturb


WRONG: dict[str, tuple[list[str], Any, str, Any]] = {
    "watching changed the weights": (WATCHING, HeadWatch, "measure", changes_weights),
    "began at loss": (
        *(TRAINING, LanguageModel, "training_step"),
        lambda step: lambda *given: 1.01 * step(*given),
    ),
    "compiled samples another text": (
        *(SAMPLING, sampling, "compile_decoding"),
        lambda _: lambda model: lambda *given: -model.next_logits(*given),
    ),
}
"""By the message: words of a benchmark, and what makes one of its sides wrong."""


@pytest.mark.parametrize("message", WRONG)
def test_sides_that_do_not_agree_are_found_out(script, speeches, monkeypatch, message):
    words, owner, name, change = WRONG[message]
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    data = [] if words is SAMPLING else [f"data.path={speeches}"]
    said = script("benchmark", *words, *data)
    assert said.code == 1
    assert message in said.err


SHORT = ["benchmark", "suite=attention", "suite.rounds=1", "suite.shapes=[[8,8,2]]"]


def test_results_go_to_outputs_in_a_file_of_the_suite(script):
    """git ignores this folder."""
    said = script(*SHORT)
    assert said.code == 0, said.err
    assert {path.name for path in Path().iterdir()} - {"data"} == {"outputs"}
    made = {path.name for path in Path("outputs").iterdir()}
    assert made == {f"benchmark_attention.{kind}" for kind in ("json", "md", "png")}


def test_only_an_earlier_result_is_replaced(script):
    mine = {"list.json": "[]", "other.json": '{"suite": 1}', "chart.png": "x", "notes.md": "x"}
    for name, text in mine.items():
        Path(name).write_text(text)
    for output in ("list.json", "other.json", "chart.json", "notes.json"):
        said = script(*SHORT, f"output={output}")
        assert said.code == 1
        assert f"output={output}" in said.err
        assert "is not a result of a benchmark" in said.err
    assert {name: Path(name).read_text() for name in mine} == mine
    assert script(*SHORT, "output=made.json").code == 0
    assert script(*SHORT, "output=made.json").code == 0
