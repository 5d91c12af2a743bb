"""The laws of suite=attention: every variant is timed as what it is, and mistakes leave nothing."""

import json
import re
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread
from rich.console import Console
from running import Script

from headscope.benchmarks.attention import Shape, forward_milliseconds, time_attentions
from headscope.benchmarks.attention_chart import draw
from headscope.config import SCHEMAS
from headscope.nn import attention

WIDTH, HEADS, TOKENS = 24, 6, 5
LAYERS = {
    "single_head": (attention.single_head, {"heads": 1}),
    "multi_head": (attention.multi_head, {}),
    "multi_head, explicit": (attention.multi_head, {}),
    "multi_query, kv_heads=1": (attention.multi_query, {}),
    "grouped_query, kv_heads=2": (attention.grouped_query, {"kv_heads": 2}),
    "stacked_heads": (attention.StackedHeads, {}),
    "additive": (attention.AdditiveAttention, {}),
}


def test_every_variant_is_measured_as_what_it_is(script: Script) -> None:
    shapes = f"suite.shapes=[[{TOKENS},{WIDTH},{HEADS}],[2,15,3]]"
    said = script("benchmark", "suite=attention", "suite.rounds=2", shapes, "model.qkv_bias=true")
    assert said.code == 0, said.err
    figures = json.loads(Path("benchmark_attention.json").read_text())
    even, odd = ([row["attention"] for row in shape["attentions"]] for shape in figures["shapes"])
    assert even == list(LAYERS)
    assert {name.partition(",")[0] for name in even} == set(SCHEMAS["attention"])
    assert odd == [name.replace("kv_heads=2", "kv_heads=1") for name in even]  # which divides 3
    for row in figures["shapes"][0]["attentions"]:
        make, sizes = LAYERS[row["attention"]]
        options = {"heads": HEADS, "block_size": TOKENS, "qkv_bias": True} | sizes
        layer = make(embed_dim=WIDTH, **options)
        assert row["parameters"] == sum(p.numel() for p in layer.parameters())
        assert row["cache_numbers_per_token"] == 2 * layer.kv_heads * layer.head_dim
        for figure in ("milliseconds", "ratio", "forward_milliseconds", "forward_ratio"):
            assert 0 < row[figure]["min"] <= row[figure]["median"] <= row[figure]["max"]
        if row["attention"] == "multi_head":
            assert row["ratio"] == {"median": 1, "min": 1, "max": 1}
            assert row["forward_ratio"] == {"median": 1, "min": 1, "max": 1}
        assert said.out.count(f"\n{row['attention']} ") >= 1


def test_what_needs_too_much_memory_is_left_out_and_says_so(script: Script) -> None:
    said = script(
        *("benchmark", "suite=attention", "suite.rounds=1", "output=figures.json"),
        *("suite.shapes=[[64,64,2]]", "suite.memory_gib=0.01"),
    )
    assert said.code == 0, said.err
    assert {path.name for path in Path().iterdir()} == {"figures.json", "figures.png"}
    [shape] = json.loads(Path("figures.json").read_text())["shapes"]
    [timer_paused] = [row for row in shape["attentions"] if "timer_paused" in row]
    assert timer_paused["attention"] == "additive"
    assert "memory_gib=0.01" in timer_paused["timer_paused"]
    assert f"additive: {timer_paused['timer_paused']}" in said.out
    assert Path("figures.png").read_bytes().startswith(b"\x89PNG")
    height, width, _ = imread("figures.png").shape
    assert 300 < height < width < 2000


def test_the_time_of_forward_alone_is_that_of_a_pass_without_gradients() -> None:
    layer, x = attention.multi_head(embed_dim=8, heads=2, causal=False), torch.randn(1, 3, 8)
    modes: list[bool] = []
    layer.register_forward_hook(lambda *call: modes.append(torch.is_grad_enabled()))
    assert forward_milliseconds(layer, x, explicit=False) > 0
    assert modes == [False]
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_the_chart_shows_both_times_and_the_parameters() -> None:
    def spread(value: float) -> dict[str, float]:
        return {"median": value, "min": value, "max": value}

    timed = {"milliseconds": spread(3.0), "ratio": spread(1.0)} | {
        "forward_milliseconds": spread(0.5),
        "forward_ratio": spread(1.0),
    }
    rows = [
        {"attention": "multi_head", "parameters": 65_536, **timed},
        {"attention": "additive", "parameters": 65_664, "timer_paused": "needs 9 GiB"},
    ]
    figures = {"device": "cpu", "threads": 1, "overrides": [], "batch_size": 4, "rounds": 1}
    shape = {"tokens": 64, "embed_dim": 128, "heads": 4, "attentions": rows}
    figure = draw(figures | {"shapes": [shape, shape]})
    for times, parameters in zip(figure.axes[::2], figure.axes[1::2], strict=True):
        assert [bar.get_width() for bar in times.patches] == [3.0, 0.5]
        assert [bar.get_width() for bar in parameters.patches] == [65_536, 65_664]
    figure.draw_without_rendering()


@pytest.mark.parametrize("sizes", [(8, 10, 4), (0, 8, 2), (8, 0, 2), (8, 8, 0), (8, 8, -2)])
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=re.escape("[[{},{},{}]]".format(*sizes))):
        Shape(*sizes)


def test_sizes_that_no_memory_holds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_size=1000000000, needs about .* GiB"):
        time_attentions(
            [],
            shapes=[Shape(8, 8, 2)],
            batch_size=10**9,
            rounds=1,
            memory_gib=4.0,
            device=torch.device("cpu"),
            console=Console(quiet=True),
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["suite.rounds=0"], ["suite.rounds=0"]),
        (["suite.shapes=[]"], ["suite.shapes=[]"]),
        (["suite.shapes=[[8,8]]"], ["[8, 8]", "embed_dim"]),
        (["suite.shapes=[8,8,2]"], ["suite.shapes=[8,8,2]", "list"]),
        (["suite.shapes=[[8,8,2],[8,10,4]]"], ["[8,10,4]", "heads"]),
        (["suite.batch_size=0"], ["suite.batch_size=0"]),
        (["suite.device=tpu"], ["device=tpu"]),
        (["suite.steps=3"], ["suite.steps", "rounds"]),
        (["model.dropout=1"], ["dropout=1"]),
        (["model.heads=8"], ["model.heads=8", "suite.shapes"]),
        (["output=chart.png"], ["chart.png", "JSON"]),
        (["output=nowhere/figures.json"], ["nowhere"]),
        (["output=."], ["output=.", "folder"]),
        (["suite=unknown"], ["suite/unknown", "attention"]),
        (["suite=training", "suite.steps=0"], ["suite.steps=0"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_in_one_line(
    script: Script, arguments: list[str], words: list[str]
) -> None:
    suite = [] if arguments[0].startswith("suite=") else ["suite=attention"]
    said = script("benchmark", *suite, *arguments)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("Error: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err
    assert not list(Path().iterdir())


def test_only_an_earlier_result_is_replaced(script: Script) -> None:
    words = ["benchmark", "suite=attention", "suite.rounds=1", "suite.shapes=[[8,8,2]]"]
    mine = {"notes.md": "mine", "list.json": "[]", "other.json": '{"suite": 1}', "chart.png": "x"}
    for name, text in mine.items():
        Path(name).write_text(text)
    for output in ("notes.md", "list.json", "other.json", "chart.json"):
        said = script(*words, f"output={output}")
        assert said.code == 1
        assert f"output={output}" in said.err
        assert "no result of headscope" in said.err
    assert {name: Path(name).read_text() for name in mine} == mine
    assert script(*words, "output=made.json").code == 0
    assert script(*words, "output=made.json").code == 0
