"""The laws of suite=memory: all sides take the same step, and what it holds is counted."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from composing import training_config
from matplotlib.image import imread
from running import Script

from headscope.benchmarks.fresh import Plan, measure, measure_apart
from headscope.benchmarks.memory import check_losses
from headscope.training.optimizer import adamw, muon

SIDES = [
    "transformers",
    "headscope",
    "headscope, loss in chunks",
    "headscope, activations anew",
    "headscope, both",
]
WORDS = [
    *("suite=memory", "suite.rounds=1", "suite.vocab_size=16000", "trainer.batch_size=8"),
    *("model.block_size=128", "model.embed_dim=128", "model.layers=12", "model.heads=4"),
    *("trainer.loss_chunk_tokens=64", "trainer.accelerator=cpu"),
]
LOGITS_MIB = 4 * 8 * 128 * 16000 / 2**20


def plan(**changed) -> Plan:
    plain = Plan(
        model=replace(training_config().model, layers=1),
        vocab_size=30,
        batch_size=2,
        optimizer=partial(adamw, lr=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.95),
        precision="32-true",
        device=torch.device("cpu"),
        threads=1,
        seed=1,
        rounds=1,
        loss_chunk_tokens=None,
        checkpoint_activations=False,
    )
    return replace(plain, **changed)


def test_every_side_takes_the_same_step_and_what_saves_memory_does(script: Script) -> None:
    said = script("benchmark", *WORDS)
    assert said.code == 0, said.err
    figures = json.loads(Path("benchmark_memory.json").read_text())
    assert {path.name for path in Path().iterdir()} == {
        "benchmark_memory.json",
        "benchmark_memory.png",
    }
    assert imread("benchmark_memory.png").std() > 0.05
    sides = figures["sides"]
    assert list(sides) == SIDES
    losses = [side["first_loss"] for side in sides.values()]
    assert losses == pytest.approx([losses[1]] * 5, rel=1e-5)
    for name, side in sides.items():
        assert f"\n{name} " in said.out
        assert side["parameters"] == pytest.approx(figures["parameters"], rel=0.01)
        assert side["weights_mib"] == pytest.approx(4 * side["parameters"] / 2**20, abs=1e-3)
        assert side["gradients_mib"] == side["weights_mib"]
        assert side["optimizer_mib"] == pytest.approx(2 * side["weights_mib"], abs=1e-3)
        parts = [side[f"{part}_mib"] for part in ("weights", "gradients", "optimizer", "rest")]
        assert sum(parts) == pytest.approx(side["peak_mib"], abs=0.01)
        assert 0 < side["milliseconds"]["min"] <= side["milliseconds"]["max"]
    peer, plain, chunks, anew, both = (side["peak_mib"] for side in sides.values())
    assert min(peer, plain) > 3 * LOGITS_MIB
    # Half of what is saved at least: an allocator does not give all of it back.
    assert chunks < plain - LOGITS_MIB / 2
    assert anew < plain - 25
    assert both < min(chunks - 25, anew - LOGITS_MIB / 2)


def test_a_process_of_its_own_measures_the_same_step() -> None:
    apart, here = measure_apart(plan()), measure(plan())
    assert apart.first_loss == here.first_loss
    assert apart.parameters == here.parameters


def test_what_an_optimizer_of_two_parts_holds_is_counted() -> None:
    options = {"lr": 1e-3, "matrix_lr": 1e-3, "weight_decay": 0.0, "momentum": 0.9}
    both = measure(plan(optimizer=partial(muon, beta1=0.9, beta2=0.95, **options)))
    # Muon holds one number for each of the blocks' weights, AdamW two for each of the rest.
    assert both.weights_mib < both.optimizer_mib < 2 * both.weights_mib


def test_a_side_that_does_not_do_the_same_is_found_out() -> None:
    plain = measure(plan()).first_loss
    check_losses({"headscope": plain, "other": measure(plan(loss_chunk_tokens=7)).first_loss})
    with pytest.raises(RuntimeError, match="other began at loss"):
        check_losses({"headscope": plain, "other": measure(plan(seed=2)).first_loss})


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_step_is_taken_in_the_precision_of_the_trainer(precision: str) -> None:
    full, less = measure(plan()), measure(plan(precision=precision))
    assert less.first_loss == pytest.approx(full.first_loss, rel=0.01)
    assert less.first_loss != full.first_loss
    halved = precision == "bf16-true"
    assert less.weights_mib == pytest.approx(full.weights_mib / (1 + halved), abs=2e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["suite.vocab_size=0"], ["suite.vocab_size=0"]),
        (["trainer.loss_chunk_tokens=null"], ["trainer.loss_chunk_tokens=None", "auto"]),
        (["experiment=nanogpt_cpu"], ["experiment=nanogpt_cpu", "model.*"]),
        (["model.heads=5"], ["heads=5"]),
        (["model/position=rotary"], ["suite.peers=false"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_in_one_line(
    script: Script, arguments: list[str], words: list[str]
) -> None:
    said = script("benchmark", *WORDS, *arguments)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("Error: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err
    assert not list(Path().iterdir())
