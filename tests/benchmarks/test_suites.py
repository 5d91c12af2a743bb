"""The laws of every suite: all sides are measured, files and tables hold the figures, and mistakes
are reported in one line."""

import json
import math
import shlex
import sys
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from composing import training_config
from matplotlib.image import imread
from running import SMALL, Script

from benchmarks import nanogpt, sampling
from benchmarks.race import train_recipe, trainings
from benchmarks.runner import Request
from benchmarks.schemas import SUITES
from benchmarks.viewer import ACTIONS
from headscope.config import SCHEMAS
from headscope.data.module import TokenDataModule
from headscope.generation import compile_reading
from headscope.nn import GPT
from headscope.training.callbacks.head_watch import HeadWatch
from headscope.training.module import LanguageModel

pytestmark = pytest.mark.slow

SAMPLED = {"vocab_size": 19, "block_size": 12, "embed_dim": 16, "layers": 2, "heads": 2}
SAMPLING = [
    *("suite=sampling", "suite.rounds=2"),
    *(f"suite.{case}.{key}={size}" for case in ("small", "large") for key, size in SAMPLED.items()),
    *("suite.small.tokens=30", "suite.large.prompt=3", "suite.large.tokens=8"),
]


@pytest.fixture
def training(speeches: Path) -> list[str]:
    short = ["suite.rounds=2", "suite.steps=3", "suite.warmup_steps=2", "suite.peers=true"]
    chosen = ["suite=training", "model=gpt2", "optimizer=adamw"]
    return [*chosen, *short, *SMALL, f"data.path={speeches}"]


@pytest.fixture
def racing(speeches: Path) -> list[str]:
    short = ["suite.max_steps=6", "suite.every_steps=2", "callbacks=plain", "data=text"]
    return ["suite=race", "experiment=speedrun_cpu", f"data.path={speeches}", *short]


def measured(script: Script, *words: str) -> dict[str, Any]:
    """The figures of a benchmark, after what holds for every suite."""
    said = script("benchmark", *words, "output=made.json")
    assert said.code == 0, said.err
    assert "output=" not in said.out  # the tables show a command for the reader
    assert {path.name for path in Path().iterdir()} - {"data"} == {
        "made.json",
        "made.md",
        "made.png",
    }
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


@pytest.mark.slow
def test_watching_is_compared_with_not_watching(script: Script, speeches: Path) -> None:
    words = ["suite=watching", "suite.rounds=2", "data=text", f"data.path={speeches}", *SMALL]
    figures = measured(script, *words, "trainer.max_steps=5", "callbacks.attention.steps=4")
    without, watched = rows_of(figures).values()
    assert without["watching_seconds"]["median"] == 0
    assert watched["watching_seconds"]["median"] > 0
    assert 0 < watched["watching_percent"]["median"] < 100


@pytest.mark.slow
def test_watching_that_changes_the_weights_is_found_out(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = HeadWatch.measure

    def disturb(watch: HeadWatch, model: GPT, *given: Any) -> None:
        measure(watch, model, *given)
        with torch.no_grad():
            model.embedding.weight[0, 0] += 1e-3

    monkeypatch.setattr(HeadWatch, "measure", disturb)
    words = ["suite=watching", "suite.rounds=1", f"data.path={speeches}", *SMALL]
    said = script("benchmark", *words, "trainer.max_steps=2")
    assert said.code == 1
    assert "watching changed the weights" in said.err


@pytest.mark.slow
def test_every_action_of_the_viewer_is_timed(script: Script, browser: Any) -> None:
    words = ["suite=viewer", "suite.rounds=2", "suite.steps=4", "suite.shapes=[[2,2,8],[1,1,3]]"]
    figures = measured(script, *words)
    for number in (0, 1):
        rows = rows_of(figures, number)
        assert list(rows) == ["headscope: open the tab", *ACTIONS]
        assert all(row["milliseconds"]["min"] > 0 for row in rows.values())


def test_attention_measures_every_choice(script: Script) -> None:
    figures = measured(
        script, "suite=attention", "suite.rounds=2", "suite.shapes=[[5,24,6],[2,15,3]]"
    )
    even, odd = rows_of(figures, 0), rows_of(figures, 1)
    assert {name.partition(",")[0] for name in even} == set(SCHEMAS["attention"])
    assert "multi_head, explicit" in even
    assert list(odd) == [name.replace("kv_heads=2", "kv_heads=1") for name in even]  # divides 3
    assert even["multi_head"]["milliseconds"]["ratio"] == 1


@pytest.mark.slow
def test_all_sides_train_alike(script: Script, training: list[str]) -> None:
    figures = measured(script, *training)
    rows = rows_of(figures)
    assert list(rows) == ["headscope", "bare loop", "transformers"]
    for row in rows.values():
        tokens = round(row["tokens_per_second"] * row["milliseconds"]["median"] / 1e3)
        assert f" {tokens:,} tokens per step" in figures["groups"][0]["title"]
        assert 0 < row["mfu"] < 1


@pytest.mark.slow
def test_sides_that_do_not_train_alike_are_found_out(
    script: Script, training: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LanguageModel.training_step
    monkeypatch.setattr(LanguageModel, "training_step", lambda *given: 1.01 * step(*given))
    said = script("benchmark", *training)
    assert said.code == 1
    assert "began at loss" in said.err
    assert "This is a bug in headscope" in said.err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory on Linux")
def test_memory_is_measured_beside_the_estimate(script: Script, speeches: Path) -> None:
    sizes = "tokenizer.vocab_size=1000 model.block_size=256 model.embed_dim=128 model.layers=12"
    changed = "tokenizer.vocab_size=320 model.embed_dim=256 model.block_size=512"
    words = ["suite=memory", "suite.rounds=1", *sizes.split(), "model.heads=4"]
    words += ["trainer.batch_size=8", "trainer.loss_chunk_tokens=64", f"data.path={speeches}"]
    figures = measured(script, *words, f"suite.changes=['{changed}']")
    theirs, plain, chunked, checkpointed, both = rows_of(figures).values()
    assert theirs["estimated_mib"] is None
    # At least half of the saved memory: an allocator does not return all of it.
    logits_mib = 4 * 8 * 256 * 1000 / 2**20
    assert chunked["peak_mib"] < plain["peak_mib"] - logits_mib / 2
    assert max(checkpointed["peak_mib"], both["peak_mib"]) < plain["peak_mib"] - 25
    [other] = rows_of(figures, 1).values()
    assert other["side"] == changed
    for row in (plain, chunked, checkpointed, both, other):
        assert 0.8 < row["share"] < 1.15
        assert row["milliseconds"] > 0


@pytest.mark.slow
def test_every_tokenizer_is_timed_at_every_size(script: Script) -> None:
    figures = measured(script, "suite=encoding", "suite.megabytes=[1]")
    assert list(rows_of(figures)) == ["bpe", "char", "byte"]
    for row in rows_of(figures).values():
        assert row["peak_memory_mib"]["median"] > 20  # numpy and torch
        assert 0 < row["tokenizer_seconds"]["median"] < row["seconds"]["median"]


@pytest.mark.slow
def test_the_clock_stops_where_the_target_is_reached(script: Script, racing: list[str]) -> None:
    figures = measured(script, *racing, "suite.target=3.6", "suite.seeds=[1,2]")
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


@pytest.mark.slow
def test_without_a_target_whole_trainings_are_compared(script: Script, racing: list[str]) -> None:
    figures = measured(script, *racing, "suite.target=null", "suite.seeds=[1]")
    first, second = figures["groups"][0]["rows"]
    assert first["target_seconds"] is second["target_seconds"] is None
    faster = second["train_seconds"] / first["train_seconds"]
    assert f"finishes training {faster:.2f} times as fast as nanogpt_cpu" in figures["note"]


@pytest.mark.slow
def test_a_recipe_races_against_the_default_one(script: Script, speeches: Path) -> None:
    short = ["suite.max_steps=4", "suite.every_steps=4", "suite.target=null", "suite.seeds=[1]"]
    words = ["suite=race", "suite.against=null", "experiment=heads", "callbacks.keep_steps=[]"]
    figures = measured(script, *words, *short, f"data.path={speeches}", "tokenizer.vocab_size=320")
    assert [row["side"] for row in figures["groups"][0]["rows"]] == ["heads", "default"]


def test_recipes_with_different_tokenizers_are_compared_in_bits_per_byte(
    speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every: list[int] = []
    dataloader = TokenDataModule.val_dataloader
    monkeypatch.setattr(
        TokenDataModule,
        "val_dataloader",
        lambda data: every.append(data.validation_every) or dataloader(data),
    )
    words = ["data=text", f"data.path={speeches}", "trainer.max_steps=2", "callbacks=plain"]
    other = training_config(*words, "tokenizer=byte", "model.embed_dim=32")
    runs = [training_config(*words, "tokenizer=byte"), training_config(*words, "tokenizer=char")]
    plan = SUITES["race"](None, None, [1], None, 2, None)
    for run, unit in zip(runs, ("nats per token", "bits per byte"), strict=True):
        request = Request(run, plan, [], "ours", lambda *given: other)
        sides, found = trainings(request)
        assert found == unit
        assert list(sides) == ["ours", "default"]
    _, [mark] = sides["default"](1)
    _, [in_nats] = train_recipe(other, plan, "loss", 1)
    # A byte is a token here, but for the token between documents.
    assert mark["loss"] == pytest.approx(in_nats["loss"] / math.log(2), rel=0.01)
    assert mark["loss"] != in_nats["loss"]
    assert every == [1, 1]  # the whole split


FAKE_NANOGPT = """
import pickle, sys, numpy, torch
settings = dict(word.lstrip("-").split("=") for word in sys.argv[1:] if "=" in word)
steps, wide = int(settings["max_iters"]), 128
vocab_size = pickle.load(open("data/shakespeare_char/meta.pkl", "rb"))["vocab_size"]
tokens = numpy.fromfile("data/shakespeare_char/train.bin", dtype="uint16")
assert 0 <= tokens.max() < vocab_size
for step in range(steps + 1):
    if step % int(settings["eval_interval"]) == 0:
        print(f"step {step}: train loss 4.0, val loss 4.0")
    print(f"iter {step}: loss 4.0, time 500.00ms, mfu 0.00%")
shapes = {"wte": (vocab_size, wide), "wpe": (64, wide), "ln_f": (wide,)}
for layer in range(4):
    of_layer = {
        "ln_1": (wide,), "ln_2": (wide,), "attn.c_attn": (3 * wide, wide),
        "attn.c_proj": (wide, wide), "mlp.c_fc": (4 * wide, wide), "mlp.c_proj": (wide, 4 * wide),
    }
    shapes |= {f"h.{layer}.{name}": shape for name, shape in of_layer.items()}
weights = {f"transformer.{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
weights["lm_head.weight"] = weights["transformer.wte.weight"]
import os; os.makedirs(settings["out_dir"])
sizes = {"vocab_size": vocab_size, "block_size": 64, "n_embd": wide, "n_layer": 4, "n_head": 4}
content = {"model": weights, "model_args": sizes | {"bias": False}, "iter_num": steps}
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


@pytest.mark.slow
def test_the_process_of_a_fake_nanogpt_is_timed_and_evaluated(
    script: Script, racing: list[str], checkout: Path
) -> None:
    words = [*racing, "suite.seeds=[1]", f"suite.nanogpt={checkout}"]
    rows = rows_of(measured(script, *words))
    assert list(rows) == ["speedrun_cpu", "nanoGPT"]
    assert rows["nanoGPT"]["train_seconds"] == pytest.approx(6 * 0.5)
    vocab_size = (rows["nanoGPT"]["parameters"] - 64 * 128 - 4 * 12 * 128**2 - 9 * 128) / 128
    assert rows["nanoGPT"]["final_loss"] == pytest.approx(math.log(vocab_size))  # equal logits
    assert {path.name for path in checkout.iterdir()} == {"config", *nanogpt.FILES} - {
        "config/train_shakespeare_char.py"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "reason"),
    [("raise SystemExit('no data')", "no data"), ("print('done')", "does not have the times")],
)
def test_a_train_py_that_fails_is_told_in_one_line(
    script: Script, racing: list[str], checkout: Path, train: str, reason: str
) -> None:
    (checkout / "train.py").write_text(train)
    said = script("benchmark", *racing, "suite.seeds=[1]", f"suite.nanogpt={checkout}")
    assert said.code == 1
    assert said.err.splitlines()[-1].startswith("Error: suite.nanogpt: ")
    assert reason in said.err.splitlines()[-1]


@pytest.mark.slow
def test_every_way_to_sample_is_timed(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    # Compiles only the small model. tests/test_sampling.py compiles in every precision.
    steps = chain([compile_reading], repeat(lambda model: model.next_logits))
    monkeypatch.setattr(sampling, "compile_reading", lambda model: next(steps)(model))
    figures = measured(script, *SAMPLING)
    assert list(rows_of(figures, 0)) == ["no cache", "headscope", "headscope, compiled"]
    large = rows_of(figures, 1)
    assert list(large) == [
        *("transformers fp32", "transformers bf16"),
        *("headscope fp32", "headscope, compiled, fp32"),
        *("headscope bf16", "headscope, compiled, bf16"),
        *("headscope int8", "headscope, compiled, int8"),
    ]


@pytest.mark.slow
def test_ways_that_write_another_text_are_found_out(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sampling, "compile_reading", lambda model: lambda *given: -model.next_logits(*given)
    )
    said = script("benchmark", *SAMPLING)
    assert said.code == 1
    assert "compiled samples another text" in said.err


@pytest.mark.slow
def test_only_an_earlier_result_is_replaced(script: Script) -> None:
    words = ["benchmark", "suite=attention", "suite.rounds=1", "suite.shapes=[[8,8,2]]"]
    mine = {"list.json": "[]", "other.json": '{"suite": 1}', "chart.png": "x", "notes.md": "x"}
    for name, text in mine.items():
        Path(name).write_text(text)
    for output in ("list.json", "other.json", "chart.json", "notes.json"):
        said = script(*words, f"output={output}")
        assert said.code == 1
        assert f"output={output}" in said.err
        assert "is not a result of a benchmark" in said.err
    assert {name: Path(name).read_text() for name in mine} == mine
    assert script(*words, "output=made.json").code == 0
    assert script(*words, "output=made.json").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("suite=attention suite.rounds=0", "suite.rounds=0"),
        ("suite=attention suite.shapes=[]", "suite.shapes=[]"),
        ("suite=attention suite.shapes=[[8,8]]", "[8, 8] embed_dim"),
        ("suite=attention suite.shapes=[8,8,2]", "suite.shapes[0]=8 list"),
        ("suite=attention suite.shapes=[[8,10,4]]", "embed_dim=10 heads=4"),
        ("suite=attention suite.shapes=[[8,8,-2]]", "suite.shapes=-2"),
        ("suite=attention suite.batch_size=10000000000", "memory suite.*"),
        ("suite=attention suite.device=tpu", "device=tpu"),
        ("suite=attention suite.steps=3", "suite.steps rounds"),
        ("suite=attention model.heads=8", "model.heads=8 suite.*"),
        ("suite=attention output=chart.png", "chart.png .json"),
        ("suite=attention output=nowhere/figures.json", "nowhere"),
        ("suite=attention output=.", "output=. .json"),
        ("suite=unknown", "suite/unknown attention"),
        ("suite=training model.dropout=0.1", "model.dropout=0.1 model.dropout=0"),
        ("suite=memory model/position=rotary", "suite.peers=false"),
        ("suite=viewer suite.shapes=[[2,2]]", "[2, 2] layers"),
        ("suite=sampling suite.large.tokens=1000", "suite.large.tokens=1000 1024"),
        ("suite=race experiment=speedrun_cpu suite.against=speedrun_cpu", "suite.against"),
        ("suite=race experiment=speedrun_cpu suite.seeds=[]", "suite.seeds"),
        ("suite=race", "default nanogpt_cpu texts data=..."),
        ("suite=race suite.against=null", "suite.against=None itself"),
        ("suite=race suite.nanogpt=nowhere", "suite.nanogpt=nowhere train.py checkout"),
        ("suite=training suite.peers=true model/position=rotary", "suite.peers=false"),
        ("suite=memory model.tied_head=false", "suite.peers=false"),
    ],
)
def test_a_mistake_is_told_in_one_line(script: Script, arguments: str, words: str) -> None:
    said = script("benchmark", *arguments.split())
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("Error: ")
    assert said.err.count("\n") == 1
    for word in words.split():
        assert word in said.err
    assert not list(Path().iterdir())
