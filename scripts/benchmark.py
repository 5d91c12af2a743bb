"""Measure what the docs claim: python scripts/benchmark.py [suite=attention]."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from headscope.cli import command_line
from headscope.config import SCHEMAS, build_part, from_hydra, parse
from headscope.config.model import ModelConfig
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.files import json_text, read_json, write_atomically
from headscope.stop import stop_on_signal

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from headscope.benchmarks.attention import Variant
    from headscope.benchmarks.fresh import Plan

OF_MODEL = ("model.attention.", "model.dropout=", "model.bias=", "model.qkv_bias=")
"""Beginnings of the words about the model that suite=attention takes: it times layers alone."""

SHARED = (
    "data",
    "tokenizer",
    "store_dir",
    "trainer.accelerator",
    "trainer.precision",
    "trainer.compile",
)
"""Beginnings of the words that hold for both sides of a race."""


@dataclass(frozen=True)
class Asked:
    """What the command line says: a training run, the suite's own keys, where the figures go."""

    run: TrainConfig
    suite: Any
    output: Path


def benchmark(composed: DictConfig) -> None:
    """Run the suite that was chosen."""
    name = HydraConfig.get().runtime.choices["suite"]
    plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    suite, output = plain.pop("suite"), Path(plain.pop("output"))
    asked = Asked(parse(TrainConfig, plain), parse(SCHEMAS["suite"][name], suite, "suite"), output)
    if not output.parent.is_dir():
        raise UserError(f"output={output}: there is no folder {output.parent}")
    if output.is_dir():
        raise UserError(f"output={output} is a folder: name a file in it")
    check_output(output)
    SUITES[name](asked)


def check_output(output: Path) -> None:
    """Raises UserError when the figures or their chart would replace a file of another kind."""
    ours = is_result(output)
    for file in (output, output.with_suffix(".png")):
        if file.exists() and not ours:
            raise UserError(
                f"output={output}: {file} exists and is no result of headscope: name another file, "
                "or move it away"
            )


def is_result(file: Path) -> bool:
    """Whether an earlier benchmark wrote this file."""
    figures = read_json(file)
    return isinstance(figures, dict) and figures.get("suite") in list(SUITES)


def training(asked: Asked) -> None:
    """Our step against a bare loop's, and others'."""
    from headscope.benchmarks.training import compare_steps, draw, report

    at_least_one(asked, "rounds", "steps", "warmup_steps")
    if asked.run.model.dropout:
        raise UserError(
            f"model.dropout={asked.run.model.dropout} drops other numbers on every side, and the "
            "losses would not show that they do the same work: suite=training takes model.dropout=0"
        )
    plan = asked.suite
    measure = partial(
        compare_steps,
        asked.run,
        rounds=plan.rounds,
        steps=plan.steps,
        warmup_steps=plan.warmup_steps,
        peers=plan.peers,
    )
    tell(asked, measure, draw, report)


def watching(asked: Asked) -> None:
    """A run that is watched against the same that is not."""
    from headscope.benchmarks.watching import compare_watching

    at_least_one(asked, "rounds")
    tell(asked, partial(compare_watching, asked.run, rounds=asked.suite.rounds))


def race(asked: Asked) -> None:
    """What is described here against another experiment."""
    from headscope.benchmarks.race import draw, race, report

    at_least_one(asked, "every_steps")
    plan = asked.suite
    name = HydraConfig.get().runtime.choices["experiment"] or asked.run.name
    if not plan.seeds:
        raise UserError("suite.seeds= must name at least one")
    if plan.against == name:
        raise UserError(f"suite.against={plan.against} is what would be raced with itself")
    shared = [word for word in typed() if word.startswith(SHARED)]
    other = from_hydra(TrainConfig, compose("train", [*shared, f"experiment={plan.against}"]))
    for key in ("data", "tokenizer"):
        if getattr(asked.run, key) != getattr(other, key):
            raise UserError(
                f"{name} and {plan.against} have not the same {key}, and losses per token of "
                f"different texts or tokens do not compare: give both the same, as {key}=..."
            )
    if plan.max_steps is not None:
        at_least_one(asked, "max_steps")
        for side in (asked.run, other):
            side.trainer.max_steps = min(side.trainer.max_steps, plan.max_steps)
    measure = partial(
        race,
        {name: asked.run, plan.against: other},
        seeds=plan.seeds,
        target=plan.target,
        every_steps=plan.every_steps,
    )
    tell(asked, measure, draw, report)


def sampling(asked: Asked) -> None:
    """Tokens per second, in all ways and by others."""
    from headscope import checkpoint
    from headscope.benchmarks.sampling import Sampled, time_sampling
    from headscope.benchmarks.sampling_chart import draw, report

    at_least_one(asked, "rounds")
    plan = asked.suite
    measure = partial(
        time_sampling,
        Sampled(**vars(plan.small)),
        Sampled(**vars(plan.large)),
        rounds=plan.rounds,
        device=checkpoint.pick_device(plan.device),
    )
    tell(asked, measure, draw, report)


def attention(asked: Asked) -> None:
    """Every attention layer alone, as a table and a chart."""
    from headscope import checkpoint
    from headscope.benchmarks.attention import Shape, report, time_attentions
    from headscope.benchmarks.attention_chart import draw
    from headscope.training.check import check

    check(asked.run)
    at_least_one(asked, "rounds", "batch_size")
    plan = asked.suite
    if not plan.shapes or any(len(shape) != 3 for shape in plan.shapes):
        raise UserError(f"suite.shapes={plan.shapes} must hold [tokens, embed_dim, heads] each")
    measure = partial(
        time_attentions,
        attentions([word for word in typed() if not word.startswith(("suite", "output="))]),
        shapes=[Shape(*shape) for shape in plan.shapes],
        batch_size=plan.batch_size,
        rounds=plan.rounds,
        memory_gib=plan.memory_gib,
        device=checkpoint.pick_device(plan.device),
    )
    tell(asked, measure, draw, report)


def data(asked: Asked) -> None:
    """Making a batch, of corpora of several sizes, as a table and a chart."""
    from headscope.benchmarks.data import compare_batches, report
    from headscope.benchmarks.data_chart import draw
    from headscope.training.check import check

    check(asked.run)
    at_least_one(asked, "rounds", "batches")
    plan = asked.suite
    measure = partial(
        compare_batches,
        tokens=plan.tokens,
        block_size=asked.run.model.block_size,
        batch_size=asked.run.trainer.batch_size,
        batches=plan.batches,
        rounds=plan.rounds,
        seed=asked.run.seed,
    )
    tell(asked, measure, draw, report)


def memory(asked: Asked) -> None:
    """What a training step holds at most, as a table and a chart."""
    from headscope.benchmarks.memory import compare_memory, draw, report

    at_least_one(asked, "rounds", "vocab_size")
    if not asked.run.trainer.loss_chunk_tokens:
        raise UserError(
            f"trainer.loss_chunk_tokens={asked.run.trainer.loss_chunk_tokens}: suite=memory "
            "measures with and without chunks, so it must say how large they are, or auto"
        )
    tell(asked, partial(compare_memory, step_plan(asked), peers=asked.suite.peers), draw, report)


def scaling(asked: Asked) -> None:
    """How a training step grows with every size, as a table and a chart."""
    from headscope.benchmarks.scaling import KEYS, Sweeps, measure_growth, report, whole
    from headscope.benchmarks.scaling_chart import draw

    at_least_one(asked, "rounds", "vocab_size", "tokens_per_step")
    suite = asked.suite
    asked.run.trainer.batch_size = whole(suite.tokens_per_step, asked.run.model.block_size)
    sweeps = Sweeps({axis: list(getattr(suite, key)) for axis, key in KEYS.items()})
    tell(asked, partial(measure_growth, step_plan(asked), sweeps), draw, report)


def step_plan(asked: Asked) -> "Plan":
    """The step to measure, of random tokens of `suite.vocab_size`."""
    import torch

    from headscope import checkpoint
    from headscope.benchmarks.fresh import Plan
    from headscope.training.build import precision_of
    from headscope.training.check import check

    choices = HydraConfig.get().runtime.choices
    if choices["experiment"]:
        raise UserError(
            f"experiment={choices['experiment']}: suite={choices['suite']} has a model of its own; "
            "give its sizes as model.*"
        )
    check(asked.run)
    plan = asked.run.trainer
    return Plan(
        model=asked.run.model,
        vocab_size=asked.suite.vocab_size,
        batch_size=plan.batch_size,
        optimizer=build_part(asked.run.optimizer),
        precision=precision_of(plan),
        device=checkpoint.pick_device("cuda" if plan.accelerator == "gpu" else plan.accelerator),
        threads=torch.get_num_threads(),
        seed=asked.run.seed,
        rounds=asked.suite.rounds,
        loss_chunk_tokens=plan.loss_chunk_tokens,
        checkpoint_activations=plan.checkpoint_activations,
    )


def tell(
    asked: Asked,
    measure: Callable[..., dict[str, Any]],
    draw: Callable[[dict[str, Any]], "Figure"] | None = None,
    report: Callable[[dict[str, Any], "Console"], None] | None = None,
) -> None:
    """Print a line a round, then the figures, as `report` tells them or as JSON. They also go to
    `output`, and the picture that `draw` makes of them beside it."""
    from rich.console import Console

    output = asked.output
    picture = output.with_suffix(".png")
    if draw and picture == output:
        raise UserError(
            f"output={output} is the chart; name the file of the figures, which are JSON"
        )
    found = measure(console=Console(stderr=True, soft_wrap=True, highlight=False))
    suite = HydraConfig.get().runtime.choices["suite"]
    figures = {"suite": suite, "overrides": typed(), **found}
    text = json_text(figures, indent=2)
    if report:
        report(figures, Console())
    else:
        print(text)
    chart = draw(figures) if draw else None
    write_atomically(output, text + "\n")
    if chart:
        chart.savefig(picture)
    print(f"{output} and {picture}" if chart else output, file=sys.stderr)


def typed() -> list[str]:
    """The words of the command line."""
    return list(HydraConfig.get().overrides.task)


def attentions(words: list[str]) -> "list[Variant]":
    """Every choice of model/attention, as conf has it with these words on top; of multi_head also
    the path that returns the weights."""
    from headscope.benchmarks.attention import Variant

    for word in words:
        if not word.startswith(OF_MODEL):
            raise UserError(
                f"{word}: suite=attention times every choice of model/attention alone, at "
                "suite.shapes; of model it takes attention.*, dropout, bias and qkv_bias"
            )
    found = []
    for name in SCHEMAS["attention"]:
        composed = compose("model/gpt", [*words, f"model/attention={name}"]).model
        model = from_hydra(ModelConfig, composed)
        make = partial(
            build_part(model.attention),
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


def at_least_one(asked: Asked, *keys: str) -> None:
    for key in keys:
        value = getattr(asked.suite, key)
        if value < 1:
            raise UserError(f"suite.{key}={value} must be at least 1")


SUITES = {
    "training": training,
    "race": race,
    "sampling": sampling,
    "data": data,
    "memory": memory,
    "scaling": scaling,
    "watching": watching,
    "attention": attention,
}


if __name__ == "__main__":
    with stop_on_signal():
        command_line.run(benchmark, "benchmark")
