"""Measure what the docs claim: python scripts/benchmark.py [suite=attention]."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from headscope import command_line
from headscope.config import SCHEMAS

if TYPE_CHECKING:
    from headscope.benchmarks.attention import Variant

OF_MODEL = ("model.attention.", "model.dropout=", "model.bias=", "model.qkv_bias=")
"""Beginnings of the words about the model that suite=attention takes: it times layers alone."""


def benchmark(config: DictConfig) -> None:
    """Run the suite that was chosen."""
    output = Path(config.output)
    if not output.parent.is_dir():
        raise ValueError(f"output={output}: there is no folder {output.parent}")
    if output.is_dir():
        raise ValueError(f"output={output} is a folder: name a file in it")
    SUITES[HydraConfig.get().runtime.choices["suite"]](config)


def training(config: DictConfig) -> None:
    """Our step against a bare loop's."""
    from headscope.benchmarks.training import compare_steps

    at_least_one(config, "rounds", "steps", "warmup_steps")
    plan = config.suite
    steps = {"rounds": plan.rounds, "steps": plan.steps, "warmup_steps": plan.warmup_steps}
    tell(config, "training", partial(compare_steps, config, **steps))


def watching(config: DictConfig) -> None:
    """A run that is watched against the same that is not."""
    from headscope.benchmarks.watching import compare_watching

    at_least_one(config, "rounds")
    tell(config, "watching", partial(compare_watching, config, rounds=config.suite.rounds))


def tell(config: DictConfig, suite: str, measure: Callable[..., dict[str, Any]]) -> None:
    """Print a line a round and the figures, which also go to `output`."""
    from rich.console import Console

    from headscope.callbacks.saving import Interrupted

    try:
        figures = measure(console=Console(stderr=True, soft_wrap=True))
    except Interrupted:
        sys.exit(130)
    text = json.dumps({"suite": suite, **figures}, indent=2)
    Path(config.output).write_text(text + "\n", encoding="utf-8")
    print(text)


def attention(config: DictConfig) -> None:
    """Print a table; the figures also go to `output`, and as a chart into a PNG beside it."""
    from rich.console import Console

    from headscope import checkpoint
    from headscope.benchmarks.attention import Shape, report, time_attentions
    from headscope.benchmarks.attention_chart import draw
    from headscope.check import check

    check(config)
    at_least_one(config, "rounds", "batch_size")
    output, plan = Path(config.output), config.suite
    picture = output.with_suffix(".png")
    if picture == output:
        raise ValueError(f"output={output} holds the figures, as JSON; the chart is put beside it")
    if not plan.shapes or any(len(shape) != 3 for shape in plan.shapes):
        raise ValueError(f"suite.shapes={plan.shapes} must hold [tokens, embed_dim, heads] each")
    shapes = [Shape(*shape) for shape in plan.shapes]
    device = checkpoint.pick_device(plan.device)
    words = list(HydraConfig.get().overrides.task)
    figures = {
        "suite": "attention",
        "overrides": words,
        **time_attentions(
            attentions([word for word in words if not word.startswith(("suite", "output="))]),
            shapes=shapes,
            batch_size=plan.batch_size,
            rounds=plan.rounds,
            memory_gib=plan.memory_gib,
            device=device,
            console=Console(stderr=True),
        ),
    }
    report(figures, Console())
    chart = draw(figures)
    output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    chart.savefig(picture)
    print(f"\n{output} and {picture}")


def attentions(words: list[str]) -> "list[Variant]":
    """Every choice of model/attention, as conf has it with these words on top; of multi_head also
    the path that returns the weights."""
    from hydra.utils import instantiate

    from headscope.benchmarks.attention import Variant

    for word in words:
        if not word.startswith(OF_MODEL):
            raise ValueError(
                f"{word}: suite=attention times every choice of model/attention alone, at "
                "suite.shapes; of model it takes attention.*, dropout, bias and qkv_bias"
            )
    found = []
    for name in SCHEMAS["attention"]:
        model = compose("model/gpt", [*words, f"model/attention={name}"]).model
        make = partial(
            instantiate(model.attention),
            dropout=model.dropout,
            qkv_bias=model.qkv_bias,
            out_bias=model.bias,
        )
        heads = 1 if name == "single_head" else None
        variant = Variant(name, make, heads=heads, kv_heads=model.kv_heads)
        found.append(variant)
        if name == "multi_head":
            found.append(replace(variant, explicit=True))
    return found


def at_least_one(config: DictConfig, *keys: str) -> None:
    for key in keys:
        if config.suite[key] < 1:
            raise ValueError(f"suite.{key}={config.suite[key]} must be at least 1")


SUITES = {"training": training, "watching": watching, "attention": attention}


if __name__ == "__main__":
    command_line.run(benchmark, "benchmark")
